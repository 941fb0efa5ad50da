package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/oom"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/sched"
	"github.com/carrel-dev/carrel/internal/cli/fast"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/linux/thread"
)

const (
	readyTimeout = 30 * time.Second
	// stopTimeout is longer than the daemon waits for running requests.
	stopTimeout = 20 * time.Second
)

// findProgram looks for a program of carrel that users do not run.
func findProgram(name string) (string, error) {
	dirs, err := fast.Places()
	if err != nil {
		return "", fmt.Errorf("cannot find %s: %w", name, err)
	}
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("cannot find %s: it is in none of %s; build it with \"make build\" or install the package: %w",
		name, strings.Join(dirs, ", "), errdefs.ErrNotFound)
}

// process is a running broker or daemon.
type process struct {
	PID int `json:"pid"`
	// StartTime is field 22 of /proc/PID/stat. It tells the process from a later one with the
	// same pid.
	StartTime uint64 `json:"start_time"`
}

func (i *instance) pidFile(name string) string { return filepath.Join(i.runtime, name+".pid") }

// running returns the process that a pid file names, if it still runs, and holds it.
func (i *instance) running(name string) (p process, held *os.File, ok bool) {
	b, err := os.ReadFile(i.pidFile(name))
	if err != nil || json.Unmarshal(b, &p) != nil || p.PID <= 1 {
		return process{}, nil, false
	}
	if held, err = pidfd.Open(p.PID, p.StartTime); err != nil {
		return process{}, nil, false
	}
	return p, held, true
}

// awaitUnnoted waits for the end of a broker or daemon of this instance that no pid file names.
// It was started by an up that was cut off, and ends because nobody tells it to go on; until
// then its user cannot be removed. One that stays is for userdel to see.
func (i *instance) awaitUnnoted() {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	end := time.Now().Add(stopTimeout)
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		// The descriptor first: from then on the process it names cannot change.
		held, err := hold(pid)
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(dir + "/cmdline"); err == nil && i.starts(strings.Split(string(b), "\x00")) {
			_ = pidfd.Ended(held, time.Until(end))
		}
		held.Close()
	}
}

// starts reports whether argv is that of this instance's broker or daemon.
func (i *instance) starts(argv []string) bool {
	option, value := "--data-dir", i.data
	switch argv[0] {
	case "carreld":
	case "carrel-broker":
		option, value = "--settings", i.settings()
	default:
		return false
	}
	at := slices.Index(argv, option)
	return at >= 0 && at+1 < len(argv) && argv[at+1] == value
}

// stop ends a process by TERM and, when that does not help, KILL.
func (i *instance) stop(name string) (stopped bool, err error) {
	p, held, ok := i.running(name)
	if !ok {
		return false, nil
	}
	defer held.Close()
	return endProcess(name, p, held)
}

// hold holds the process that has a pid now.
func hold(pid int) (*os.File, error) {
	start, err := pidfd.StartTime(pid)
	if err != nil {
		return nil, err
	}
	return pidfd.Open(pid, start)
}

// endProcess is stop for a process that is held.
func endProcess(name string, p process, held *os.File) (stopped bool, err error) {
	if err := pidfd.Signal(held, unix.SIGTERM); err != nil {
		return false, fmt.Errorf("cannot stop the %s (pid %d): %w", name, p.PID, err)
	}
	if pidfd.Ended(held, stopTimeout) {
		return true, nil
	}
	if err := pidfd.Kill(held); err != nil {
		return false, fmt.Errorf("cannot kill the %s (pid %d): %w", name, p.PID, err)
	}
	if !pidfd.Ended(held, stopTimeout) {
		return false, fmt.Errorf("cannot end the %s (pid %d): it did not go within %s of KILL; look at what it waits for: cat /proc/%d/stack: %w",
			name, p.PID, stopTimeout, p.PID, errdefs.ErrUnavailable)
	}
	return true, nil
}

// program is how to start a broker or daemon.
type program struct {
	name string // of the pid file and the log
	path string
	args []string
	// as, if set, is who it runs as: without capabilities, now and by any exec.
	as *account
	// log gets its output.
	log *os.File
	// oldLog is what the program rotates log into; nil if it does not.
	oldLog *os.File
	// archiver is passed open to the daemon, which may not be able to open it; "" for none.
	archiver string
	// listener is the daemon's socket, listening; nil for none.
	listener *os.File
	// session detaches it from the terminal and from the group of this process.
	session bool
}

// start starts a program and returns when it reports that it is ready.
func (i *instance) start(ctx context.Context, p program) (*exec.Cmd, error) {
	c, said, err := i.started(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("cannot start the %s: %w%s", p.name, err, said)
	}
	return c, nil
}

// started is start without the prefix of its error. said is the output of the program, for the
// end of that error.
func (i *instance) started(ctx context.Context, p program) (_ *exec.Cmd, said string, err error) {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	defer ready.Close()
	// The program waits for a line before it does anything, and ends without one: if up is killed
	// before it has written the pid file, no unknown process stays.
	gate, tell, err := os.Pipe()
	if err != nil {
		theirs.Close()
		return nil, "", err
	}
	defer tell.Close()
	const readyFD, awaitFD = 3, 4 // the first of ExtraFiles
	c := &exec.Cmd{
		Path:        p.path,
		Args:        append([]string{filepath.Base(p.path), "--ready-fd", fmt.Sprint(readyFD), "--await-fd", fmt.Sprint(awaitFD)}, p.args...),
		Env:         environ(authorities...),
		Dir:         "/",
		Stdout:      p.log,
		Stderr:      p.log,
		ExtraFiles:  []*os.File{theirs, gate},
		SysProcAttr: &syscall.SysProcAttr{Setsid: p.session, Setpgid: !p.session},
	}
	if p.archiver != "" {
		f, err := os.Open(p.archiver)
		if err != nil {
			return nil, "", errors.Join(err, theirs.Close(), gate.Close())
		}
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
		c.Args = append(c.Args, "--archiver-fd", fmt.Sprint(2+len(c.ExtraFiles)))
	}
	if p.listener != nil {
		c.ExtraFiles = append(c.ExtraFiles, p.listener)
		c.Args = append(c.Args, "--listener-fd", fmt.Sprint(2+len(c.ExtraFiles)))
	}
	if p.oldLog != nil {
		c.ExtraFiles = append(c.ExtraFiles, p.oldLog)
		c.Args = append(c.Args, "--old-log-fd", fmt.Sprint(2+len(c.ExtraFiles)))
	}
	var offset int64
	if p.session {
		offset, _ = p.log.Seek(0, io.SeekEnd) // an error shows only new lines
	}
	err = i.launch(c, p)
	theirs.Close()
	gate.Close()
	if err != nil {
		return nil, "", err
	}
	crashpoint.Here("cli.start.launched")
	_ = oom.Set(c.Process.Pid, oom.Carrel) // where root may not do this, as in some containers, the host has another order
	favour(c.Process.Pid, p)
	t, err := pidfd.StartTime(c.Process.Pid)
	if err == nil {
		err = writeJSON(i.pidFile(p.name), process{c.Process.Pid, t})
	}
	crashpoint.Here("cli.start.noted")
	if err == nil {
		_, err = tell.WriteString("go\n")
	}
	if err == nil {
		err = awaitReady(ctx, ready)
	}
	crashpoint.Here("cli.start.ready")
	if err != nil {
		_ = c.Process.Kill() // it may have ended by itself
		_ = c.Wait()
		_ = os.Remove(i.pidFile(p.name))
		said = "; what it said is above"
		if p.session {
			said = tail(p.log, offset)
		}
		return nil, said, err
	}
	return c, "", nil
}

// favour has the scheduler prefer a program that waits for its line, where root may do that. The broker's children would
// inherit what the broker has, and are to have an equal share with others; the daemon has none.
func favour(pid int, p program) {
	if p.session { // it leads one of its own
		_ = sched.PreferSession(pid)
	}
	if p.as != nil {
		_ = sched.Prefer(pid)
	}
}

// launch starts c. For another user it does so from a thread that has given up the capabilities
// which that user must not gain again.
func (i *instance) launch(c *exec.Cmd, p program) error {
	if p.as == nil {
		return c.Start()
	}
	c.SysProcAttr.Credential = &syscall.Credential{Uid: p.as.uid, Gid: p.as.gid, Groups: []uint32{}}
	if enterable(c.Path, p.as.uid, p.as.gid) != nil {
		// A program below a closed directory is executed by its descriptor.
		f, err := os.Open(c.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
		c.Path = fmt.Sprintf("/proc/self/fd/%d", 2+len(c.ExtraFiles))
	}
	return thread.Throwaway(func() error {
		for cap := 0; ; cap++ {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(cap), 0, 0, 0); errors.Is(err, unix.EINVAL) {
				break // past the last
			} else if err != nil {
				return fmt.Errorf("cannot drop capability %d: %w", cap, err)
			}
		}
		// Changing the user clears the other sets, but not this one.
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&hdr, &caps[0])
		caps[0].Inheritable, caps[1].Inheritable = 0, 0
		if err == nil {
			err = unix.Capset(&hdr, &caps[0])
		}
		if err != nil {
			return fmt.Errorf("cannot empty the inheritable capabilities: %w", err)
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot set no_new_privs: %w", err)
		}
		return c.Start()
	})
}

// awaitReady reads the line by which a program reports that it serves. An end without a line
// means that the program has ended.
func awaitReady(ctx context.Context, ready *os.File) error {
	_ = ready.SetReadDeadline(time.Now().Add(readyTimeout)) // a pipe of os.Pipe can have one
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })()
	_, err := bufio.NewReader(ready).ReadString('\n')
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it was not ready within %s: %w", readyTimeout, errdefs.ErrUnavailable)
	default:
		return fmt.Errorf("it ended before it was ready: %w", errdefs.ErrUnavailable)
	}
}

// tail is what a program logged after offset, at most the last 4 KiB, for the error about its
// failure. The program holds the file open for writing and may have made it as long as it likes.
func tail(log *os.File, offset int64) string {
	const most = 4 << 10
	fi, err := log.Stat()
	if err != nil || fi.Size() <= offset {
		return ""
	}
	b := make([]byte, min(most, fi.Size()-offset))
	n, err := log.ReadAt(b, fi.Size()-int64(len(b)))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return "; it said:\n  " + strings.ReplaceAll(strings.Trim(string(b[:n]), "\x00\n"), "\n", "\n  ")
}

// openLog opens a program's log for appending: "broker.log", "daemon.log", or with ".1" what they are
// rotated into. They are handed over open, because their directory is root's.
func (i *instance) openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(i.logDir(), name), os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log %s: %w", name, err)
	}
	return f, nil
}

// lock excludes other runs of up and down for this instance.
func (i *instance) lock() (unlock func(), err error) {
	path := filepath.Join(i.data, "up.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	if err := tryLock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot go on: another carrel up or down works on %s; wait for it: %w", i.data, errdefs.ErrUnavailable)
	}
	return func() { f.Close() }, nil
}

// removeIfEmpty removes a directory that holds nothing.
func removeIfEmpty(path string) (bool, error) {
	err := unix.Rmdir(path)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
		return false, nil
	default:
		return false, fmt.Errorf("cannot remove %s: %w", path, err)
	}
}

// environ is the environment of broker and daemon, with the variables of pass that are set here.
// GODEBUG keeps the kernel from rounding their small heaps up to huge pages where those are
// always on.
func environ(pass ...string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "GODEBUG=disablethp=1"}
	return slices.Concat(env, environment(pass), crashpoint.Env())
}

// authorities are variables that say where the host's certificate authorities are (crypto/x509).
var authorities = []string{"SSL_CERT_FILE", "SSL_CERT_DIR"}
