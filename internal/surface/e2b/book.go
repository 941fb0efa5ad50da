package e2b

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Book keeps one text for each workspace, which goes with the workspace.
type Book interface {
	// SetSandbox keeps the text of a workspace.
	SetSandbox(ctx context.Context, name id.Workspace, text string) error
	// Sandbox returns it, "" if there is none.
	Sandbox(ctx context.Context, name id.Workspace) (string, error)
}

// row is what a workspace has as a sandbox.
type row struct {
	Template string            `json:"template,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Envs are variables of each of its commands.
	Envs map[string]string `json:"envs,omitempty"`
	// Token is the id of the token that made it.
	Token string `json:"token,omitempty"`
	// AtEnd is what becomes of it when its time is over; Wakes whether a request then has it go on.
	AtEnd atEnd `json:"at_end,omitempty"`
	Wakes bool  `json:"wakes,omitempty"`
	// Life is the time that it was made with, in seconds.
	Life int64 `json:"life,omitempty"`
	// Held: it was paused here, and has no end until it goes on.
	Held bool `json:"held,omitempty"`
}

// held reports whether the time of w stands still: it was paused here, or because its time was over.
func (r row) held(w workspace.Workspace) bool { return r.Held || r.AtEnd != ends && w.Expires.IsZero() }

// atEnd is what becomes of a sandbox whose time is over.
type atEnd string

// ends destroys it, pauses keeps it with its memory, stops without.
const (
	ends   atEnd = ""
	pauses atEnd = "pause"
	stops  atEnd = "stop"
)

// Keeps says how a workspace is kept whose time is over: paused, stopped, or not at all, which is "".
func Keeps(b Book) func(context.Context, id.Workspace) (workspace.State, error) {
	s := &Server{Options: Options{Book: b}}
	return func(ctx context.Context, name id.Workspace) (workspace.State, error) {
		r, err := s.row(ctx, string(name))
		switch {
		case err != nil:
			return "", err
		case r.AtEnd == stops:
			return workspace.StateStopped, nil
		case r.AtEnd == pauses || r.Held:
			return workspace.StatePaused, nil
		}
		return "", nil
	}
}

const (
	// maxPairs bounds the pairs in metadata and variables, and maxPair one of them in bytes.
	maxPairs, maxPair = 64, 8 << 10
	maxRow            = 128 << 10
)

// check says what cannot be kept.
func (r row) check() error {
	for what, m := range map[string]map[string]string{"metadata": r.Metadata, "envVars": r.Envs} {
		if len(m) > maxPairs {
			return wrong("%s has %d members, at most %d are allowed", what, len(m), maxPairs)
		}
		for k, v := range m {
			if k == "" || len(k)+len(v) > maxPair {
				return wrong("a member of %s has an empty name or more than %d bytes", what, maxPair)
			}
		}
	}
	return nil
}

// put keeps the row of a workspace.
func (s *Server) put(ctx context.Context, name string, r row) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(text) > maxRow {
		return wrong("metadata and envVars have %d bytes together, at most %d are allowed", len(text), maxRow)
	}
	return s.Book.SetSandbox(ctx, id.Workspace(name), string(text))
}

// row returns the row of a workspace, an empty one if it was not made here.
func (s *Server) row(ctx context.Context, name string) (r row, err error) {
	text, err := s.Book.Sandbox(ctx, id.Workspace(name))
	if err != nil || text == "" {
		return r, err
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return row{}, fmt.Errorf("cannot read what %s has as a sandbox: %w: %w", name, err, errdefs.ErrDataLoss)
	}
	return r, nil
}
