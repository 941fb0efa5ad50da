package namespace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// brokerTimeout bounds a request to the broker. Ending a workspace with many
// processes and a large home is the slowest.
const brokerTimeout = 2 * time.Minute

// Broker makes, starts and ends workspaces: package brokerapi has its methods.
type Broker interface {
	// Call makes one request with the descriptors fds, which stay the caller's.
	Call(ctx context.Context, method string, params, result any, fds ...*os.File) error
	// Mended is that of runtime.Runtime.
	Mended(ctx context.Context) (string, []workspace.Mended, error)
	Close()
}

// broker is the one connection to the broker, made when needed and again after
// it ended.
type broker struct {
	dial func(context.Context) (*net.UnixConn, error)

	// another is called when it is another broker than before.
	another func()

	mu   sync.Mutex
	conn *jsonrpc.Conn
	// start and mended are of the broker that answered last.
	start  string
	mended []workspace.Mended
}

// Call makes one request. Every operation of the broker may be repeated, so a
// connection that turns out to be gone is made anew once.
func (b *broker) Call(ctx context.Context, method string, params, result any, fds ...*os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, brokerTimeout,
		fmt.Errorf("the broker did not finish %s within %v: %w", method, brokerTimeout, errdefs.ErrUnavailable))
	defer cancel()
	for again := true; ; again = false {
		conn, err := b.connect(ctx)
		if err != nil {
			return err
		}
		_, err = conn.Call(ctx, method, params, result, fds...)
		var said *jsonrpc.Error
		if err == nil || errors.As(err, &said) || ctx.Err() != nil || !errdefs.IsUnavailable(err) {
			return err
		}
		if !again {
			return fmt.Errorf("the broker went away during %s; its log tells why: %w", method, err)
		}
		b.drop(conn) // half-closed at best
	}
}

func (b *broker) connect(ctx context.Context) (*jsonrpc.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		select {
		case <-b.conn.Done():
		default:
			return b.conn, nil
		}
	}
	c, err := b.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the broker: %w; is carrel-broker running? \"carrel doctor\" tells: %w", err, errdefs.ErrUnavailable)
	}
	conn := jsonrpc.New(c, jsonrpc.Config{})
	var hello brokerapi.HelloResult
	if _, err := conn.Call(ctx, brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version}, &hello); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot greet the broker: %w", err)
	}
	if hello.Version != brokerapi.Version {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot work with the broker: it speaks version %d and this carreld %d; install both from one release: %w",
			hello.Version, brokerapi.Version, errdefs.ErrFailedPrecondition)
	}
	if b.start != "" && b.start != hello.Start {
		b.another()
	}
	b.conn, b.start, b.mended = conn, hello.Start, hello.Mended
	return conn, nil
}

// Mended implements Broker.
func (b *broker) Mended(ctx context.Context) (string, []workspace.Mended, error) {
	if _, err := b.connect(ctx); err != nil {
		return "", nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.start, b.mended, nil
}

// drop lets go of a connection, so that the next call makes another even while this one
// is still closing.
func (b *broker) drop(conn *jsonrpc.Conn) {
	b.mu.Lock()
	if b.conn == conn {
		b.conn = nil
	}
	b.mu.Unlock()
	_ = conn.Close() // always nil
}

func (b *broker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		_ = b.conn.Close() // always nil
	}
}

func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
