package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
)

const (
	honestOwners, hostileOwners = 8, 4
	// firstUID begins the owners' ids: honest ones, then hostile ones. No account has them.
	firstUID = 61200
	// forever is an idle time-out that never comes.
	forever = -1
	// between is the pause of an honest owner between two operations.
	between = 20 * time.Millisecond
	// expires is the life of workspaces that are left to expire.
	expires = 1500 * time.Millisecond
	// execs is how many commands an honest owner runs for each workspace that it makes.
	execs = 8
)

// desk is an honest workspace that stays: its file, and a command that runs all the time.
type desk struct {
	owner              *tenant
	key, text, command string
}

// cast is who takes part.
type cast struct {
	honest  []desk
	hostile []attacker
}

// settle makes the workspaces that stay.
func (h *host) settle(ctx context.Context, o options) (*cast, error) {
	hostile := o.workspaces / 3
	h.say("making %d workspaces", o.workspaces)
	c := &cast{}
	honest := make([]*tenant, honestOwners)
	for i := range honest {
		honest[i] = h.as(firstUID + i)
		if i%2 == 0 {
			continue
		}
		token, err := honest[i].newToken(ctx)
		if err != nil {
			return nil, err
		}
		honest[i] = h.with(firstUID+i, token)
	}
	for i := range o.workspaces - hostile {
		d, err := newDesk(ctx, honest[i%honestOwners], fmt.Sprint("honest ", i))
		if err != nil {
			return nil, fmt.Errorf("cannot prepare an honest workspace: %w", err)
		}
		c.honest = append(c.honest, d)
	}
	for i := range min(hostileOwners, hostile) {
		a := attacker{Socket: h.socket(), UID: firstUID + honestOwners + i, Number: i, Only: o.only, Except: o.except}
		t := h.as(a.UID)
		for n := i; n < hostile; n += hostileOwners {
			key := fmt.Sprint("hostile ", n)
			if err := makeHostile(ctx, t, key); err != nil {
				return nil, fmt.Errorf("cannot prepare a hostile workspace: %w", err)
			}
			a.Keys = append(a.Keys, key)
		}
		c.hostile = append(c.hostile, a)
	}
	return c, nil
}

func newDesk(ctx context.Context, owner *tenant, key string) (d desk, err error) {
	d = desk{owner: owner, key: key, text: rand.Text()}
	if _, err = owner.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key, IdleTimeoutMs: forever})); err != nil {
		return d, err
	}
	if _, err = owner.exec(ctx, key, []byte(d.text), "/bin/sh", "-c", "cat > kept"); err != nil {
		return d, err
	}
	d.command, err = owner.detach(ctx, key, 0, 0, "/bin/sleep", "1000000")
	return d, err
}

// makeHostile makes a workspace whose limits a host of any size can bear.
func makeHostile(ctx context.Context, t *tenant, key string) error {
	limits := &carrelv1.Limits{MemoryBytes: 128 << 20, Pids: 128}
	if image.Ready() == nil {
		limits.DiskBytes = 128 << 20
	}
	_, err := t.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key, Limits: limits, IdleTimeoutMs: 10_000}))
	return err
}

// lost says what is no longer there.
func (c *cast) lost(ctx context.Context) (all []string) {
	for _, d := range c.honest {
		if err := d.there(ctx); err != nil {
			all = append(all, fmt.Sprintf("%s: %v", d.key, err))
		}
	}
	return all
}

func (d desk) there(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operationTime)
	defer cancel()
	res, err := d.owner.exec(ctx, d.key, nil, "/bin/cat", "kept")
	if err != nil {
		return err
	}
	if got := string(res.GetStdout()); got != d.text {
		return fmt.Errorf("its file has %q, not %q; %s", got, d.text, res.GetStderr())
	}
	list, err := d.owner.commands.ListCommands(ctx, connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: d.key}))
	if err != nil {
		return err
	}
	for _, c := range list.Msg.GetCommands() {
		if c.GetCommandId() == d.command && c.GetStatus() == nil {
			return nil
		}
	}
	return errors.New("the command that it left running no longer runs")
}

// work has honest owners work for a while: two that make, use, archive and destroy, and one
// that lets expire.
func (l *ledger) work(ctx context.Context, life time.Duration, desks []desk) {
	ctx, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	var group sync.WaitGroup
	for i, f := range []func(context.Context, desk){l.makeAndDestroy, l.makeAndDestroy, l.expire} {
		group.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				f(ctx, desks[n*5%len(desks)]) // from one owner to another
			}
		})
	}
	group.Wait()
}

// makeAndDestroy is what an owner does in a few seconds.
func (l *ledger) makeAndDestroy(ctx context.Context, d desk) {
	key, id, made := "made "+rand.Text(), rand.Text(), ""
	if !l.do(ctx, "create", func(ctx context.Context) error {
		_, err := d.owner.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key, RequestId: "c" + id}))
		return err
	}) {
		return
	}
	for range execs {
		l.do(ctx, "exec", func(ctx context.Context) error {
			res, err := d.owner.exec(ctx, d.key, nil, "/bin/true")
			if err == nil && res.GetStatus().GetCode() != 0 {
				err = fmt.Errorf("true ended with %v", res.GetStatus())
			}
			return err
		})
	}
	if l.do(ctx, "archive", func(ctx context.Context) (err error) {
		made, err = d.owner.archive(ctx, &carrelv1.CreateArchiveRequest{Workspace: key, RequestId: "a" + id})
		return err
	}) {
		tries := 0
		l.do(ctx, "remove archive", func(ctx context.Context) error {
			err := d.owner.removeArchive(ctx, made)
			if tries++; tries > 1 && connect.CodeOf(err) == connect.CodeNotFound {
				return nil // an attempt that was interrupted did it
			}
			return err
		})
	}
	// What was begun is ended, so that it is measured however long the phase has still to go.
	l.do(l.base, "destroy", func(ctx context.Context) error { return d.owner.destroy(ctx, key, "d"+id) })
}

// expire makes a workspace that is destroyed at a time, and measures how late that was.
func (l *ledger) expire(ctx context.Context, d desk) {
	key, id := "expires "+rand.Text(), rand.Text()
	var until time.Time
	if !l.do(ctx, "create", func(ctx context.Context) error {
		res, err := d.owner.workspaces.Create(ctx,
			connect.NewRequest(&carrelv1.CreateRequest{Key: key, TtlMs: expires.Milliseconds(), RequestId: id}))
		if err == nil {
			until = time.UnixMilli(res.Msg.GetWorkspace().GetExpiresUnixMs())
		}
		return err
	}) {
		return
	}
	l.from(l.base, "expire", until, func(ctx context.Context) error {
		tick := time.NewTicker(between)
		defer tick.Stop()
		for {
			_, err := d.owner.workspaces.Get(ctx, connect.NewRequest(&carrelv1.GetRequest{Workspace: key}))
			if connect.CodeOf(err) == connect.CodeNotFound {
				return nil
			}
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("it is still there %v after its time", time.Since(until).Round(time.Second))
			case <-tick.C:
			}
		}
	})
}
