package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/peercred"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// maxPortConns is how many connections are carried at once; the next one waits to be accepted.
const maxPortConns = 512

// portListener takes connections that are to be carried.
type portListener struct {
	net.Listener
	// whose is the user at the other end of a connection; nil is nobody's question.
	whose func(net.Conn) (uint32, error)
}

func closeAllOf(all []portListener) {
	for _, l := range all {
		l.Close() // twice is no harm
	}
}

// listen opens what is to be listened on, in the order of the ports.
func (x *portFlags) listen(ctx context.Context) (all []portListener, err error) {
	defer func() {
		if err != nil {
			closeAllOf(all)
		}
	}()
	if x.unix != "" {
		l, err := listenPrivate(ctx, x.unix)
		if err != nil {
			return nil, err
		}
		return []portListener{{l, func(c net.Conn) (uint32, error) { return peercred.UID(c.(*net.UnixConn)) }}}, nil
	}
	for _, m := range x.mapped {
		at := net.JoinHostPort(x.here.String(), strconv.Itoa(m.local))
		l, err := new(net.ListenConfig).Listen(ctx, family(x.here), at)
		if err != nil {
			return all, fmt.Errorf("cannot listen on %s: %w; choose another port, as in 0:%d for a free one", at, err, m.remote)
		}
		p := portListener{l, ofTCP}
		if x.anyone {
			p.whose = nil
		}
		all = append(all, p)
	}
	return all, nil
}

// family is the network of an address: by "tcp" alone the one that stands for all of IPv4 stands for all of IPv6 too.
func family(a netip.Addr) string {
	if a.Is4() || a.Is4In6() {
		return "tcp4"
	}
	return "tcp6"
}

// listenPrivate listens on a socket that is its maker's alone, from its first moment.
func listenPrivate(ctx context.Context, path string) (net.Listener, error) {
	was := syscall.Umask(0o177) // this program makes nothing else meanwhile
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	syscall.Umask(was)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("cannot listen on %s: there is something with this name; remove it if nothing uses it, or choose another: %w",
			path, errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return l, nil
}

func ofTCP(c net.Conn) (uint32, error) {
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return 0, err
	}
	to, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return 0, err
	}
	return peercred.OfTCP(from, to)
}

// allowed is why a connection is not carried, nil if it is.
func (l portListener) allowed(c net.Conn) error {
	if l.whose == nil {
		return nil
	}
	uid, err := l.whose(c)
	if err != nil {
		return fmt.Errorf("cannot carry a connection: %w", err)
	}
	if uid != ownUID {
		return fmt.Errorf("cannot carry a connection of uid %d: it is not yours (uid %d); --anyone carries those of others: %w", uid, ownUID,
			errdefs.ErrPermissionDenied)
	}
	return nil
}

// conn is a connection each of whose directions has an end.
type conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// portService is what listens on a port inside.
type portService struct {
	workspace string
	port      int
	dial      func(ctx context.Context) (conn, error)
}

// serviceOf is a port of a workspace of the daemon.
func serviceOf(client *carrel.Client, workspace string, port int) portService {
	return portService{workspace, port, func(ctx context.Context) (conn, error) { return client.DialPort(ctx, workspace, port) }}
}

// servePort carries what comes to a listener until ctx ends.
func (a *app) servePort(ctx context.Context, to portService, l portListener, x *portFlags) error {
	places := make(chan struct{}, maxPortConns)
	var all sync.WaitGroup
	defer all.Wait()
	var last string
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot take connections on %s: %w", l.Addr(), err)
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			c.Close()
			return nil
		}
		all.Go(func() {
			defer func() { <-places }()
			err := l.allowed(c)
			if err == nil {
				err = carryPort(ctx, to, c)
			}
			breakOff(c, err)
			if err != nil && !errors.Is(err, errLeftHere) && ctx.Err() == nil {
				a.refusedPort(x, &last, err)
			}
		})
	}
}

// breakOff ends a connection here: with a reset if it did not come to its end, so that nobody takes a part for the whole.
func breakOff(c net.Conn, err error) {
	if t, ok := c.(*net.TCPConn); ok && err != nil {
		_ = t.SetLinger(0)
	}
	c.Close()
}

// errLeftHere: the client here has gone, which is nothing to tell.
var errLeftHere = errors.New("the client has gone")

// carryPort carries one connection, each direction to its own end.
func carryPort(ctx context.Context, to portService, here net.Conn) error {
	there, err := to.dial(ctx)
	if err != nil {
		return err
	}
	defer there.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { there.Close(); here.Close() })()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(there, here)
		if err == nil {
			err = there.CloseWrite()
		}
		if err != nil {
			cancel() // the client here has gone, or the service
		}
	}()
	if _, err := io.Copy(here, there); err != nil {
		_, mine := errors.AsType[*net.OpError](err) // the other side's are of the API
		cancel()
		<-done
		if mine {
			return errLeftHere
		}
		return fmt.Errorf("cannot go on with a connection to port %d of workspace %s: %w", to.port, to.workspace, err)
	}
	if half, ok := here.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // a client that has gone needs no end
	}
	<-done
	return nil
}
