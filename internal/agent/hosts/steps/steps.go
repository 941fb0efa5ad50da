// Package steps serves the steps of an agent on hosts: it takes them from the daemon, which has judged and recorded each,
// has them run on this machine or on a remote host, and sends back what came of them. It runs in the process of the user
// who asked, with the rights of that user.
//
// It must not judge, and it must not run a step elsewhere than it says: a step for a remote host never runs here.
package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Run runs one command on one host. The error is why it was not run, or why it is not known how it ended.
type Run func(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error)

// Config holds the dependencies of Serve. Those that are nil run nothing, and their steps are refused.
type Config struct {
	// Local runs commands on this machine. Roots are directories below which tools read here, beside tools.Roots.
	Local Run
	Roots []string
	// Profile is what Local and Background hold commands on this machine by that may change something; "" is hostrun.None.
	Profile hostrun.Profile
	// Ready has what Local needs ready while steps may come, until rest is called. Optional.
	Ready func() (rest func())
	// Remote runs commands on the hosts that Remotes names.
	Remote  Run
	Remotes []string
	// Place stands for where steps are carried out; see runtime.Hosts.
	Place string
	// As and RemotesAs say as whom and where steps on this machine and on the remote hosts run; see runtime.Hosts.
	As        string
	RemotesAs map[string]string
	// Background begins commands that outlive this process, on this machine if Local is set and on the hosts of Remotes.
	Background Run
	// Patch computes changes to files on this machine, and makes them; RemotePatch does so on the hosts that Remotes names.
	Patch, RemotePatch Change
}

// Change computes a change to files, or makes one that was computed.
type Change func(ctx context.Context, p runtime.HostPatch) (runtime.HostPatched, error)

// maxAtOnce bounds the steps that run at the same time; the daemon sends fewer.
const maxAtOnce = 128

// Stream is the connection to the daemon.
type Stream = connect.BidiStreamForClient[carrelv1.ServeRequest, carrelv1.ServeResponse]

// Serve serves the steps of a task until the daemon ends the stream, which it does with the task, or ctx ends, which must be
// that of the stream. ready is called once steps may come. Steps that ran have ended when it returns.
func Serve(ctx context.Context, stream *Stream, workspace, task string, cfg Config, ready func()) error {
	s := &server{cfg: cfg, stream: stream, running: map[int64]context.CancelFunc{}}
	if cfg.Ready != nil {
		defer cfg.Ready()()
	}
	defer s.all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait
	// While the transport waits for something to send, it does not see that ctx has ended.
	defer context.AfterFunc(ctx, s.hangUp)()
	if err := s.send(&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Start{Start: &carrelv1.ServeStart{
		Workspace: workspace, TaskId: task, Local: cfg.Local != nil, Remotes: cfg.Remotes, Patches: cfg.Patch != nil,
		Profile: string(cfg.Profile), Place: cfg.Place, As: cfg.As, RemotesAs: cfg.RemotesAs, RemotePatches: cfg.RemotePatch != nil,
	}}}); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("cannot serve the steps of task %s: %w", task, err)
	}
	for {
		m, err := stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot serve the steps of task %s any longer: %w", task, err)
		}
		switch x := m.GetMessage().(type) {
		case *carrelv1.ServeResponse_Serving:
			ready()
		case *carrelv1.ServeResponse_Step:
			s.begin(ctx, x.Step)
		case *carrelv1.ServeResponse_Patch:
			s.patch(ctx, x.Patch)
		case *carrelv1.ServeResponse_Cancel:
			s.stop(x.Cancel)
		}
	}
}

type server struct {
	cfg    Config
	stream *Stream
	all    sync.WaitGroup

	sending sync.Mutex

	mu      sync.Mutex
	running map[int64]context.CancelFunc
}

func (s *server) send(m *carrelv1.ServeRequest) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.Send(m)
}

// hangUp ends what is sent.
func (s *server) hangUp() {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.stream.CloseRequest() // a stream that has ended already is as good
}

// begin runs a step, and sends what came of it.
func (s *server) begin(ctx context.Context, m *carrelv1.AgentStep) {
	ctx, cancel := context.WithCancel(ctx)
	if !s.note(m.GetNumber(), cancel) {
		cancel()
		s.answer(m, runtime.HostResult{}, errors.New("it was not run: too many steps run at once, or its number is in use"))
		return
	}
	s.all.Go(func() {
		defer s.end(m.GetNumber())
		r, err := s.run(ctx, m)
		s.answer(m, r, err)
	})
}

// patch computes or makes a change to files, and sends what came of it.
func (s *server) patch(ctx context.Context, m *carrelv1.AgentPatch) {
	out := &carrelv1.PatchResult{Number: m.GetNumber()}
	reply := func() {
		_ = s.send(&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Patched{Patched: out}}) // a daemon that has gone knows why
	}
	ctx, cancel := context.WithCancel(ctx)
	change := s.cfg.Patch
	if on := m.GetRemote(); on != "" {
		if change = s.cfg.RemotePatch; !slices.Contains(s.cfg.Remotes, on) {
			change = nil
		}
	}
	if change == nil || !s.note(m.GetNumber(), cancel) {
		cancel()
		out.Error = "it was not done: this client changes no files there, too much is done at once, or its number is in use"
		reply()
		return
	}
	s.all.Go(func() {
		defer s.end(m.GetNumber())
		r, err := change(ctx, runtime.HostPatch{
			Remote: m.GetRemote(), Text: string(m.GetText()), Modes: m.GetModes(), Only: m.GetOnly(), Digest: m.GetDigest(),
		})
		out.Digest, out.Diff, out.Id = r.Digest, text(r.Diff), r.ID
		out.Files, out.Risks, out.Merged, out.Made = texts(r.Files), texts(r.Risks), texts(r.Merged), r.Made
		for _, p := range r.Parts {
			out.Parts = append(out.Parts, &carrelv1.PatchPart{
				Path: text(p.Path), Digest: p.Digest, Shown: int64(p.Shown), Files: texts(p.Files), Risks: texts(p.Risks),
			})
		}
		if err != nil {
			out.Error = text(err.Error())
		}
		reply()
	})
}

// note notes a step that is to run; false if it cannot.
func (s *server) note(number int64, cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[number] != nil || len(s.running) >= maxAtOnce {
		return false
	}
	s.running[number] = cancel
	return true
}

// stop tells a step to end. It counts among those that run until it has.
func (s *server) stop(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[number]; cancel != nil {
		cancel()
	}
}

// end notes that a step has ended.
func (s *server) end(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[number]()
	delete(s.running, number)
}

// run runs a step where it says, and nowhere else.
func (s *server) run(ctx context.Context, m *carrelv1.AgentStep) (runtime.HostResult, error) {
	c := runtime.HostCommand{
		Remote: m.GetTarget() == string(operation.Remote), Name: m.GetName(), Argv: m.GetArgv(), ReadOnly: m.GetReadOnly(),
		Timeout: time.Duration(m.GetTimeoutMs()) * time.Millisecond, MaxOutput: int(m.GetMaxOutput()), Path: m.GetPath(),
		Job: id.Command(m.GetJob()), Limits: runtime.HostLimits{Memory: m.GetMaxMemory(), Processes: int(m.GetMaxProcesses())},
		Profile: m.GetProfile(),
	}
	if len(c.Argv) == 0 || c.Timeout <= 0 || c.MaxOutput <= 0 {
		return runtime.HostResult{}, errors.New("it was not run: it has no command, no time or no room for output")
	}
	background := func(run Run) Run {
		if c.Job != "" {
			return s.cfg.Background
		}
		return run
	}
	switch {
	case c.Job != "" && s.cfg.Background == nil:
		return runtime.HostResult{}, errors.New("it was not run: this client begins nothing in the background")
	case m.GetTarget() == string(operation.Host) && c.Name == "" && s.cfg.Local != nil:
		return reading(ctx, c, here, s.cfg.Roots, background(s.cfg.Local))
	case c.Remote && slices.Contains(s.cfg.Remotes, c.Name) && s.cfg.Remote != nil:
		return reading(ctx, c, there(s.cfg.Remote), nil, background(s.cfg.Remote))
	}
	return runtime.HostResult{}, fmt.Errorf("it was not run: this client does not serve %q", strings.TrimSpace(m.GetTarget()+" "+c.Name))
}

func (s *server) answer(m *carrelv1.AgentStep, r runtime.HostResult, err error) {
	out := &carrelv1.StepResult{
		Number: m.GetNumber(), Stdout: r.Stdout, Stderr: r.Stderr, Lost: r.Lost, Held: text(r.Held), Status: statusTo(r.Status),
		Path: text(r.Path),
	}
	if err != nil {
		out.Error = text(err.Error())
	}
	_ = s.send(&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Result{Result: out}}) // a daemon that has gone knows why
}

// text is what can be sent as a text: a message with another one would not be sent, and waited for.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func statusTo(s *execapi.Status) *carrelv1.Status {
	if s == nil {
		return nil
	}
	return &carrelv1.Status{Code: int32(s.Code), Signal: int32(s.Signal), TimedOut: s.TimedOut}
}

func texts(all []string) []string {
	var out []string
	for _, s := range all {
		out = append(out, text(s))
	}
	return out
}
