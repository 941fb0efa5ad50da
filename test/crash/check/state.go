package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/store"
	_ "github.com/carrel-dev/carrel/internal/state/store/sqlite" // it opens the database
)

const destroyed = "destroyed"

// entry holds the fields of a line of the broker's ledger that are used here.
type entry struct {
	Name     string           `json:"name"`
	State    string           `json:"state"`
	IDs      workspace.IDs    `json:"ids"`
	Limits   workspace.Limits `json:"limits"`
	Retained string           `json:"retained"`
	Egress   bool             `json:"egress"` // it was started with a way out
}

func (in Instance) ledger() (map[string]entry, error) {
	all := map[string]entry{}
	b, err := os.ReadFile(filepath.Join(in.Data, "broker", "ledger.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the broker's ledger: %w", err)
	}
	for line := range bytes.Lines(b) {
		var l struct {
			Workspace *entry `json:"workspace"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("cannot read the broker's ledger: %w", err)
		}
		if l.Workspace != nil {
			all[l.Workspace.Name] = *l.Workspace
		}
	}
	return all, nil
}

// database reads the living workspaces from a copy of the daemon's database.
func (in Instance) database(ctx context.Context) (all []store.Workspace, err error) {
	path := filepath.Join(in.Data, "daemon", "carrel.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "carrel-check-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a copy
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "carrel.db"+suffix), b, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot copy the database: %w", err)
		}
	}
	s, err := store.Open(ctx, filepath.Join(dir, "carrel.db"))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Workspaces(), nil
}

// homes looks at what lies in homes, tmp and retained.
func (v *view) homes(context.Context) error {
	for dir, kind := range map[string]Kind{"homes": Home, "tmp": Tmp} {
		all, err := names(filepath.Join(v.in.Data, dir))
		if err != nil {
			return err
		}
		for _, name := range all {
			if !v.live(name) {
				v.found(kind, "%s/%s", dir, name)
			}
		}
		for _, name := range v.want.Live {
			if !slices.Contains(all, name) {
				v.found(Lost, "%s has no %s/%s", name, dir, name)
			}
		}
	}
	var st unix.Stat_t
	for _, name := range v.want.Live {
		path := filepath.Join(v.in.Data, "homes", name)
		if err := unix.Lstat(path, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != v.ledger[name].IDs.Work) {
			v.found(Lost, "%s is no directory of uid %d", path, v.ledger[name].IDs.Work)
		}
	}
	all, err := names(filepath.Join(v.in.Data, "retained"))
	if err != nil {
		return err
	}
	for _, kept := range all {
		path := filepath.Join(v.in.Data, "retained", kept)
		name, _, _ := strings.Cut(kept, ".")
		// The name may have been given again since; the id has not.
		if e := v.ledger[name]; e.State == destroyed && e.Retained != path && kept == fmt.Sprintf("%s.%d", name, e.IDs.Executor) ||
			e.Name == "" && !slices.Contains(v.want.Retained, path) {
			v.found(Retained, "%s", path)
		}
		if err := unix.Lstat(path, &st); err != nil || st.Uid != 0 || st.Mode&0o077 != 0 {
			v.found(Retained, "%s can be entered by others than root", path)
		}
	}
	return nil
}

// files looks for sockets, proofs and half-written files.
func (v *view) files(context.Context) error {
	sockets, err := names(filepath.Join(v.in.Runtime, "x"))
	if err != nil {
		return err
	}
	for _, s := range sockets {
		if name, ok := strings.CutSuffix(s, ".sock"); !ok || !v.runs(name) {
			v.found(Socket, "%s/x/%s", v.in.Runtime, s)
		}
	}
	for _, name := range v.want.Live {
		if v.runs(name) && !slices.Contains(sockets, name+".sock") {
			v.found(Lost, "%s is %s and has no socket", name, v.ledger[name].State)
		}
	}
	for _, dir := range []string{
		v.in.Data, v.in.Runtime, filepath.Join(v.in.Data, "broker"), filepath.Join(v.in.Data, "broker", "reports"),
		filepath.Join(v.in.Data, "daemon"), filepath.Join(v.in.Data, "daemon", "audit"),
	} {
		all, err := names(dir)
		if err != nil {
			return err
		}
		for _, name := range all {
			switch {
			case strings.HasPrefix(name, ".new-"), strings.HasSuffix(name, ".new"):
				v.found(Temporary, "%s/%s", dir, name)
			case filepath.Base(dir) == "reports" && !v.runs(name):
				v.found(Temporary, "%s/%s is of what does not run", dir, name)
			}
		}
	}
	return nil
}

// settled are the states that the ledger may have of a workspace that is settled in the database.
var settled = []string{string(workspace.StateStopped), string(workspace.StateRunning), string(workspace.StatePaused)}

// lost compares what database and ledger say of each workspace.
func (v *view) lost(ctx context.Context) error {
	rows, err := v.in.database(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, w := range rows {
		name := string(w.Name)
		known[name] = true
		e, ok := v.ledger[name]
		switch {
		case !ok:
			v.found(Lost, "the broker does not know %s", name)
		case w.Phase != workspace.Settled || !slices.Contains(settled, e.State):
			v.found(Lost, "%s is %s in the ledger and %s in the database", name, e.State, w.Phase)
		case e.Limits != w.Limits:
			v.found(Lost, "%s has other limits in the ledger than in the database", name)
		}
		if !v.live(name) {
			v.found(Lost, "%s is in the database", name)
		}
	}
	for name, e := range v.ledger {
		if e.State != destroyed && (!known[name] || !v.live(name)) {
			v.found(Lost, "the ledger has %s as %s", name, e.State)
		}
	}
	for _, name := range v.want.Live {
		if !known[name] {
			v.found(Lost, "the database does not know %s", name)
		}
	}
	return nil
}

// audit walks the record. Every intent must have been closed.
func (v *view) audit(ctx context.Context) error {
	path := filepath.Join(v.in.Data, "daemon", "audit", "audit.jsonl")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if len(v.want.Live) > 0 {
			v.found(Audit, "there is no record")
		}
		return nil
	}
	verdict, err := audit.VerifyFile(ctx, path, audit.Head{})
	if err != nil {
		return err
	}
	if verdict.Bad != nil {
		v.found(Audit, "line %d: %s", verdict.Bad.Line, verdict.Bad.Detail)
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	open := map[int64]bool{}
	for line := range bytes.Lines(bytes.TrimRight(b, "\x00")) { // zeros follow the lines
		r, err := audit.Decode(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return err
		}
		switch r.Type {
		case audit.Intent:
			open[r.Seq] = true
		case audit.Outcome:
			if !open[r.Intent] {
				v.found(Audit, "intent %d has two outcomes or none of its own", r.Intent)
			}
			delete(open, r.Intent)
		default: // stands by itself
		}
	}
	for seq := range open {
		v.found(Audit, "intent %d has no outcome", seq)
	}
	return nil
}

// twice looks for a line that stands twice in the files of tokens.
func (v *view) twice(context.Context) error {
	seen := map[string]bool{}
	for _, path := range v.want.Tokens {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if seen[line] {
				v.found(Twice, "%s", strings.TrimSpace(line))
			}
			seen[line] = true
		}
	}
	return nil
}

// directories looks for what a purge takes away.
func (v *view) directories(context.Context) error {
	if !v.want.Gone {
		return nil
	}
	for _, dir := range []string{v.in.Data, v.in.Runtime} {
		if _, err := os.Lstat(dir); err == nil {
			v.found(Directory, "%s", dir)
		}
	}
	return nil
}
