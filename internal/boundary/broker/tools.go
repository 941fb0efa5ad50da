package broker

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

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
			return "", fmt.Errorf("cannot use %s: others than root can change it; chown root and chmod go-w it: %w",
				path, errdefs.ErrFailedPrecondition)
		}
		return path, nil
	}
	return "", fmt.Errorf("cannot find %s in %s; apt-get install %s: %w", name, strings.Join(t.paths, ", "), t.from,
		errdefs.ErrFailedPrecondition)
}

// command prepares a run of a tool with an empty environment, and a buffer for its output. It ends
// with the broker, which would not learn of a later change. The kernel signals it when the thread
// that started it ends, so that thread has to stay.
func command(ctx context.Context, path string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, path, args...)
	c.Dir, c.Env, c.Stdout, c.Stderr = "/", []string{}, &out, &out
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c, &out
}

// once runs a tool that does not change the user database.
func once(ctx context.Context, name string, args ...string) (string, error) {
	path, err := tool(name)
	if err != nil {
		return "", err
	}
	c, out := command(ctx, path, args...)
	runtime.LockOSThread()
	if err = c.Start(); err == nil {
		err = c.Wait()
	}
	runtime.UnlockOSThread()
	return strings.TrimSpace(out.String()), err
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
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
