package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

type portFlags struct {
	address, unix string
	anyone, stdio bool
	output        *format
	here          netip.Addr
	mapped        []portMap
	message       sync.Mutex
}

// portMap is a port here and the one in the workspace that it leads to. A local port of 0 is a free one.
type portMap struct{ local, remote int }

func (a *app) portCommand() *cobra.Command {
	var x portFlags
	c := &cobra.Command{
		Use:   "port [flags] WORKSPACE [LOCAL:]PORT...",
		Short: help(operation.OpenPort),
		Long: `Listen here, and carry each connection to a TCP port of the workspace's loopback, until
Ctrl-C, or until the workspace stops. It works from elsewhere too. A server inside is
reached if it listens on 127.0.0.1, ::1 or every address.

It listens on 127.0.0.1, where every user of this host can connect: a connection is
carried only if its socket is yours. --unix makes a socket that only you can use, and
--stdio carries one connection on stdin and stdout. With --anyone whoever can connect
is let in; with --address that may be other hosts.`,
		Example: `  carrel port demo 8000
  carrel port demo 3000:80 5432
  carrel port demo --unix ./web.sock 8000
  ssh -o ProxyCommand='carrel port --stdio demo 22' demo`,
		Args:              atLeast("WORKSPACE", "PORT"),
		ValidArgsFunction: a.completeWorkspaces(),
	}
	f := c.Flags()
	f.StringVar(&x.address, "address", "127.0.0.1", "the address to listen on; one that is not of this host's loopback takes --anyone")
	f.StringVar(&x.unix, "unix", "", "listen on a socket at this path instead, which only you can use")
	f.BoolVar(&x.anyone, "anyone", false, "carry connections of other users and hosts too")
	f.BoolVar(&x.stdio, "stdio", false, "carry one connection on stdin and stdout")
	x.output = outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := x.check(c, args[1:]); err != nil {
			return err
		}
		return a.port(c.Context(), args[0], &x)
	}
	return c
}

func (x *portFlags) check(c *cobra.Command, ports []string) (err error) {
	if x.here, err = netip.ParseAddr(x.address); err != nil {
		return usage(c, "cannot use --address %q: give an IP address, as in 127.0.0.1 or ::1", x.address)
	}
	for _, text := range ports {
		m, ok := parsePortMap(text)
		if !ok {
			return usage(c, "cannot use port %q: give PORT, or LOCAL:PORT with the one to listen on here, each from 1 to 65535; a LOCAL of 0 is "+
				"a free one", text)
		}
		x.mapped = append(x.mapped, m)
	}
	switch {
	case x.unix != "" && x.stdio:
		return usage(c, "cannot use --unix with --stdio: give one")
	case (x.unix != "" || x.stdio) && (len(ports) > 1 || strings.Contains(ports[0], ":") || c.Flags().Changed("address") || x.anyone):
		return usage(c, "cannot use --unix or --stdio with several ports, LOCAL, --address or --anyone: give one PORT")
	case !x.here.IsLoopback() && !x.anyone:
		return usage(c, "cannot listen on %s: other hosts could connect, and carrel could not see whose they are; "+
			"add --anyone if that is what you want, or leave --address out", x.here)
	}
	return nil
}

func parsePortMap(text string) (m portMap, ok bool) {
	local, remote, both := strings.Cut(text, ":")
	if !both {
		remote = local
	}
	l, lerr := strconv.ParseUint(local, 10, 16)
	r, rerr := strconv.ParseUint(remote, 10, 16)
	return portMap{int(l), int(r)}, lerr == nil && rerr == nil && r > 0 && (both || l > 0)
}

// port publishes ports of a workspace here until it is interrupted, or the workspace stops.
func (a *app) port(ctx context.Context, workspace string, x *portFlags) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if x.stdio {
		return a.portOnStdio(ctx, client, workspace, x.mapped[0].remote)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel(nil)
	listeners, err := x.listen(ctx)
	if err != nil {
		return err
	}
	defer closeAllOf(listeners)
	for i, m := range x.mapped {
		p, err := client.PublishPort(ctx, workspace, m.remote)
		if err != nil {
			return interrupted(ctx, err)
		}
		defer p.Close()
		go func() {
			select {
			case <-p.Done():
				cancel(p.Err())
			case <-ctx.Done():
			}
		}()
		l := listeners[i]
		serving.Go(func() { cancel(a.servePort(ctx, serviceOf(client, workspace, m.remote), l, x)) })
	}
	if err := a.sayPorts(workspace, listeners, x); err != nil {
		return err
	}
	<-ctx.Done()
	closeAllOf(listeners)
	return interrupted(ctx, context.Cause(ctx))
}

// interrupted is err, or nil if it only says that the user has had enough.
func interrupted(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}

// sayPorts prints where which port is reached.
func (a *app) sayPorts(workspace string, listeners []portListener, x *portFlags) error {
	if *x.output == asJSON {
		out := make([]object, 0, len(listeners))
		for i, l := range listeners {
			out = append(out, object{
				{"workspace", workspace}, {"port", x.mapped[i].remote}, {"network", l.Addr().Network()}, {"address", l.Addr().String()},
			})
		}
		return a.printJSON(out)
	}
	for i, l := range listeners {
		if err := say(a.Out, "%s leads to port %d of %s\n", l.Addr(), x.mapped[i].remote, workspace); err != nil {
			return err
		}
	}
	a.progress("Press Ctrl-C to end.")
	return nil
}

// portOnStdio carries one connection on stdin and stdout.
func (a *app) portOnStdio(ctx context.Context, client *carrel.Client, workspace string, port int) error {
	c, err := client.DialPort(ctx, workspace, port)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	go func() {
		if _, err := io.Copy(c, a.In); err != nil {
			_ = c.Close() // and the reader below is told
			return
		}
		_ = c.CloseWrite() // the connection may be over
	}()
	if _, err = io.Copy(a.Out, c); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("cannot carry the connection to port %d of workspace %s: %w", port, workspace, err)
	}
	// The service has ended its side. What was written before still arrives, if it reads it.
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.CloseWrite() }()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-time.After(lastWords):
	}
	return nil
}

// lastWords is how long what was written may take to be sent when the service has ended its side.
const lastWords = 5 * time.Second

// refusedPort tells of a connection that was not carried, but not the same over and over.
func (a *app) refusedPort(x *portFlags, last *string, err error) {
	x.message.Lock()
	defer x.message.Unlock()
	if text := errorText(err); text != *last {
		*last = text
		fmt.Fprintln(a.Err, "carrel:", text)
	}
}

// ownUID is whose connections are carried.
var ownUID = uint32(os.Getuid())
