package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
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

// tools are the programs that are run, and nothing else is: the Debian package that has
// it, and absolute paths, of which the first that exists is taken.
var tools = map[string]struct {
	from  string
	paths []string
}{
	"useradd":  {"passwd", []string{"/usr/sbin/useradd", "/sbin/useradd", "/usr/bin/useradd"}},
	"userdel":  {"passwd", []string{"/usr/sbin/userdel", "/sbin/userdel", "/usr/bin/userdel"}},
	"groupdel": {"passwd", []string{"/usr/sbin/groupdel", "/sbin/groupdel", "/usr/bin/groupdel"}},
	"mke2fs":   {"e2fsprogs", []string{"/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs"}},
}

// tool finds a program that only root can have put there.
func tool(name string) (string, error) {
	t := tools[name]
	for _, path := range t.paths {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		if st.Uid != 0 || st.Mode&0o022 != 0 {
			return "", fmt.Errorf("cannot use %s: others than root can change it; chown root and chmod go-w it: %w", path, errdefs.ErrFailedPrecondition)
		}
		return path, nil
	}
	return "", fmt.Errorf("cannot find %s in %s; apt-get install %s: %w", name, strings.Join(t.paths, ", "), t.from, errdefs.ErrFailedPrecondition)
}

// userAddArgs is the whole of what useradd is told. The id ranges are set to the one id,
// so that user and group get it or nothing; no subordinate ids are handed out.
func userAddArgs(name id.Workspace, n uint32, home, shell, group string) []string {
	v := strconv.FormatUint(uint64(n), 10)
	args := []string{
		"-M", "-l", "-U", "-u", v, "-d", home, "-s", shell, "-c", comment,
		"-K", "UID_MIN=" + v, "-K", "UID_MAX=" + v, "-K", "GID_MIN=" + v, "-K", "GID_MAX=" + v,
		"-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0",
	}
	if group != "" {
		args = append(args, "-G", group)
	}
	return append(args, string(name))
}

// command is a run of a tool with an empty environment, and what it says. It ends with the
// broker: done later, nobody would know of it. The signal comes when the thread that
// started it ends, so that thread has to stay.
func command(ctx context.Context, path string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, path, args...)
	c.Dir, c.Env, c.Stdout, c.Stderr = "/", []string{}, &out, &out
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c, &out
}

// once runs a tool that has nothing to do with the user database.
func once(ctx context.Context, name string, args ...string) (string, error) {
	path, err := tool(name)
	if err != nil {
		return "", err
	}
	c, out := command(ctx, path, args...)
	runtime.LockOSThread()
	err = c.Run()
	runtime.UnlockOSThread()
	return strings.TrimSpace(out.String()), err
}

// run runs a tool, and again while someone else holds the lock on the user database.
func (u *users) run(ctx context.Context, name string, args ...string) error {
	path, err := tool(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, userTimeout)
	defer cancel()
	wait := 10 * time.Millisecond
	for {
		c, out := command(ctx, path, args...)
		_ = u.noteTool(0) // a broker that ends before it knows the process has said so
		runtime.LockOSThread()
		err := c.Start()
		if err == nil {
			_ = u.noteTool(c.Process.Pid) // without room on the disk too a workspace can be destroyed
			u.sweepAfter(c.Process.Pid)
			err = c.Wait()
		}
		u.forgetTool()
		runtime.UnlockOSThread()
		if err == nil {
			return nil
		}
		said := strings.TrimSpace(out.String())
		locked := strings.Contains(said, "try again later") || strings.Contains(said, "cannot lock")
		if ctx.Err() == nil && !locked {
			return fmt.Errorf("%s failed: %s: %w", name, firstOf(said, err.Error()), errdefs.ErrInternal)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%s did not get the lock on the user database in time: %s; %s; then try again: %w",
				name, firstOf(said, err.Error()), u.holders(), errdefs.ErrUnavailable)
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// AddUser is part of Effects.
func (u *users) AddUser(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.verify(name, ids); err == nil {
		return nil
	}
	if err := u.NameFree(name); err != nil {
		return err
	}
	if g := u.settings.WorkspaceGroup; g != "" {
		if f, err := u.lookup("group", g); err != nil || f == nil {
			return errors.Join(err, fmt.Errorf("cannot add user %s: there is no group %s (workspace_group in the broker's settings); groupadd --system %s: %w", name, g, g, errdefs.ErrFailedPrecondition))
		}
	}
	if err := u.run(ctx, "useradd", userAddArgs(name, ids.Work, u.home(name), u.settings.Shell, u.settings.WorkspaceGroup)...); err != nil {
		return fmt.Errorf("cannot add user %s: %w", name, err)
	}
	if err := u.verify(name, ids); err != nil {
		return fmt.Errorf("cannot trust user %s as useradd made it: %w", name, err)
	}
	return nil
}

// RemoveUser is part of Effects.
func (u *users) RemoveUser(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.removeWhole(ctx, name, strconv.FormatUint(uint64(ids.Work), 10)); err != nil {
		return err
	}
	return u.mend(ctx, name, ids)
}

// removeWhole removes the user and group name that have the id n. u.mu is held.
func (u *users) removeWhole(ctx context.Context, name id.Workspace, n string) error {
	user, err := u.lookup("passwd", string(name))
	if err != nil {
		return err
	}
	group, err := u.lookup("group", string(name))
	if err != nil {
		return err
	}
	// One of that name with another id is not ours to remove.
	if user != nil && user[2] == n {
		if err := u.run(ctx, "userdel", string(name)); err != nil {
			return fmt.Errorf("cannot remove user %s: %w", name, err)
		}
		// userdel takes the group along only if USERGROUPS_ENAB is on.
		if group, err = u.lookup("group", string(name)); err != nil {
			return err
		}
	}
	if group != nil && group[2] == n {
		if err := u.run(ctx, "groupdel", string(name)); err != nil {
			return fmt.Errorf("cannot remove group %s: %w", name, err)
		}
	}
	for _, file := range []string{"passwd", "group"} {
		f, err := u.lookup(file, string(name))
		if err != nil {
			return err
		}
		if f != nil && f[2] == n {
			return fmt.Errorf("cannot remove %s: it is still in /etc/%s: %w", name, file, errdefs.ErrInternal)
		}
	}
	return nil
}

func (u *users) home(name id.Workspace) string { return u.settings.HomeRoot + "/" + string(name) }

// Home is part of Effects.
func (u *users) Home(name id.Workspace) string { return u.home(name) }

// verify sees that passwd, group and shadow have the entries that were asked for.
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
			return fmt.Errorf("/etc/%s has %q, not %q: %w", want.file, strings.Join(got, ":"), strings.Join(want.fields, ":"), errdefs.ErrFailedPrecondition)
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
