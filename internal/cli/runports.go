package cli

import (
	"context"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/rootless"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// runPorts are the ports of a command that are reached from here while it runs.
type runPorts struct {
	texts     []string
	flags     portFlags
	listeners []portListener
}

func (p *runPorts) add(c *cobra.Command) {
	c.Flags().StringArrayVarP(&p.texts, "port", "p", nil, "listen on 127.0.0.1:LOCAL while the command runs, and carry your connections "+
		"to its port: `[LOCAL:]PORT`; may be repeated")
}

// listen listens on all of them, before there is a command, so that a port that is taken costs none.
func (p *runPorts) listen(ctx context.Context, a *app, c *cobra.Command) (err error) {
	p.flags.here = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, text := range p.texts {
		m, ok := parsePortMap(text)
		if !ok {
			return usage(c, "cannot use --port %q: give PORT, or LOCAL:PORT with the one to listen on here, each from 1 to 65535, or a LOCAL of 0 "+
				"for a free one; it is always on 127.0.0.1", text)
		}
		p.flags.mapped = append(p.flags.mapped, m)
	}
	if p.listeners, err = p.flags.listen(ctx); err != nil {
		return err
	}
	for i, l := range p.listeners {
		if err := say(a.Err, "carrel: %s leads to port %d of the command\n", l.Addr(), p.flags.mapped[i].remote); err != nil {
			return err
		}
	}
	return nil
}

// serve carries connections to services until what it returns is called. Once a port is opened, nothing about one connection ends it.
func (p *runPorts) serve(
	ctx context.Context, a *app, open func(ctx context.Context, port int) (portService, func(), error),
) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	var release []func()
	stop = func() {
		cancel()
		closeAllOf(p.listeners)
		serving.Wait()
		for _, f := range release {
			f()
		}
	}
	for i, l := range p.listeners {
		to, done, err := open(ctx, p.flags.mapped[i].remote)
		if err != nil {
			stop()
			return nil, err
		}
		release = append(release, done)
		serving.Go(func() {
			if err := a.servePort(ctx, to, l, &p.flags); err != nil {
				a.refusedPort(&p.flags, new(string), err)
			}
		})
	}
	return stop, nil
}

// ofRun opens a port of a command without a daemon.
func ofRun(r *rootless.Run) func(context.Context, int) (portService, func(), error) {
	return func(ctx context.Context, port int) (portService, func(), error) {
		if err := r.OpenPort(ctx, port); err != nil {
			return portService{}, nil, err
		}
		return portService{string(r.Name), port, func(ctx context.Context) (conn, error) { return r.DialPort(ctx, port) }}, func() {}, nil
	}
}

// ofWorkspace opens a port of a workspace of the daemon.
func ofWorkspace(client *carrel.Client, name string) func(context.Context, int) (portService, func(), error) {
	return func(ctx context.Context, port int) (portService, func(), error) {
		p, err := client.PublishPort(ctx, name, port)
		if err != nil {
			return portService{}, nil, err
		}
		return serviceOf(client, name, port), func() { p.Close() }, nil
	}
}
