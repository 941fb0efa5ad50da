package gate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// On a full disk a change is carried out only if its row says that it makes room, and from the last part of
// the room only for administrators. Nothing else is recorded, and all of it is counted.
func TestEveryRowOnAFullDisk(t *testing.T) {
	errFull := fmt.Errorf("the disk is full: %w", errdefs.ErrResourceExhausted)
	root := principal.Principal{Kind: principal.User, UID: 0, Admin: true}
	for _, row := range operation.Table {
		for _, scarce := range []bool{false, true} {
			for _, by := range []principal.Principal{alice, root} {
				if !by.Can(row.Needs) {
					continue
				}
				b, called := &book{}, false
				records := record.NewWriter(b, nil)
				ask := answers{nil}
				full := errFull
				g := gate.New(gate.Config{
					Records: records, Judge: judge.New(nil), Ask: &ask, Log: slog.New(slog.DiscardHandler),
					Full: func() error { return full }, Scarce: func() bool { return scarce },
				})
				r := operation.Request{By: by, Op: plain(row.Name), On: demo, Verified: true}
				err := g.Do(t.Context(), r, func(context.Context, permit.Permit) (any, error) {
					called = true
					return nil, nil
				})
				change := row.Class == operation.Change
				may := !change || row.Relieves && (!scarce || by.Can(principal.Any))
				if called != may || may != (err == nil) || !may && !errors.Is(err, errFull) {
					t.Errorf("%s of %s, scarce %v: called %v, %v; want %v", row.Name, by, scarce, called, err, may)
				}
				if recorded := len(b.list) > 0; recorded != (may && change) {
					t.Errorf("%s of %s, scarce %v: records %v", row.Name, by, scarce, b.story(0))
				}
				if may && change {
					continue
				}
				full = nil
				if err := records.FlushSums(); err != nil || len(b.list) != 1 || b.list[0].Type != audit.Observed {
					t.Errorf("%s of %s was not counted: %v, %v", row.Name, by, b.story(0), err)
				}
			}
		}
	}
}

// What a person was asked about is refused too if the disk has filled up meanwhile, and so is a refusal not
// recorded.
func TestTheDiskFillsUp(t *testing.T) {
	b, ask := &book{}, answers{}
	var full error
	g := gate.New(gate.Config{
		Records: record.NewWriter(b, nil), Judge: judge.New(nil), Ask: &ask, Log: slog.New(slog.DiscardHandler),
		Full: func() error { return full },
	})
	r := operation.Request{By: alice, Op: operation.Simple(operation.PauseWorkspace), On: demo, Verified: true}
	a, err := g.Admit(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	full = fmt.Errorf("the disk is full: %w", errdefs.ErrResourceExhausted)
	if err := a.Do(t.Context(), func(context.Context, permit.Permit) (any, error) {
		t.Error("it was carried out")
		return nil, nil
	}); !errors.Is(err, full) {
		t.Error(err)
	}
	other := r
	other.On.Owner = "uid:1001"
	if _, err := g.Authorise(t.Context(), other, nil); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if story := b.story(0); !slices.Equal(story, nil) {
		t.Errorf("recorded: %v", story)
	}
}

// Who may not see a workspace and has its name is not told its key, which can be somebody's number or address.
func TestKeysAreNotTold(t *testing.T) {
	on := demo
	on.Owner, on.Key = "uid:1001", "+49 170 1234567"
	_, err := newGate(&book{}).Authorise(t.Context(),
		operation.Request{By: alice, Op: operation.Simple(operation.StatWorkspace), On: on}, nil)
	if !errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "1234567") || !strings.Contains(err.Error(), string(on.Name)) {
		t.Error(err)
	}
}
