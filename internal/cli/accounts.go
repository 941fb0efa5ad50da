package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
)

// account is the daemon's user.
type account struct{ uid, gid uint32 }

// noID is an id that no user has.
const noID = 1<<32 - 2

// accountsLock is the file that every instance locks while it checks, makes or removes the
// account.
const accountsLock = "/run/carrel-account.lock"

// accounts is the lock on the account. Its file lists the groups that are about to be made or
// removed. If the list is not empty when the lock is taken, an up or down was killed, and up made
// those groups.
type accounts struct {
	file   *os.File
	groups []string
}

// note records the groups that are about to be made or removed.
func (a *accounts) note(groups []string) error {
	a.groups = groups
	err := a.file.Truncate(0)
	if err == nil {
		_, err = a.file.WriteAt([]byte(strings.Join(groups, "\n")), 0)
	}
	if err != nil {
		return fmt.Errorf("cannot note what is made for the daemon in %s: %w", accountsLock, err)
	}
	return nil
}

// dropAccountsLock removes the file of a lock that nobody holds.
func dropAccountsLock() {
	f, err := os.OpenFile(accountsLock, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return // usually it does not exist
	}
	defer f.Close()
	if tryLock(f) == nil {
		_ = os.Remove(accountsLock)
	}
}

func (a *accounts) unlock() {
	_ = os.Remove(accountsLock)
	a.file.Close()
}

// lockAccounts excludes every other up and down of this host while the account is made or
// removed. The file is removed with the lock, so a lock on a removed file is dropped and taken
// again on the new one.
func lockAccounts(ctx context.Context) (*accounts, error) {
	fail := func(err error) (*accounts, error) {
		return nil, fmt.Errorf("cannot lock the account of the daemon with %s: %w", accountsLock, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf(
		"another carrel up or down of this host has held it for a minute; see which with: fuser -v %s: %w", accountsLock, errdefs.ErrUnavailable,
	))
	defer cancel()
	for {
		f, err := os.OpenFile(accountsLock, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return fail(err)
		}
		err = tryLock(f)
		if err == nil {
			mine, err1 := f.Stat()
			there, err2 := os.Lstat(accountsLock)
			if err1 == nil && err2 == nil && os.SameFile(mine, there) {
				b, err := io.ReadAll(f)
				if err != nil {
					f.Close()
					return fail(err)
				}
				return &accounts{f, strings.Fields(string(b))}, nil
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return fail(err)
		}
		select {
		case <-ctx.Done():
			return fail(context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// findAccount looks up the user that a daemon runs as.
func findAccount(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil || uid == 0 {
		return account{}, fmt.Errorf("cannot use the user %s with uid %s and gid %s: the daemon must not be root: %w",
			name, u.Uid, u.Gid, errdefs.ErrFailedPrecondition)
	}
	return account{uint32(uid), uint32(gid)}, nil
}

// ensureAccount finds the daemon's user and the groups, and makes what is missing.
func ensureAccount(ctx context.Context, lock *accounts) (account, error) {
	made := []string{madeComment}
	ours := lock.groups
	for _, group := range []string{daemonUser, workspaceGroup} {
		there, err := hasGroup(group)
		if err != nil {
			return account{}, err
		}
		if there {
			if slices.Contains(ours, group) {
				made = append(made, group)
			}
			continue
		}
		if err := lock.note(append(slices.Clone(lock.groups), group)); err != nil {
			return account{}, err
		}
		if err := runTool(ctx, "/usr/sbin/groupadd", "--system", group); err != nil {
			// The tool of an up that was killed may have made it meanwhile.
			if there, _ := hasGroup(group); !there {
				return account{}, err
			}
		}
		made = append(made, group)
		crashpoint.Here("cli.up.group-made")
	}
	who, err := findAccount(daemonUser)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		if err := runTool(ctx, "/usr/sbin/useradd", "--system", "--gid", daemonUser, "--no-create-home", "--home-dir", "/nonexistent",
			"--shell", "/usr/sbin/nologin", "--comment", strings.Join(made, madeGroup), daemonUser); err != nil {
			if _, unknown := user.Lookup(daemonUser); unknown != nil {
				return account{}, err
			}
		}
		who, err = findAccount(daemonUser)
	}
	if err != nil {
		return account{}, fmt.Errorf("cannot look up the user %s: %w", daemonUser, err)
	}
	return who, nil
}

// madeComment marks a user that up made, so that the last instance removes it, whichever made
// it. The groups that were made with it follow.
const (
	madeComment = "carrel daemon, made by carrel up"
	madeGroup   = ", group "
)

// removeAccount removes the user if up made it and nothing needs it: no instance has a workspace,
// and its groups have no members. userdel itself refuses while processes of another instance
// run as that user.
func removeAccount(ctx context.Context, lock *accounts) error {
	var comment string
	there := false
	for f := range colonFile("/etc/passwd") {
		if len(f) != 7 {
			continue
		}
		if f[0] == daemonUser {
			comment, there = f[4], true
		}
		if f[4] == workspaceComment {
			return fmt.Errorf("cannot remove the user %s: the workspace %s is left: %w", daemonUser, f[0], errdefs.ErrFailedPrecondition)
		}
	}
	groups := lock.groups // of a down that was killed after it had removed the user
	if there {
		if !strings.HasPrefix(comment, madeComment) {
			return nil // an administrator made it
		}
		groups = strings.Split(comment, madeGroup)[1:]
	}
	for f := range colonFile("/etc/group") {
		if len(f) == 4 && slices.Contains(append(groups, daemonUser), f[0]) && f[3] != "" {
			return fmt.Errorf("cannot remove the user %s: the group %s has the members %s: %w",
				daemonUser, f[0], f[3], errdefs.ErrFailedPrecondition)
		}
	}
	if err := lock.note(groups); err != nil {
		return err
	}
	if there {
		if err := runTool(ctx, "/usr/sbin/userdel", daemonUser); err != nil {
			if _, still := user.Lookup(daemonUser); still == nil {
				return err
			}
		}
	}
	crashpoint.Here("cli.down.user-removed")
	for _, group := range groups {
		// userdel removes the group of the same name where the host is set up so.
		there, err := hasGroup(group)
		if err == nil && there {
			if err = runTool(ctx, "/usr/sbin/groupdel", group); err != nil {
				if there, lerr := hasGroup(group); lerr == nil && !there {
					err = nil // somebody else removed it meanwhile
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func hasGroup(name string) (bool, error) {
	_, err := user.LookupGroup(name)
	if _, unknown := errors.AsType[user.UnknownGroupError](err); unknown {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look up the group %s: %w", name, err)
	}
	return true, nil
}

// workspaceComment is in the passwd entry of each workspace's user.
const workspaceComment = "carrel workspace"

// colonFile yields the fields of each line of a file like /etc/passwd.
func colonFile(path string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		b, err := os.ReadFile(path)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(b)) {
			if !yield(strings.Split(strings.TrimRight(line, "\n"), ":")) {
				return
			}
		}
	}
}

// toolTimeout bounds one program of the host. Where another one holds a lock, as the installation of
// a package may, it is run again each lockEvery for lockPatience: it has changed nothing. So is one that
// somebody killed, which may have done its work: whoever runs it looks.
const (
	toolTimeout  = time.Minute
	lockPatience = 30 * time.Second
	lockEvery    = 200 * time.Millisecond
	lockHeld     = "try again later"
)

// runTool runs a program of the host with a fixed environment.
func runTool(ctx context.Context, path string, args ...string) error {
	for end := time.Now().Add(lockPatience); ; {
		err := runToolOnce(ctx, path, args...)
		exit, killed := errors.AsType[*exec.ExitError](err)
		killed = killed && exit.ExitCode() == -1
		if err == nil || !killed && !strings.Contains(err.Error(), lockHeld) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockEvery):
		}
	}
}

// runToolOnce is one attempt. Once the program runs, neither ctx nor the keyboard interrupts it, because
// it would leave its locks or an incomplete user.
func runToolOnce(ctx context.Context, path string, args ...string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of the terminal's foreground
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Start()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot run %s: it is not there; install it with: apt-get install passwd: %w", path, errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		sweepLocks(c.Process.Pid)
		err = c.Wait()
	}
	if err != nil {
		return fmt.Errorf("cannot run %s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// sweepLocks waits until a tool has ended and removes the temporary file of a lock that it did not
// get: some versions leave it if two tools run at once. The pid is not reused before the tool
// was waited for.
func sweepLocks(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	for _, db := range []string{"passwd", "shadow", "group", "gshadow", "subuid", "subgid"} {
		_ = os.Remove("/etc/" + db + "." + strconv.Itoa(pid)) // usually it does not exist
	}
}

// give makes the daemon's user the owner of its directory. A tree of the uid that this user had
// before it was made again is given to it too, but for what belongs to anybody else: the daemon
// could write to it, and a hard link there may be to any file of the host.
func give(dir string, a account) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", dir, err)
	}
	defer root.Close()
	before, err := root.Stat(".")
	if err != nil {
		return fmt.Errorf("cannot look at %s: %w", dir, err)
	}
	from := before.Sys().(*syscall.Stat_t).Uid
	switch from {
	case a.uid:
		return nil
	case 0: // it has just been made
		return root.Lchown(".", int(a.uid), int(a.gid))
	}
	return fs.WalkDir(root.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		var fi fs.FileInfo
		if err == nil {
			fi, err = root.Lstat(p)
		}
		if err == nil && fi.Sys().(*syscall.Stat_t).Uid == from {
			err = root.Lchown(p, int(a.uid), int(a.gid))
		}
		if errors.Is(err, fs.ErrNotExist) && p != "." {
			return nil // a daemon that still runs has removed it meanwhile
		}
		if err != nil {
			return fmt.Errorf("cannot give %s to the user %s: %w", filepath.Join(dir, p), daemonUser, err)
		}
		return nil
	})
}

// workspaceUsers lists the users of workspaces whose home lies in homes.
func workspaceUsers(homes string) []string {
	var out []string
	for f := range colonFile("/etc/passwd") {
		if len(f) == 7 && strings.HasPrefix(f[5], homes+"/") {
			out = append(out, f[0])
		}
	}
	return out
}
