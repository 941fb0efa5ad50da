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

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// brokerTimeout bounds a request to the broker. Ending a workspace with many
// processes and a large home is the slowest.
const brokerTimeout = 2 * time.Minute

// client is the one connection to the broker, made when needed and again after
// it ended.
type client struct {
	dial func(context.Context) (*net.UnixConn, error)
	// instead, if set, says why nothing is asked, and what serves it.
	instead string

	// another is called when it is another broker than before.
	another func()

	mu   sync.Mutex
	conn *jsonrpc.Conn
	// start and mended were told by the broker that answered last.
	start  string
	mended []workspace.Mended
	// uidFirst and uidCount are the range of the broker that was reached last.
	uidFirst, uidCount uint32
}

var _ Broker = (*client)(nil)

// ask makes one request. Every operation of the broker may be repeated, so a
// connection that turns out to be gone is made anew once.
func ask[R any](ctx context.Context, b *client, method string, params any, fds ...*os.File) (result R, err error) {
	result, files, err := askFiles[R](ctx, b, method, params, fds...)
	closeAll(files)
	return result, err
}

// askFiles is ask for an answer that may come with files.
func askFiles[R any](ctx context.Context, b *client, method string, params any, fds ...*os.File) (result R, files []*os.File, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, brokerTimeout,
		fmt.Errorf("the broker did not finish %s within %v: %w", method, brokerTimeout, errdefs.ErrUnavailable))
	defer cancel()
	if b.instead != "" {
		return result, nil, fmt.Errorf("cannot %s: %s: %w", method, b.instead, errdefs.ErrNotImplemented)
	}
	for again := true; ; again = false {
		conn, err := b.connect(ctx)
		if err != nil {
			return result, nil, err
		}
		files, err = conn.Call(ctx, method, params, &result, fds...)
		var said *jsonrpc.Error
		if err == nil || errors.As(err, &said) || ctx.Err() != nil || !errdefs.IsUnavailable(err) {
			return result, files, err
		}
		if !again {
			return result, nil, fmt.Errorf("the broker went away during %s; its log tells why: %w", method, err)
		}
		b.drop(conn) // half-closed at best
	}
}

func (b *client) Create(ctx context.Context, p brokerapi.CreateParams, grant *os.File) (brokerapi.StartResult, error) {
	if grant == nil {
		return ask[brokerapi.StartResult](ctx, b, brokerapi.MethodCreate, p)
	}
	return ask[brokerapi.StartResult](ctx, b, brokerapi.MethodCreate, p, grant)
}

func (b *client) Start(ctx context.Context, p brokerapi.StartParams) (brokerapi.StartResult, error) {
	return ask[brokerapi.StartResult](ctx, b, brokerapi.MethodStart, p)
}

func (b *client) Stop(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error) {
	return ask[brokerapi.Workspace](ctx, b, brokerapi.MethodStop, p)
}

func (b *client) Destroy(ctx context.Context, p brokerapi.DestroyParams) (brokerapi.Workspace, error) {
	return ask[brokerapi.Workspace](ctx, b, brokerapi.MethodDestroy, p)
}

func (b *client) Pause(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error) {
	return ask[brokerapi.Workspace](ctx, b, brokerapi.MethodPause, p)
}

func (b *client) Resume(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error) {
	return ask[brokerapi.Workspace](ctx, b, brokerapi.MethodResume, p)
}

func (b *client) Update(ctx context.Context, p brokerapi.UpdateParams) (brokerapi.Workspace, error) {
	return ask[brokerapi.Workspace](ctx, b, brokerapi.MethodUpdate, p)
}

func (b *client) List(ctx context.Context, p brokerapi.ListParams) (brokerapi.ListResult, error) {
	return ask[brokerapi.ListResult](ctx, b, brokerapi.MethodList, p)
}

func (b *client) Report(ctx context.Context, p brokerapi.NameParams) (workspace.Report, error) {
	return ask[workspace.Report](ctx, b, brokerapi.MethodReport, p)
}

func (b *client) Stats(ctx context.Context, p brokerapi.NameParams) (workspace.Stats, error) {
	st, err := ask[workspace.Stats](ctx, b, brokerapi.MethodStats, p)
	if err != nil {
		return workspace.UnknownStats, err
	}
	return st, nil
}

func (b *client) Forget(ctx context.Context, p brokerapi.ForgetParams) error {
	_, err := ask[struct{}](ctx, b, brokerapi.MethodForget, p)
	return err
}

func (b *client) Revive(ctx context.Context, p brokerapi.ForgetParams) (brokerapi.Workspace, error) {
	return ask[brokerapi.Workspace](ctx, b, brokerapi.MethodRevive, p)
}

func (b *client) Countersign(ctx context.Context, p brokerapi.CountersignParams) (brokerapi.CountersignResult, error) {
	return ask[brokerapi.CountersignResult](ctx, b, brokerapi.MethodCountersign, p)
}

func (b *client) connect(ctx context.Context) (*jsonrpc.Conn, error) {
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
	conn := jsonrpc.New(c, jsonrpc.Config{MaxFDs: 1})
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
	b.conn, b.start, b.mended, b.uidFirst, b.uidCount = conn, hello.Start, hello.Mended, hello.UIDFirst, hello.UIDCount
	return conn, nil
}

// inRange reports whether an id is one of the broker's range, as far as that is known.
func (b *client) inRange(uid uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return uid >= b.uidFirst && uid-b.uidFirst < b.uidCount
}

func (b *client) Mended(ctx context.Context) (string, []workspace.Mended, error) {
	if b.instead != "" {
		return "", nil, nil
	}
	if _, err := b.connect(ctx); err != nil {
		return "", nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.start, b.mended, nil
}

// drop closes a connection, so that the next call makes another even while this one
// is still closing.
func (b *client) drop(conn *jsonrpc.Conn) {
	b.mu.Lock()
	if b.conn == conn {
		b.conn = nil
	}
	b.mu.Unlock()
	_ = conn.Close() // always nil
}

func (b *client) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil {
		return nil
	}
	return b.conn.Close()
}

func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
