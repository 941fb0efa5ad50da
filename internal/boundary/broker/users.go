package broker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// errTaken is wrapped by the error of a tool that was told an id which somebody else gave away in that moment, as another carrel of
// the host may that has the same range.
var errTaken = fmt.Errorf("its id was given to somebody else meanwhile; try again: %w", errdefs.ErrUnavailable)

// errKilled is wrapped by the error of a tool that somebody else killed. It may have done a part of its
// work.
var errKilled = fmt.Errorf("it was killed while it worked: %w", errdefs.ErrUnavailable)

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
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == -1 && ctx.Err() == nil {
			return fmt.Errorf("%s failed: %w", name, errKilled)
		}
		locked := strings.Contains(said, "try again later") || strings.Contains(said, "cannot lock")
		if ctx.Err() == nil && strings.Contains(said, "is not unique") {
			return fmt.Errorf("%s failed: %w", name, errTaken)
		}
		if ctx.Err() == nil && !locked {
			return fmt.Errorf("%s failed: %s: %w", name, firstOf(said, err.Error()), errdefs.ErrInternal)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%s did not get the lock on the user database in time: %s; %s; then try again: %w",
				name, firstOf(said, "it was still at work"), u.holders(), errdefs.ErrUnavailable)
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
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
			return errors.Join(err, fmt.Errorf("cannot add user %s: there is no group %s (workspace_group in the broker's settings); "+
				"groupadd --system %s: %w", name, g, g, errdefs.ErrFailedPrecondition))
		}
	}
	args := userAddArgs(name, ids.Work, u.home(name), u.settings.Shell, u.settings.WorkspaceGroup)
	err := u.run(ctx, "useradd", args...)
	for errors.Is(err, errKilled) && !u.complete(name, ids) {
		if err = errors.Join(pause(ctx), u.clear(ctx, name, ids)); err == nil {
			err = u.run(ctx, "useradd", args...)
		}
	}
	if err != nil && !errors.Is(err, errKilled) {
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
	return u.clear(ctx, name, ids)
}

// clear removes all that the user database has of name, and does so again if somebody kills the tool at
// it. u.mu is held.
func (u *users) clear(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	for {
		err := u.removeWhole(ctx, name, strconv.FormatUint(uint64(ids.Work), 10))
		if err == nil {
			err = u.mend(ctx, name, ids)
		}
		if !errors.Is(err, errKilled) {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
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

// mend removes what is left of name after a tool was killed between two files. No tool
// removes a line of shadow without one of passwd, so the user is completed first. u.mu
// is held.
func (u *users) mend(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	left, err := u.torn(name)
	if err != nil || !left {
		return err
	}
	if err := u.NameFree(name); err != nil {
		return nil //nolint:nilerr // of another id: not ours to remove
	}
	args := userAddArgs(name, ids.Work, u.home(name), u.settings.Shell, "")
	if err := u.run(ctx, "useradd", args...); err != nil {
		return fmt.Errorf("cannot mend the user database, which has %s in some of its files only; see which with: "+
			"grep %s %s/*shadow %s/group: %w", name, name, u.etc, u.etc, err)
	}
	return u.removeWhole(ctx, name, strconv.FormatUint(uint64(ids.Work), 10))
}
