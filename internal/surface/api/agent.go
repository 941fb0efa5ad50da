package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

type agents struct{ *Server }

// Bounds of what a client that serves hosts says.
const (
	maxRemotes    = 4096
	maxRemoteName = 64
	maxHeld       = 1 << 10
	maxStepError  = 4 << 10
	maxAs         = 1 << 10
)

type serving = connect.BidiStream[carrelv1.ServeRequest, carrelv1.ServeResponse]

// Serve hands the steps of an agent on hosts to the client that serves them.
func (s agents) Serve(ctx context.Context, stream *serving) error {
	defer stopReading(ctx) // as of Stream
	return errcode.ToWire(s.serve(ctx, stream))
}

func (s agents) serve(ctx context.Context, stream *serving) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && first.GetStart() == nil {
		return invalid("start", "the first message is not a start", "send one that says the workspace and the task")
	}
	if err != nil {
		return err
	}
	start := first.GetStart()
	ref, task, err := parseCommand(start.GetWorkspace(), start.GetTaskId())
	if err != nil {
		return err
	}
	if err := checkRemotes(start.GetRemotes()); err != nil {
		return err
	}
	if len(start.GetPlace()) > maxDigest {
		return invalid("place", fmt.Sprintf("it has %d bytes", len(start.GetPlace())), fmt.Sprintf("give at most %d", maxDigest))
	}
	if err := checkAs(start); err != nil {
		return err
	}
	profile := cmp.Or(start.GetProfile(), operation.Unheld)
	if !slices.Contains(operation.Profiles, profile) {
		return invalid("profile", fmt.Sprintf("there is no %.40q", profile), "name one of "+strings.Join(operation.Profiles, ", "))
	}
	h := &hosts{
		sender: sender[carrelv1.ServeResponse]{await: s.await(ctx), stream: stream}, local: start.GetLocal(), remotes: start.GetRemotes(),
		patches: start.GetPatches(), remotePatches: start.GetRemotePatches(), profile: profile, place: start.GetPlace(),
		as: start.GetAs(), remotesAs: start.GetRemotesAs(),
		waiting: map[int64]chan<- *carrelv1.ServeRequest{},
	}
	leave, over, err := s.gate.ServeHosts(ctx, authn.FromContext(ctx), ref, task, h)
	if err != nil {
		return err
	}
	defer h.leave()
	defer leave()
	gone := make(chan error, 1)
	if err := h.send(&carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Serving{Serving: true}}); err != nil {
		return err
	}
	closing := make(chan struct{})
	defer s.untilClosing(ctx, sync.OnceFunc(func() { close(closing) }))()
	go func() { gone <- h.receive(stream) }()
	select {
	case err = <-gone:
		return errors.Join(ended(ctx), err)
	case <-over:
		return nil
	case <-closing:
		return fmt.Errorf("cannot serve task %s any longer: the daemon is stopping, and the task ends with it: %w", task, errdefs.ErrUnavailable)
	}
}

// checkAs checks what a client says of where steps run: a person reads it.
func checkAs(start *carrelv1.ServeStart) error {
	if len(start.GetRemotesAs()) > maxRemotes {
		return invalid("remotes_as", fmt.Sprintf("there are %d", len(start.GetRemotesAs())), fmt.Sprintf("say it of at most %d", maxRemotes))
	}
	bad := func(s string) bool {
		return len(s) > maxAs || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
	}
	if bad(start.GetAs()) {
		return invalid("as", "it is long or no text on one line", fmt.Sprintf("give at most %d bytes", maxAs))
	}
	for name, text := range start.GetRemotesAs() {
		if bad(text) {
			return invalid("remotes_as", fmt.Sprintf("what is said of %.80q is long or no text on one line", name),
				fmt.Sprintf("give at most %d bytes", maxAs))
		}
	}
	return nil
}

func checkRemotes(names []string) error {
	if len(names) > maxRemotes {
		return invalid("remotes", fmt.Sprintf("there are %d", len(names)), fmt.Sprintf("name at most %d", maxRemotes))
	}
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		if n == "" || len(n) > maxRemoteName || seen[n] || slices.ContainsFunc([]byte(n), func(c byte) bool { return c <= ' ' || c >= 0x7f }) {
			return invalid("remotes", fmt.Sprintf("%.80q is empty, long, no plain name or there twice", n), "name each host once")
		}
		seen[n] = true
	}
	return nil
}

// hosts are the hosts that one client serves.
type hosts struct {
	sender[carrelv1.ServeResponse]

	local, patches, remotePatches bool
	profile, place, as            string
	remotesAs                     map[string]string
	remotes                       []string

	steps   sync.Mutex
	last    int64
	waiting map[int64]chan<- *carrelv1.ServeRequest
	gone    bool
}

var _ runtime.Hosts = (*hosts)(nil)

func (h *hosts) Local() bool { return h.local }

// Profile implements runtime.Hosts.
func (h *hosts) Profile() string { return h.profile }

func (h *hosts) Remotes() []string { return h.remotes }

// Place implements runtime.Hosts.
func (h *hosts) Place() string { return h.place }

// As implements runtime.Hosts.
func (h *hosts) As(remote string) string {
	if remote != "" {
		return h.remotesAs[remote]
	}
	return h.as
}

// errGone is that the client has gone, which says nothing of the command.
func errGone() error {
	return fmt.Errorf("cannot say how the step ended: the client that served it has gone: %w", errdefs.ErrUnavailable)
}

// Patches implements runtime.Hosts.
func (h *hosts) Patches() bool { return h.patches }

// RemotePatches implements runtime.Hosts.
func (h *hosts) RemotePatches() bool { return h.remotePatches }

// RunOn implements runtime.Hosts.
func (h *hosts) RunOn(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
	m, err := h.ask(ctx, func(number int64) *carrelv1.ServeResponse {
		return &carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Step{Step: &carrelv1.AgentStep{
			Number: number, Target: targetOf(c), Name: c.Name, Argv: c.Argv, ReadOnly: c.ReadOnly, TimeoutMs: c.Timeout.Milliseconds(),
			MaxOutput: int64(c.MaxOutput), Path: c.Path, Job: string(c.Job), MaxMemory: c.Limits.Memory, MaxProcesses: int64(c.Limits.Processes),
			Profile: c.Profile,
		}}}
	})
	if err == nil && m.GetResult() == nil {
		err = errWrong()
	}
	if err != nil {
		return runtime.HostResult{}, err
	}
	return resultFrom(m.GetResult(), c.MaxOutput)
}

// targetOf is the kind of target of a command on the wire.
func targetOf(c runtime.HostCommand) string {
	if c.Remote {
		return string(operation.Remote)
	}
	return string(operation.Host)
}

// Patch implements runtime.Hosts.
func (h *hosts) Patch(ctx context.Context, p runtime.HostPatch) (out runtime.HostPatched, err error) {
	m, err := h.ask(ctx, func(number int64) *carrelv1.ServeResponse {
		return &carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Patch{Patch: &carrelv1.AgentPatch{
			Number: number, Text: []byte(p.Text), Modes: p.Modes, Digest: p.Digest, Only: p.Only, Remote: p.Remote,
		}}}
	})
	if err != nil {
		return out, err
	}
	r := m.GetPatched()
	if text := r.GetError(); text != "" {
		err = fmt.Errorf("%s: %w", cutText(text, maxStepError), errdefs.ErrUnavailable)
	}
	switch {
	case r == nil, len(r.GetDigest()) > maxDigest:
		return out, errWrong()
	case err == nil && (r.GetDigest() == "" || p.Digest != "" && r.GetDigest() != p.Digest):
		return out, errWrong()
	case len(r.GetDiff()) > maxDiff || len(r.GetFiles()) > maxFiles || len(r.GetRisks()) > maxFiles || len(r.GetId()) > maxDigest ||
		len(r.GetParts()) > maxFiles || len(r.GetMerged()) > maxFiles || len(r.GetMade()) > maxDigest:
		return out, fmt.Errorf("cannot use the change: it is of more than %d files, or %d bytes where it is shown: %w", maxFiles, maxDiff,
			errdefs.ErrResourceExhausted)
	}
	for _, s := range slices.Concat(r.GetFiles(), r.GetRisks(), r.GetMerged()) {
		if len(s) > maxPath {
			return out, errWrong()
		}
	}
	out = runtime.HostPatched{
		Digest: r.GetDigest(), Diff: r.GetDiff(), Files: r.GetFiles(), Risks: r.GetRisks(), ID: r.GetId(), Merged: r.GetMerged(),
		Made: r.GetMade(),
	}
	for _, part := range r.GetParts() {
		out.Parts = append(out.Parts, runtime.PatchPart{
			Path: part.GetPath(), Digest: part.GetDigest(), Shown: int(part.GetShown()), Files: part.GetFiles(), Risks: part.GetRisks(),
		})
	}
	return out, err
}

// Bounds of what a client says of a change to files.
const (
	maxDigest = 128
	maxDiff   = 64 << 10
	maxFiles  = 128 // a file that is moved counts twice
	maxPath   = 4 << 10
)

// errWrong is an answer to something else.
func errWrong() error {
	return fmt.Errorf("cannot use what the client that serves it says: it is no answer to what was asked: %w", errdefs.ErrUnavailable)
}

// ask sends a message and waits for its answer.
func (h *hosts) ask(ctx context.Context, message func(number int64) *carrelv1.ServeResponse) (*carrelv1.ServeRequest, error) {
	answer := make(chan *carrelv1.ServeRequest, 1)
	h.steps.Lock()
	if h.gone {
		h.steps.Unlock()
		return nil, errGone()
	}
	h.last++
	number := h.last
	h.waiting[number] = answer
	h.steps.Unlock()
	defer func() {
		h.steps.Lock()
		delete(h.waiting, number)
		h.steps.Unlock()
	}()
	if err := h.send(message(number)); err != nil {
		return nil, errGone()
	}
	select {
	case m := <-answer:
		if m == nil {
			return nil, errGone()
		}
		return m, nil
	case <-ctx.Done():
		_ = h.send(&carrelv1.ServeResponse{Message: &carrelv1.ServeResponse_Cancel{Cancel: number}}) // one who has gone has ended it
		return nil, fmt.Errorf("cannot say how the step ended: it was told to stop: %w", context.Cause(ctx))
	}
}

// receive hands results to those who wait for them until the client sends no more.
func (h *hosts) receive(stream *serving) error {
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var number int64
		switch x := m.GetMessage().(type) {
		case *carrelv1.ServeRequest_Result:
			number = x.Result.GetNumber()
		case *carrelv1.ServeRequest_Patched:
			number = x.Patched.GetNumber()
		default:
			return invalid("message", "it is a second start or empty", "send results after the start")
		}
		h.steps.Lock()
		to, ok := h.waiting[number]
		delete(h.waiting, number)
		known := number > 0 && number <= h.last
		h.steps.Unlock()
		switch {
		case ok:
			to <- m
		case !known:
			return invalid("result.number", fmt.Sprintf("there is no step %d", number), "send one result for each step")
		}
	}
}

// leave tells those who wait that nothing comes any more, and sends nothing more.
func (h *hosts) leave() {
	h.close()
	h.steps.Lock()
	defer h.steps.Unlock()
	h.gone = true
	for n, to := range h.waiting {
		close(to)
		delete(h.waiting, n)
	}
}

// resultFrom is what a client says of a step, within its bounds.
func resultFrom(r *carrelv1.StepResult, most int) (out runtime.HostResult, err error) {
	out = runtime.HostResult{Lost: max(r.GetLost(), 0), Held: cutText(r.GetHeld(), maxHeld), Path: cutText(r.GetPath(), maxPath)}
	for _, s := range []struct {
		from []byte
		to   *[]byte
	}{{r.GetStdout(), &out.Stdout}, {r.GetStderr(), &out.Stderr}} {
		*s.to = s.from[:min(len(s.from), most)]
		out.Lost += int64(len(s.from) - len(*s.to))
	}
	if x := r.GetStatus(); x != nil {
		out.Status = &execapi.Status{Code: int(x.GetCode()), Signal: int(x.GetSignal()), TimedOut: x.GetTimedOut()}
	}
	if text := r.GetError(); text != "" {
		err = fmt.Errorf("%s: %w", cutText(text, maxStepError), errdefs.ErrUnavailable)
	}
	return out, err
}

// cutText is the first bytes of a text.
func cutText(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return s
}
