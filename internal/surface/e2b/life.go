package e2b

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// The time of a sandbox, and what becomes of it when that is over: it is destroyed, or kept until somebody connects to it. The
// time of one that is paused stands still, as at E2B: it has no end until it goes on.

// lifeBody is what says how long a sandbox lives from now on, and whether a pause is with its memory.
type lifeBody struct {
	Timeout  *int64 `json:"timeout"`
	Duration *int64 `json:"duration"`
	Memory   *bool  `json:"memory"`
}

// withoutMemory: what runs in the sandbox ends, and its files stay.
func (b lifeBody) withoutMemory() bool { return b.Memory != nil && !*b.Memory }

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request) error {
	var body lifeBody
	if err := read(r, &body); err != nil {
		return err
	}
	if body.Timeout != nil && *body.Timeout == 0 { // it is to go: as soon as can be
		*body.Timeout = int64(workspace.MinTTL / time.Second)
	}
	return s.prolong(w, r, body.Timeout)
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request) error {
	var body lifeBody
	if err := read(r, &body); err != nil {
		return err
	}
	return s.prolong(w, r, body.Duration)
}

func (s *Server) prolong(w http.ResponseWriter, r *http.Request, seconds *int64) error {
	ws, kept, err := s.one(r)
	if err != nil {
		return err
	}
	life, err := timeout(seconds, defaultTimeout)
	if err != nil {
		return err
	}
	if ws.State != workspace.StateRunning && kept.held(ws) {
		return notFound("no sandbox %q runs: it is paused, and has no end; connect to it", ws.Name)
	}
	if _, err := s.Gate.Update(r.Context(), authn.FromContext(r.Context()), string(ws.Name), workspace.Change{TTL: life}); err != nil {
		return err
	}
	answer(w, http.StatusNoContent, nil)
	return nil
}

// pause keeps a sandbox until somebody connects to it.
func (s *Server) pause(w http.ResponseWriter, r *http.Request) error {
	var body lifeBody
	if err := read(r, &body); err != nil {
		return err
	}
	give, err := s.lives.Take(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	defer give()
	ws, kept, err := s.one(r)
	if err != nil {
		return err
	}
	if ws.State == workspace.StatePaused || ws.State != workspace.StateRunning && kept.held(ws) {
		failAs(w, http.StatusConflict, "cannot pause "+string(ws.Name)+": it is paused")
		return nil
	}
	// First, so that it is kept whatever comes between this and the end of its time; and not for who may not pause it.
	kept.Held = !ws.Expires.IsZero()
	marked := kept.Held && authn.FromContext(r.Context()).Can(principal.Lifecycle)
	if marked {
		if err := s.put(r.Context(), string(ws.Name), kept); err != nil {
			return err
		}
	}
	if err := s.putAside(r.Context(), ws, kept, body.withoutMemory()); err != nil {
		if !marked {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
		defer cancel()
		kept.Held = false
		return errors.Join(err, s.put(ctx, string(ws.Name), kept))
	}
	answer(w, http.StatusNoContent, nil)
	return nil
}

// putAside pauses or stops a workspace, and takes the end off its life.
func (s *Server) putAside(ctx context.Context, ws workspace.Workspace, kept row, stop bool) (err error) {
	p, name := authn.FromContext(ctx), string(ws.Name)
	switch {
	case stop:
		_, err = s.Gate.Stop(ctx, p, name)
	case ws.State == workspace.StateRunning:
		if _, err = s.Gate.Pause(ctx, p, name); errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
			// SDKs take 409 for "it is paused". If it runs, it has no control group to pause it by.
			if now, lerr := s.Gate.Get(ctx, p, name); lerr == nil && now.State == workspace.StateRunning {
				err = notImplemented("%s; a pause without memory (mode: \"filesystem\") works", errtext.Text(err))
			}
		}
	}
	if err == nil && kept.Held {
		_, err = s.Gate.Update(ctx, p, name, workspace.Change{TTL: workspace.Forever})
	}
	return err
}

// connect has a sandbox run, and lives at least so long from now on.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) error {
	var body lifeBody
	if err := read(r, &body); err != nil {
		return err
	}
	life, err := timeout(body.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	give, err := s.lives.Take(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	defer give()
	ws, kept, err := s.one(r)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if ws.State != workspace.StateRunning {
		status = http.StatusCreated
	}
	if err := s.goOn(r.Context(), ws, kept, life, body.withoutMemory()); err != nil {
		return err
	}
	answer(w, status, s.handle(r.Context(), ws, kept))
	return nil
}

// goOn has a sandbox run, in its turn. It lives at least so long from now on.
func (s *Server) goOn(ctx context.Context, ws workspace.Workspace, kept row, life time.Duration, anew bool) (err error) {
	p, name := authn.FromContext(ctx), string(ws.Name)
	switch ws.State {
	case workspace.StateRunning:
	case workspace.StatePaused:
		if !anew {
			_, err = s.Gate.Resume(ctx, p, name)
			break
		}
		if _, err = s.Gate.Stop(ctx, p, name); err != nil {
			break
		}
		fallthrough
	default:
		_, err = s.Gate.Start(ctx, p, name)
	}
	if err == nil && (kept.held(ws) || !ws.Expires.IsZero() && time.Now().Add(life).After(ws.Expires)) {
		var now workspace.Workspace
		now, err = s.Gate.Update(ctx, p, name, workspace.Change{TTL: life})
		switch { // its time was over a moment before
		case err != nil:
		case now.State == workspace.StatePaused:
			_, err = s.Gate.Resume(ctx, p, name)
		case now.State == workspace.StateStopped:
			_, err = s.Gate.Start(ctx, p, name)
		}
	}
	if err == nil && kept.Held {
		kept.Held = false
		err = s.put(ctx, name, kept)
	}
	return err
}

// leastAwake is how long a sandbox lives at least that a request has woken.
const leastAwake = 5 * time.Minute

// awake reports whether a sandbox that does not run may be used: it was stopped because nothing ran in it, so that whatever
// comes starts it, or it is one that a request wakes, which it is then.
func (s *Server) awake(r *http.Request, ws workspace.Workspace) (bool, error) {
	ctx, name := r.Context(), string(ws.Name)
	kept, err := s.row(ctx, name)
	switch {
	case err != nil:
		return false, err
	case ws.State != workspace.StatePaused && !kept.held(ws):
		return true, nil
	case !kept.Wakes || r.URL.Path == "/health": // who asks whether it runs does not want it to
		return false, nil
	}
	give, err := s.lives.Take(ctx, name)
	if err != nil {
		return false, err
	}
	defer give()
	// Another may have woken it meanwhile.
	if ws, err = s.Gate.Get(ctx, authn.FromContext(ctx), name); err == nil {
		kept, err = s.row(ctx, name)
	}
	if err == nil && ws.State != workspace.StateRunning {
		err = s.goOn(ctx, ws, kept, max(leastAwake, time.Duration(kept.Life)*time.Second), false)
	}
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
