package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/pidfd"
)

// A tool that changes the user database is killed with the broker. It then leaves in /etc
// its locks NAME.lock and NAME.PID, which name its process, an unfinished copy NAME+, and a
// change that is in one file and not in the next. The broker records which process it has
// started, so that the next broker can tell that tool's files from others.

// databases are the files that the tools change.
var databases = []string{"passwd", "shadow", "group", "gshadow", "subuid", "subgid"}

// toolRun is a tool that was started and has not been seen to end.
type toolRun struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
	BootID    string `json:"boot_id"`
}

const (
	toolNote = "tool"
	// lockWait bounds the wait for /etc/.pwd.lock, as lckpwdf(3) does.
	lockWait = 15 * time.Second
)

// noteTool records that pid changes the user database; 0 is a process that is about to start.
func (u *users) noteTool(pid int) error {
	if u.state == nil {
		return nil
	}
	var start uint64
	var err error
	if pid != 0 { // else it is about to be started
		start, err = pidfd.StartTime(pid)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended already
	}
	var b []byte
	if err == nil {
		b, err = json.Marshal(toolRun{pid, start, u.bootID})
	}
	var f *os.File
	if err == nil {
		f, err = openAt(u.state, toolNote, unix.O_WRONLY|unix.O_CREAT, 0o600)
	}
	if err == nil {
		// In this order: the earlier note is shorter, and without a note the next broker would
		// believe that another program made what the tool has made since.
		_, err = f.Write(b)
		err = errors.Join(err, f.Truncate(int64(len(b))), f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot note that process %d changes the user database: %w", pid, err)
	}
	return nil
}

// sweepAfter waits for the end of a tool, which may have failed, and removes its part of
// a lock that it did not get: some versions leave it when two tools compete. The pid is not
// reused until the tool has been waited for.
func (u *users) sweepAfter(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	for _, db := range databases {
		_ = os.Remove(u.etc + "/" + db + "." + strconv.Itoa(pid)) // as a rule it is not there
	}
}

func (u *users) forgetTool() {
	if u.state != nil {
		_ = removeAt(u.state, toolNote) // it is looked at again
	}
}

// tidy removes the locks and copies of a tool that was killed, if it was ours, and says
// which. If the broker ended between the start of a tool and the record of its process, it removes
// what a process that has ended has made since.
func (u *users) tidy(ctx context.Context) (removed []string, err error) {
	f, err := openAt(u.state, toolNote, unix.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var b []byte
	var noted fs.FileInfo
	if err == nil {
		b, err = io.ReadAll(f)
		if err == nil {
			noted, err = f.Stat()
		}
		_ = f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which tool an earlier broker had started: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, fmt.Errorf("it took longer than %v: %w", lockWait, errdefs.ErrUnavailable))
	defer cancel()
	var run toolRun
	ours := func(_ string, pid int) bool { return pid == run.PID }
	if json.Unmarshal(b, &run) != nil || run.PID <= 1 {
		ours = func(path string, pid int) bool {
			st, err := os.Lstat(path)
			return err == nil && !st.ModTime().Before(noted.ModTime()) && pid > 1 && ends(ctx, pid)
		}
	}
	for u.runs(run) { // it was killed with the broker and is about to end
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("cannot wait for the end of process %d, which changes the user database: %w", run.PID, err)
		}
	}
	unlock, err := u.lockAll(ctx) // which a tool that has not ended yet holds
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, db := range databases {
		path := u.etc + "/" + db
		left, err := filepath.Glob(path + ".[0-9]*")
		if err != nil {
			return removed, err
		}
		for _, p := range append(left, path+".lock") {
			pid := holder(p)
			if n, err := strconv.Atoi(strings.TrimPrefix(p, path+".")); err == nil {
				pid = n // it may have been killed before it had written that
			}
			if !ours(p, pid) {
				continue
			}
			gone := []string{p}
			if p == path+".lock" {
				gone = []string{path + "+", p} // an unfinished copy goes with its lock
			}
			for _, file := range gone {
				err := os.Remove(file)
				if err == nil {
					removed = append(removed, file)
				} else if !errors.Is(err, fs.ErrNotExist) {
					return removed, fmt.Errorf("cannot remove what a tool left that was killed: %w", err)
				}
			}
		}
	}
	u.forgetTool()
	return removed, nil
}

// ends waits for the end of a process. The broker has the lock under which every tool works, so a
// tool that still has locks is ending; any other program goes on.
func ends(ctx context.Context, pid int) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for !hasEnded(pid) {
		if pause(ctx) != nil {
			return false
		}
	}
	return true
}

func (u *users) runs(run toolRun) bool {
	if run.BootID != u.bootID {
		return false
	}
	start, err := pidfd.StartTime(run.PID)
	if err != nil || start != run.StartTime {
		return false
	}
	return !hasEnded(run.PID)
}

// lockAll takes the lock under which every tool works.
func (u *users) lockAll(ctx context.Context) (unlock func(), err error) {
	path := u.etc + "/.pwd.lock"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the user database: %w", err)
	}
	for {
		err := withFD(f, func(fd int) error {
			return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		})
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			_ = f.Close()
			return nil, fmt.Errorf("cannot lock the user database with %s: %w", path, err)
		}
		if err := pause(ctx); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("cannot lock the user database with %s: another program holds it; see which with: fuser -v %s: %w",
				path, path, err)
		}
	}
}

func pause(ctx context.Context) error {
	t := time.NewTimer(10 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// holder returns the process that a lock file names, 0 if it names none.
func holder(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.Trim(string(b), "\x00\n "))
	if err != nil {
		return 0
	}
	return pid
}

// holders says what is known of who holds the user database, for an error.
func (u *users) holders() string {
	var said []string
	for _, db := range databases {
		path := u.etc + "/" + db + ".lock"
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		pid := holder(path)
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		switch {
		case pid == 0:
			said = append(said, fmt.Sprintf("%s names no process: if no tool is at work on users, remove it", path))
		case err != nil:
			said = append(said, fmt.Sprintf("%s is of process %d, which has ended: remove it", path, pid))
		default:
			said = append(said, fmt.Sprintf("%s names process %d (%s): if that does not change users, remove it, else wait for its end",
				path, pid, strings.TrimSpace(string(comm))))
		}
	}
	if said == nil {
		return "see what holds " + u.etc + "/.pwd.lock with: fuser -v " + u.etc + "/.pwd.lock"
	}
	return strings.Join(said, "; ")
}
