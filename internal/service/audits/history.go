package audits

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

const (
	// historyRecords is how many of the newest records of the log History looks at, whosever they are, so that one request
	// costs no more on a log that is years old.
	historyRecords = 20000
	// historyWords bounds the words of an entry, and its error, in bytes.
	historyWords = 1 << 10
)

// errEnough ends a walk.
var errEnough = errors.New("enough is read")

// History returns what was done in the workspace that ref names, oldest first, for who may list its commands. What was done
// in one of the same name that was destroyed is not in it.
func (a *Auditing) History(ctx context.Context, p principal.Principal, ref string, want workspace.EntriesWanted) (
	[]workspace.Entry, error,
) {
	var made time.Time
	ask := operation.Request{By: p, Op: operation.Simple(operation.ListCommands)}
	on, err := a.cfg.Gate.Authorise(ctx, ask, func() (operation.Target, error) {
		on, since, err := a.cfg.Find(ref)
		made = since
		return on, err
	})
	if err != nil || want.Most <= 0 {
		return nil, err
	}
	if want.From.Before(made) {
		want.From = made
	}
	first, err := a.firstSince(ctx, want.From)
	if err != nil {
		return nil, err
	}
	h := history{a: a, want: want, name: on.On().Name, open: map[int64]*action{}}
	h.mark = []byte(`"workspace":"` + string(h.name) + `"`) // a name needs no escapes
	err = a.cfg.Audit.Read(ctx, first, 0, false, func(lines [][]byte) error { return h.read(ctx, lines) })
	if errors.Is(err, errEnough) {
		err = nil
	}
	return h.found[max(0, len(h.found)-want.Most):], err
}

// firstSince is the number of the first record from a time on, of those that are looked at.
func (a *Auditing) firstSince(ctx context.Context, t time.Time) (int64, error) {
	head := a.cfg.Audit.Head().Seq
	oldest := max(head-historyRecords+1, 1)
	var failed error
	n := sort.Search(int(head-oldest+1), func(i int) bool {
		var r struct {
			Time time.Time `json:"time"`
		}
		if err := a.recordAt(ctx, oldest+int64(i), &r); err != nil {
			failed = err
		}
		return !r.Time.Before(t)
	})
	return oldest + int64(n), failed
}

// recordAt reads the first record that is kept with a number of at least seq.
func (a *Auditing) recordAt(ctx context.Context, seq int64, into any) error {
	err := a.cfg.Audit.Read(ctx, seq, 0, false, func(lines [][]byte) error {
		return errors.Join(json.Unmarshal(lines[0], into), errEnough)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// action is what an entry shows of an operation in canonical form.
type action struct {
	Kind    operation.Name `json:"kind"`
	Command id.Command     `json:"command"`
	Argv    []string       `json:"argv"`
	Path    string         `json:"path"`
}

// history is a walk through the log.
type history struct {
	a     *Auditing
	want  workspace.EntriesWanted
	name  id.Workspace
	mark  []byte
	open  map[int64]*action // the intents that have no outcome yet
	found []workspace.Entry
}

func (h *history) read(ctx context.Context, lines [][]byte) error {
	for _, line := range lines {
		if !bytes.Contains(line, h.mark) {
			continue
		}
		e, err := h.entry(ctx, line)
		if err != nil {
			return err
		}
		if e == nil || e.Time.Before(h.want.From) || !h.want.Until.IsZero() && !e.Time.Before(h.want.Until) || !h.want.Take(e) {
			continue
		}
		h.found = append(h.found, *e)
		switch full := len(h.found) - h.want.Most; {
		case full == 0 && !h.want.Newest:
			return errEnough
		case full >= h.want.Most: // moved in one go, so that each costs the same
			h.found = slices.Delete(h.found, 0, full)
		}
	}
	return nil
}

// line is what is read of a record.
type line struct {
	Seq       int64           `json:"seq"`
	Time      time.Time       `json:"time"`
	Type      audit.Type      `json:"type"`
	Principal string          `json:"principal"`
	Workspace id.Workspace    `json:"workspace"`
	Intent    int64           `json:"intent"`
	Action    json.RawMessage `json:"action"`
	Policy    string          `json:"policy"`
	Status    string          `json:"status"`
	Error     string          `json:"error"`
	Data      json.RawMessage `json:"data"`
}

// entry reads a line, nil if it is not one of the workspace's that is shown.
func (h *history) entry(ctx context.Context, text []byte) (*workspace.Entry, error) {
	var r line
	if json.Unmarshal(text, &r) != nil || r.Workspace != h.name {
		return nil, nil
	}
	var did *action
	switch r.Type {
	case audit.Intent:
		did = h.action(r.Action)
		h.open[r.Seq] = did
	case audit.Outcome:
		var err error
		if did, err = h.intent(ctx, r.Intent); err != nil {
			return nil, err
		}
	case audit.Denial:
		did = h.action(r.Action)
		if r.Policy == "" { // refused before it was judged, maybe of somebody whose words are no business of the workspace's owner
			did = &action{Kind: did.Kind}
		}
	case audit.Request:
		did = h.action(r.Action)
	case audit.Read:
		if did = h.action(r.Action); did.Kind == operation.ReadOutput { // who shows entries reads output beside them
			return nil, nil
		}
	default:
		return nil, nil
	}
	var data struct {
		Status *workspace.Exit `json:"status"`
	}
	_ = json.Unmarshal(r.Data, &data) // others have other members
	e := &workspace.Entry{
		Time: r.Time, Seq: r.Seq, Intent: r.Intent, Type: string(r.Type), Status: r.Status, Principal: r.Principal, Error: h.clean(r.Error),
		Kind: string(did.Kind), Command: did.Command, Words: did.Argv, Exit: data.Status,
	}
	if did.Path != "" {
		e.Words = []string{did.Path}
	}
	return e, nil
}

// clean is text without the secrets that are known by now, and then cut off.
func (h *history) clean(text string) string {
	return record.ClipTo(h.a.cfg.Records.Redactor().Text(text), historyWords)
}

// action reads an operation in canonical form, as it is shown.
func (h *history) action(canonical []byte) *action {
	var did action
	if json.Unmarshal(canonical, &did) != nil {
		return &action{Kind: operation.NameIn(canonical)}
	}
	did.Argv = record.FirstBytes(h.a.cfg.Records.Redactor().Argv(did.Argv), historyWords)
	did.Path = h.clean(did.Path)
	return &did
}

// intent is what an outcome is of. One from before the walk is looked up, and one that is no longer kept is empty.
func (h *history) intent(ctx context.Context, seq int64) (*action, error) {
	if did := h.open[seq]; did != nil {
		delete(h.open, seq)
		return did, nil
	}
	var r line
	if err := h.a.recordAt(ctx, seq, &r); err != nil || r.Seq != seq {
		return &action{}, err
	}
	return h.action(r.Action), nil
}
