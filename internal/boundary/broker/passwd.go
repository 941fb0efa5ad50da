package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// users changes the host's user database, by the host's own tools, one at a time.
type users struct {
	settings Settings
	mu       sync.Mutex
	// etc is /etc; tests of the readers give another directory.
	etc string
	// state is the broker's directory, for a note of the tool at work; nil for none.
	state  *os.File
	bootID string
}

// comment is the fifth field of our passwd entries.
const comment = "carrel workspace"

// lookup returns the fields of the one line for name, or nil. Two lines are an error.
func (u *users) lookup(file, name string) ([]string, error) {
	text, err := os.ReadFile(u.etc + "/" + file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the users of this host: %w", err)
	}
	return fieldsOf(string(text), name)
}

func fieldsOf(text, name string) ([]string, error) {
	var found []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) { // of thousands, so nothing is made of the others
			continue
		}
		if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); f[0] == name {
			if found != nil {
				return nil, fmt.Errorf("cannot use %s: the user database has it twice: %w", name, errdefs.ErrFailedPrecondition)
			}
			found = f
		}
	}
	if found != nil && len(found) < 3 {
		return nil, fmt.Errorf("cannot use %s: its line in the user database is cut short: %w", name, errdefs.ErrFailedPrecondition)
	}
	return found, nil
}

// NameFree is part of Effects.
func (u *users) NameFree(name id.Workspace) error {
	for _, file := range []string{"passwd", "group"} {
		f, err := u.lookup(file, string(name))
		if err != nil {
			return err
		}
		if f != nil {
			return fmt.Errorf("cannot use the name %s: /etc/%s has one already that carrel did not make: %w", name, file, errdefs.ErrAlreadyExists)
		}
	}
	return nil
}

// IDsFree is part of Effects.
func (u *users) IDsFree(ids workspace.IDs) (bool, error) {
	for _, file := range []struct {
		name     string
		required bool
		used     func(line string, ids [3]uint64) bool
	}{
		{"passwd", true, func(l string, ids [3]uint64) bool { return isID(l, 2, ids[:]...) || isID(l, 3, ids[:]...) }},
		{"group", true, func(l string, ids [3]uint64) bool { return isID(l, 2, ids[:]...) }},
		{"subuid", false, inRange},
		{"subgid", false, inRange},
	} {
		text, err := os.ReadFile(u.etc + "/" + file.name)
		if errors.Is(err, os.ErrNotExist) && !file.required {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("cannot see which ids this host uses: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if file.used(strings.TrimSpace(line), [3]uint64{uint64(ids.Executor), uint64(ids.Work), uint64(ids.Agent)}) {
				return false, nil
			}
		}
	}
	return true, nil
}

// isID says whether a field of a line, counted from 0, is one of ids.
func isID(line string, field int, ids ...uint64) bool {
	for range field {
		_, line, _ = strings.Cut(line, ":")
	}
	line, _, _ = strings.Cut(line, ":")
	n, err := strconv.ParseUint(line, 10, 32)
	return err == nil && slices.Contains(ids, n)
}

// inRange reads a line of subuid(5), name:first:count, and says whether one of ids is in it.
func inRange(line string, ids [3]uint64) bool {
	f := strings.Split(line, ":")
	if len(f) != 3 {
		return false
	}
	first, err1 := strconv.ParseUint(f[1], 10, 32)
	count, err2 := strconv.ParseUint(f[2], 10, 32)
	return err1 == nil && err2 == nil && slices.ContainsFunc(ids[:], func(id uint64) bool { return id >= first && id < first+count })
}

func (u *users) home(name id.Workspace) string { return u.settings.HomeRoot + "/" + string(name) }

// Home is part of Effects.
func (u *users) Home(name id.Workspace) string { return u.home(name) }

// verify checks that passwd, group and shadow have the entries that were asked for.
func (u *users) verify(name id.Workspace, ids workspace.IDs) error {
	n := strconv.FormatUint(uint64(ids.Work), 10)
	for _, want := range []struct {
		file   string
		fields []string
	}{
		{"passwd", []string{string(name), "x", n, n, comment, u.home(name), u.settings.Shell}},
		{"group", []string{string(name), "x", n, ""}},
	} {
		got, err := u.lookup(want.file, string(name))
		if err != nil {
			return err
		}
		if !slices.Equal(got, want.fields) {
			return fmt.Errorf("/etc/%s has %q, not %q: %w", want.file, strings.Join(got, ":"), strings.Join(want.fields, ":"),
				errdefs.ErrFailedPrecondition)
		}
	}
	if g := u.settings.WorkspaceGroup; g != "" {
		f, err := u.lookup("group", g)
		if err != nil {
			return err
		}
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), string(name)) {
			return fmt.Errorf("/etc/group does not have %s in %s: %w", name, g, errdefs.ErrFailedPrecondition)
		}
	}
	shadow, err := u.lookup("shadow", string(name))
	if err != nil {
		return err
	}
	if len(shadow) < 2 || !strings.HasPrefix(shadow[1], "!") && !strings.HasPrefix(shadow[1], "*") {
		return fmt.Errorf("/etc/shadow does not lock the password of %s: %w", name, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// complete reports whether a tool that was killed had done all its work: gshadow, which verify does not
// need, comes last.
func (u *users) complete(name id.Workspace, ids workspace.IDs) bool {
	line, err := u.lookup("gshadow", string(name))
	return u.verify(name, ids) == nil && (errors.Is(err, fs.ErrNotExist) || err == nil && line != nil)
}

// torn reports whether passwd, group or one of their shadow files has an entry for name.
func (u *users) torn(name id.Workspace) (bool, error) {
	for _, file := range []string{"passwd", "shadow", "group", "gshadow"} {
		text, err := os.ReadFile(u.etc + "/" + file)
		if errors.Is(err, fs.ErrNotExist) && strings.Contains(file, "shadow") {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("cannot read the users of this host: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			member := strings.HasPrefix(file, "g") && len(f) == 4 && strings.Contains(","+f[3]+",", ","+string(name)+",")
			if f[0] == string(name) || member {
				return true, nil
			}
		}
	}
	return false, nil
}
