package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

const (
	// slot is how long a workspace is hostile in one way. Then it goes on to the next, so that
	// all ways are under way at once in different workspaces.
	slot = 6 * time.Second
	// pokeTime bounds what a hostile owner asks of its own workspace.
	pokeTime = 4 * time.Second
	// nice is the priority of hostile owners' own processes, which are outside of carrel: what
	// they take of the processors is not what is measured.
	nice = 10
)

// attacker is a hostile owner, who is a process of its own with an ordinary user's id.
type attacker struct {
	Socket      string
	UID, Number int
	// Only and Except choose ways by words in their names.
	Keys, Only, Except []string
	// Burden is the one thing that it does, if it is not "", and Address where strangers are served.
	Burden, Address string
}

// tally counts what became of a way's attempts.
type tally struct {
	Tried   int `json:"tried"`
	Refused int `json:"refused"`
	Failed  int `json:"failed"`
	// Error is one of the errors that is not about a bound.
	Error string `json:"error,omitempty"`
}

func (t *tally) add(o tally) {
	t.Tried, t.Refused, t.Failed = t.Tried+o.Tried, t.Refused+o.Refused, t.Failed+o.Failed
	if o.Error != "" {
		t.Error = o.Error
	}
}

// gang are the hostile owners' processes.
type gang struct {
	h       *host
	members []*member
}

type member struct {
	*exec.Cmd
	stdin io.Closer
	out   strings.Builder
}

// attackers starts the hostile owners. They end when their stdin does, so with this process at
// the latest.
func (h *host) attackers(all []attacker) (*gang, error) {
	g := &gang{h: h}
	for _, a := range all {
		arg, err := json.Marshal(a)
		if err != nil {
			return g, err
		}
		m := &member{Cmd: exec.CommandContext(context.Background(), "/proc/self/exe", attackArg, string(arg))}
		m.Env, m.Dir, m.Stdout, m.Stderr = []string{"GOMAXPROCS=1"}, "/", &m.out, os.Stderr
		m.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uint32(a.UID), Gid: uint32(a.UID)}}
		if m.stdin, err = m.StdinPipe(); err == nil {
			err = m.Start()
		}
		if err != nil {
			g.end()
			return nil, fmt.Errorf("cannot start a hostile owner: %w", err)
		}
		g.members = append(g.members, m)
	}
	return g, nil
}

// end ends them all and returns what they did.
func (g *gang) end() map[string]*tally {
	sum := map[string]*tally{}
	for _, m := range g.members {
		_ = m.stdin.Close() // it ends with this, or has ended
	}
	for _, m := range g.members {
		late := time.AfterFunc(30*time.Second, func() { _ = m.Process.Kill() })
		err := m.Wait()
		late.Stop()
		var one map[string]tally
		if jsonErr := json.Unmarshal([]byte(m.out.String()), &one); err != nil || jsonErr != nil {
			g.h.say("a hostile owner did not say what it did: %v", errors.Join(err, jsonErr))
		}
		for name, t := range one {
			if sum[name] == nil {
				sum[name] = new(tally)
			}
			sum[name].add(t)
		}
	}
	return sum
}

// raid is a hostile owner at work.
type raid struct {
	attacker
	t *tenant

	mu    sync.Mutex
	count map[string]*tally
}

// attack is the whole life of a hostile owner's process.
func attack(arg string, stdin io.Reader, stdout io.Writer) error {
	r := &raid{count: map[string]*tally{}}
	if err := json.Unmarshal([]byte(arg), &r.attacker); err != nil {
		return err
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, nice); err != nil {
		return os.NewSyscallError("setpriority", err)
	}
	r.t = newTenant(func(ctx context.Context) (net.Conn, error) { return r.dial(ctx) }, "")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	if r.Burden != "" {
		r.bear(ctx)
		return json.NewEncoder(stdout).Encode(r.count)
	}
	var group sync.WaitGroup
	for i, key := range r.Keys {
		group.Go(func() { r.inhabit(ctx, key, r.Number+i*hostileOwners) })
	}
	for _, f := range floods {
		if r.wanted(f.name) {
			group.Go(func() { r.flood(ctx, f) })
		}
	}
	group.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return json.NewEncoder(stdout).Encode(r.count)
}

func (r *raid) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", r.Socket)
}

func (r *raid) wanted(name string) bool {
	named := func(word string) bool { return strings.Contains(name, word) }
	return (len(r.Only) == 0 || slices.ContainsFunc(r.Only, named)) && !slices.ContainsFunc(r.Except, named)
}

// inhabit has a workspace be hostile in one way after the other. Meanwhile its owner asks of it
// what makes carrel go in: commands, and an archive.
func (r *raid) inhabit(ctx context.Context, key string, first int) {
	var mine []way
	for _, w := range ways {
		if r.wanted(w.name) {
			mine = append(mine, w)
		}
	}
	for n := first; ctx.Err() == nil && len(mine) > 0; n++ {
		w, end := mine[n%len(mine)], time.Now().Add(slot)
		r.note(w.name, r.bounded(ctx, func(ctx context.Context) error {
			_, err := r.t.detach(ctx, key, slot.Milliseconds(), w.output, "/usr/bin/perl", "-e", w.perl)
			return err
		}))
		for time.Now().Before(end) && ctx.Err() == nil {
			r.note("commands beside", r.bounded(ctx, func(ctx context.Context) error {
				_, err := r.t.exec(ctx, key, nil, "/bin/true")
				return err
			}))
			r.note("archives beside", r.bounded(ctx, func(ctx context.Context) error {
				id, err := r.t.archive(ctx, &carrelv1.CreateArchiveRequest{Workspace: key, Live: true})
				if err == nil {
					err = r.t.removeArchive(ctx, id)
				}
				return err
			}))
			pause(ctx, 500*time.Millisecond)
		}
		r.note("stops", r.bounded(ctx, func(ctx context.Context) error {
			_, err := r.t.workspaces.Stop(ctx, connect.NewRequest(&carrelv1.StopRequest{Workspace: key}))
			return err
		}))
	}
}

func (r *raid) bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, pokeTime)
	defer cancel()
	return f(ctx)
}

// flood repeats a flood until the end.
func (r *raid) flood(ctx context.Context, f flood) {
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, 2*slot)
		err := f.round(one, r)
		cancel()
		if r.note(f.name, err); err != nil {
			pause(ctx, 10*time.Millisecond) // the daemon may be away
		}
	}
}

// note counts an attempt.
func (r *raid) note(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.count[name]
	if t == nil {
		t = new(tally)
		r.count[name] = t
	}
	t.Tried++
	switch {
	case err == nil || errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled:
	case connect.CodeOf(err) == connect.CodeResourceExhausted || connect.CodeOf(err) == connect.CodePermissionDenied:
		t.Refused++
	default:
		t.Failed++
		t.Error = err.Error()
	}
}
