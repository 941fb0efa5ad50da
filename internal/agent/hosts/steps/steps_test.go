package steps_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func TestMain(m *testing.M) {
	if code, is := hostrun.Stage(os.Args); is {
		os.Exit(code)
	}
	if code, is := jobs.Stage(os.Args); is {
		os.Exit(code)
	}
	code := m.Run()
	for end := time.Now().Add(10 * time.Second); code == 0; {
		// hostrun keeps a thread for as long as the process lives.
		err := goleak.Find(goleak.IgnoreAnyFunction("github.com/carrel-dev/carrel/internal/boundary/sandbox.NewThread.func1"))
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const task = "c-0123456789abcdef"

// daemon is the daemon's side of one stream, as a test has it.
type daemon struct {
	t      *testing.T
	stream *connect.BidiStream[carrelv1.ServeRequest, carrelv1.ServeResponse]
	start  *carrelv1.ServeStart
}

// handler serves a stream by a function of a test.
type handler func(context.Context, *connect.BidiStream[carrelv1.ServeRequest, carrelv1.ServeResponse]) error

// Serve implements carrelv1connect.AgentServiceHandler.
func (h handler) Serve(ctx context.Context, s *connect.BidiStream[carrelv1.ServeRequest, carrelv1.ServeResponse]) error {
	return h(ctx, s)
}

// serve serves steps of a daemon that does what a test says, and returns what Serve does and how often it was ready.
func serve(ctx context.Context, t *testing.T, cfg steps.Config, does func(*daemon) error, after ...func()) (ready int, err error) {
	t.Helper()
	_, h := carrelv1connect.NewAgentServiceHandler(handler(
		func(_ context.Context, s *connect.BidiStream[carrelv1.ServeRequest, carrelv1.ServeResponse]) error {
			first, err := s.Receive()
			if err != nil {
				return err
			}
			d := &daemon{t, s, first.GetStart()}
			if err := s.Send(&carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Serving{Serving: true}}); err != nil {
				return err
			}
			return does(d)
		}))
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	stream := carrelv1connect.NewAgentServiceClient(server.Client(), server.URL).Serve(ctx)
	err = steps.Serve(ctx, stream, "demo", task, cfg, func() { ready++ })
	for _, f := range after {
		f()
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	return ready, err
}

// send sends a step of a second and 1000 bytes, unless it is changed.
func (d *daemon) send(number int64, target, name string, change ...func(*carrelv1.AgentStep)) {
	d.t.Helper()
	s := &carrelv1.AgentStep{Number: number, Target: target, Name: name, Argv: []string{"true"}, TimeoutMs: 1000, MaxOutput: 1000}
	for _, f := range change {
		f(s)
	}
	if err := d.stream.Send(&carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Step{Step: s}}); err != nil {
		d.t.Error(err)
	}
}

// cancel says that nobody waits for a step any more.
func (d *daemon) cancel(number int64) {
	d.t.Helper()
	if err := d.stream.Send(&carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Cancel{Cancel: number}}); err != nil {
		d.t.Error(err)
	}
}

// result reads the next result, which is that of a step.
func (d *daemon) result(number int64) *carrelv1.StepResult {
	d.t.Helper()
	m, err := d.stream.Receive()
	if err != nil || m.GetResult().GetNumber() != number {
		d.t.Errorf("no result of %d: %v, %v", number, m, err)
	}
	return m.GetResult()
}

// refused reads the next result, of a step that was not run.
func (d *daemon) refused(number int64, why string) {
	d.t.Helper()
	r := d.result(number)
	if r.GetStatus() != nil || !strings.HasPrefix(r.GetError(), "it was not run: ") || !strings.Contains(r.GetError(), why) {
		d.t.Errorf("step %d is not refused: %v", number, r)
	}
}

// noted is a Run that notes what it is given.
type noted struct {
	mu  sync.Mutex
	all []runtime.HostCommand
}

func (n *noted) run(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, c)
	return runtime.HostResult{
		Status: &execapi.Status{Code: 3, Signal: 1, TimedOut: true}, Stdout: []byte("out"), Stderr: []byte("err"), Lost: 7,
		Held: map[bool]string{false: "by host", true: "by remote"}[c.Remote],
	}, nil
}

// What supervises commands is ready while steps may come, and until those that run have ended.
func TestReadyWhileServed(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	cfg := steps.Config{
		Ready: func() func() {
			note("ready")
			return func() { note("rest") }
		},
		Local: func(ctx context.Context, _ runtime.HostCommand) (runtime.HostResult, error) {
			<-ctx.Done()
			note("ended")
			return runtime.HostResult{}, ctx.Err()
		},
	}
	if _, err := serve(t.Context(), t, cfg, func(d *daemon) error {
		d.send(1, "host", "")
		return nil
	}); err != nil {
		t.Error(err)
	}
	if want := []string{"ready", "ended", "rest"}; !slices.Equal(order, want) {
		t.Errorf("%q", order)
	}
}

// A step is run where it says, as it says, and all that came of it is sent back.
func TestWhere(t *testing.T) {
	var local, remote noted
	cfg := steps.Config{Local: local.run, Remote: remote.run, Remotes: []string{"web-1", "web-2"}}
	ready, err := serve(t.Context(), t, cfg, func(d *daemon) error {
		if d.start.GetWorkspace() != "demo" || d.start.GetTaskId() != task || !d.start.GetLocal() ||
			!slices.Equal(d.start.GetRemotes(), []string{"web-1", "web-2"}) {
			t.Errorf("it starts with %v", d.start)
		}
		d.send(1, "host", "", func(s *carrelv1.AgentStep) { s.Argv, s.ReadOnly = []string{"id", "-u"}, true })
		if r := d.result(1); r.GetStatus().GetCode() != 3 || r.GetStatus().GetSignal() != 1 || !r.GetStatus().GetTimedOut() ||
			string(r.GetStdout()) != "out" || string(r.GetStderr()) != "err" || r.GetLost() != 7 || r.GetHeld() != "by host" || r.GetError() != "" {
			t.Errorf("%v", r)
		}
		if len(remote.all) > 0 {
			t.Errorf("a step for this machine ran on %q", remote.all[0].Name)
		}
		d.send(2, "remote", "web-2")
		if r := d.result(2); r.GetHeld() != "by remote" {
			t.Errorf("%v", r)
		}
		for i, x := range [][2]string{
			{"remote", "web-3"},
			{"remote", ""},
			{"remote", "host"},
			{"host", "web-1"},
			{"HOST", ""},
			{"", ""},
			{"workspace", "demo"},
			{"workspace", "web-1"},
			{"remote ", "web-1"},
		} {
			d.send(int64(10+i), x[0], x[1])
			d.refused(int64(10+i), "does not serve")
		}
		return nil
	})
	if err != nil || ready != 1 {
		t.Errorf("%v, ready %d times", err, ready)
	}
	if len(local.all) != 1 || len(remote.all) != 1 || remote.all[0].Name != "web-2" {
		t.Fatalf("ran %+v and %+v", local.all, remote.all)
	}
	if c := local.all[0]; !slices.Equal(c.Argv, []string{"id", "-u"}) || !c.ReadOnly || c.Timeout != time.Second || c.MaxOutput != 1000 ||
		c.Remote || c.Name != "" {
		t.Errorf("ran %+v", c)
	}
}

// What is not offered is said not to be, and refused.
func TestNotOffered(t *testing.T) {
	var local, remote noted
	for _, cfg := range []steps.Config{{Local: local.run}, {Remote: remote.run, Remotes: []string{"web-1"}}, {Remotes: []string{"web-1"}}} {
		if _, err := serve(t.Context(), t, cfg, func(d *daemon) error {
			if d.start.GetLocal() != (cfg.Local != nil) {
				t.Errorf("it starts with %v", d.start)
			}
			if cfg.Local == nil {
				d.send(1, "host", "")
				d.refused(1, `does not serve "host"`)
			}
			if cfg.Remote == nil {
				d.send(2, "remote", "web-1")
				d.refused(2, `does not serve "remote web-1"`)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if len(local.all)+len(remote.all) > 0 {
		t.Errorf("ran %+v and %+v", local.all, remote.all)
	}
}

// A change to files is made where it says, and nowhere else.
func TestWherePatchesGo(t *testing.T) {
	var made []string
	on := func(where string) steps.Change {
		return func(_ context.Context, p runtime.HostPatch) (runtime.HostPatched, error) {
			made = append(made, strings.TrimSpace(where+" "+p.Remote))
			return runtime.HostPatched{Digest: "sha256:aa", Merged: []string{"f"}, Made: "sha256:bb"}, nil
		}
	}
	for _, c := range []struct {
		cfg  steps.Config
		want []string
	}{
		{steps.Config{Patch: on("here"), RemotePatch: on("there"), Remotes: []string{"web-1"}}, []string{"here", "there web-1"}},
		{steps.Config{Patch: on("here"), Remotes: []string{"web-1"}}, []string{"here"}},
		{steps.Config{RemotePatch: on("there"), Remotes: []string{"web-1"}}, []string{"there web-1"}},
	} {
		made = nil
		if _, err := serve(t.Context(), t, c.cfg, func(d *daemon) error {
			if d.start.GetPatches() != (c.cfg.Patch != nil) || d.start.GetRemotePatches() != (c.cfg.RemotePatch != nil) {
				t.Errorf("it starts with %v", d.start)
			}
			done := 0
			for i, remote := range []string{"", "web-1", "web-2", "host"} {
				if err := d.stream.Send(&carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Patch{
					Patch: &carrelv1.AgentPatch{Number: int64(i), Remote: remote},
				}}); err != nil {
					return err
				}
				m, err := d.stream.Receive()
				if err != nil {
					return err
				}
				r := m.GetPatched()
				if r.GetError() == "" && r.GetDigest() == "sha256:aa" && r.GetMade() == "sha256:bb" && slices.Equal(r.GetMerged(), []string{"f"}) {
					done++
				} else if !strings.Contains(r.GetError(), "changes no files there") {
					t.Errorf("%q: %v", remote, r)
				}
			}
			if done != len(c.want) || !slices.Equal(made, c.want) {
				t.Errorf("%d were made: %q, and not %q", done, made, c.want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// A step has a command, time and room.
func TestNoTimeOrRoom(t *testing.T) {
	var local noted
	if _, err := serve(t.Context(), t, steps.Config{Local: local.run}, func(d *daemon) error {
		for i, change := range []func(*carrelv1.AgentStep){
			func(s *carrelv1.AgentStep) { s.Argv = nil }, func(s *carrelv1.AgentStep) { s.TimeoutMs = 0 },
			func(s *carrelv1.AgentStep) { s.TimeoutMs = -1 }, func(s *carrelv1.AgentStep) { s.MaxOutput = 0 },
			func(s *carrelv1.AgentStep) { s.MaxOutput = -1 }, func(s *carrelv1.AgentStep) { s.TimeoutMs = 1 << 62 },
		} {
			d.send(int64(i), "host", "", change)
			d.refused(int64(i), "no command, no time or no room")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if len(local.all) > 0 {
		t.Errorf("ran %+v", local.all)
	}
}

// A step that was not run, or whose end is not known, has its error and what there is.
func TestErrors(t *testing.T) {
	cfg := steps.Config{Local: func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{Stdout: []byte("half"), Lost: 1, Held: "by \xff"}, errors.New("the connection ended \xfe")
	}}
	if _, err := serve(t.Context(), t, cfg, func(d *daemon) error {
		d.send(1, "host", "")
		if r := d.result(1); r.GetStatus() != nil || r.GetError() != "the connection ended \uFFFD" || string(r.GetStdout()) != "half" ||
			r.GetLost() != 1 || r.GetHeld() != "by \uFFFD" {
			t.Errorf("%v", r)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Steps run at the same time. One that is cancelled ends, and the others go on.
func TestAtOnce(t *testing.T) {
	begun, release := make(chan string, 2), make(chan struct{})
	cfg := steps.Config{Local: func(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		begun <- c.Argv[0]
		select {
		case <-ctx.Done():
			return runtime.HostResult{}, errors.New("it was told to stop")
		case <-release:
			return runtime.HostResult{Status: &execapi.Status{}}, nil
		}
	}}
	if _, err := serve(t.Context(), t, cfg, func(d *daemon) error {
		d.send(1, "host", "")
		d.send(2, "host", "")
		<-begun
		<-begun
		d.cancel(3) // there is none
		d.cancel(1)
		if r := d.result(1); r.GetError() != "it was told to stop" || r.GetStatus() != nil {
			t.Errorf("%v", r)
		}
		close(release)
		if r := d.result(2); r.GetError() != "" || r.GetStatus() == nil {
			t.Errorf("%v", r)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// deaf steps do not end when they are told to. begun has one value for each that runs.
func deaf() (cfg steps.Config, begun chan struct{}, release chan struct{}) {
	begun, release = make(chan struct{}, 200), make(chan struct{})
	return steps.Config{Local: func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		begun <- struct{}{}
		<-release
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}}, begun, release
}

// The number of a step that runs is not used twice, also if that one was cancelled.
func TestNumberTwice(t *testing.T) {
	cfg, begun, release := deaf()
	if _, err := serve(t.Context(), t, cfg, func(d *daemon) error {
		d.send(1, "host", "")
		<-begun
		d.send(1, "host", "")
		d.refused(1, "its number is in use")
		d.cancel(1)
		d.send(1, "host", "")
		d.refused(1, "its number is in use")
		close(release)
		if r := d.result(1); r.GetStatus() == nil {
			t.Errorf("%v", r)
		}
		return nil
	}); err != nil || len(begun) != 0 {
		t.Errorf("%v, ran %d times more", err, len(begun))
	}
}

// No more than 128 steps run at once. One that was cancelled counts until it has ended.
func TestTooMany(t *testing.T) {
	const most = 128
	cfg, begun, release := deaf()
	if _, err := serve(t.Context(), t, cfg, func(d *daemon) error {
		for i := range most {
			d.send(int64(i+1), "host", "")
		}
		for range most {
			<-begun
		}
		d.send(100, "host", "")
		d.refused(100, "too many steps")
		for i := range most {
			d.cancel(int64(i + 1))
		}
		d.send(101, "host", "")
		d.refused(101, "too many steps")
		close(release)
		for range most {
			if m, err := d.stream.Receive(); err != nil || m.GetResult().GetStatus() == nil {
				t.Errorf("%v, %v", m, err)
			}
		}
		return nil
	}); err != nil || len(begun) != 0 {
		t.Errorf("%v, %d more began", err, len(begun))
	}
}

// However the stream ends, the steps that run are ended, and Serve returns after them.
func TestStreamEnds(t *testing.T) {
	for name, x := range map[string]struct {
		daemon error
		leaves bool
		why    string
	}{
		"with the task":       {},
		"with an error":       {daemon: connect.NewError(connect.CodeUnavailable, errors.New("it is stopping")), why: "it is stopping"},
		"with the user's end": {leaves: true, why: "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			begun := make(chan struct{})
			var over atomic.Bool
			cfg := steps.Config{Local: func(ctx context.Context, _ runtime.HostCommand) (runtime.HostResult, error) {
				close(begun)
				<-ctx.Done()
				for range 1000 { // Serve has the time to return before it, if it does not wait
					goruntime.Gosched()
				}
				over.Store(true)
				return runtime.HostResult{}, context.Cause(ctx)
			}}
			_, err := serve(ctx, t, cfg, func(d *daemon) error {
				d.send(1, "host", "")
				<-begun
				if x.leaves {
					leave()
					_, err := d.stream.Receive()
					return err
				}
				return x.daemon
			}, func() {
				if !over.Load() {
					t.Error("it returns before its step has ended")
				}
			})
			if (err == nil) != (x.why == "") || err != nil && !(strings.Contains(err.Error(), x.why) && strings.Contains(err.Error(), task)) {
				t.Errorf("it returns %v", err)
			}
		})
	}
}
