package hostrun

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/drop"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/seccomp"
)

// stage is the supervisor of one command.
type stage struct {
	spec    spec
	row     *row
	control *os.File
	orders  *bufio.Reader
	// trees are detached mounts, between the step that takes them and the one that attaches them.
	tree, host int
	writes     []int
	devices    []device
	// abi is the version of Landlock that is enforced.
	abi int
}

// step is one thing that the supervisor does before it starts the command. They are taken in order, each for its
// reason.
type step struct {
	name string
	// held: with the profiles that hold a command alone.
	held bool
	why  string
	run  func(*stage) error
}

// first are taken before it is known what is to run, so that a supervisor which is ready has taken them.
var first = []step{
	{"descriptors", false, "nothing that the caller has open may reach the command", (*stage).descriptors},
	{"orphans", false, "before a process is there that could leave an orphan", (*stage).adopt},
}

var steps = []step{
	{"propagation", true, "no mount made below may reach the host", (*stage).propagation},
	{"nested namespaces", true, "written before /proc/sys becomes read-only", (*stage).noNestedNamespaces},
	{"count of processes", true, "written before /proc/sys becomes read-only", (*stage).count},
	{"directories", true, "copied while they are in sight, and before all becomes read-only", (*stage).takeDirectories},
	{"read-only", true, "before any mount is made that may be written", (*stage).readOnly},
	{"proc", true, "of the new process namespace, read-only from its start", (*stage).proc},
	{"devices", true, "copied before /dev is covered", (*stage).dev},
	{"private directories", true, "over those of the host, whose sockets and files they hide", (*stage).private},
	{"place the directories", true, "after what would cover them", (*stage).placeDirectories},
	{"loopback", true, "of a network of its own, while it may be changed", (*stage).loopback},
	{"resource limits", true, "a core file would start the host's handler", (*stage).limits},
	{"processor", true, "what else the host does comes first; its command inherits it from this thread", (*stage).behind},
	{"view of the host", true, "the last mount, as what follows looks for the supervisor's threads in the /proc of its own", (*stage).view},
	{"capabilities", true, "after the last privileged step", (*stage).capabilities},
	{
		"landlock", true, "before seccomp, which needs the no_new_privs that it sets, and could refuse its calls one day; under it nobody mounts",
		func(s *stage) error { return elsewhere(s.landlock) },
	},
	{
		"not dumpable", true, "before the command is there, which has the same user and must not look into this process",
		func(*stage) error { return drop.Dumps() },
	},
	{"seccomp", true, "last, as it refuses what the steps above use", (*stage).seccomp},
}

// Rights, mounts and the parent of the command belong to a thread. Every step is taken on the first one, which is the
// one that the kernel shows as the process: only here can the main goroutine be kept on it.
func init() {
	if Supervises(os.Args) {
		runtime.LockOSThread()
	}
}

// elsewhere runs f, which changes all threads, on another one than the first. That one may see the host's /proc, where
// this process has another number than it knows, and what changes all threads may look for them by that.
func elsewhere(f func() error) error {
	done := make(chan error)
	go func() { done <- f() }()
	return <-done
}

// Supervises reports whether a program with these arguments was started as the supervisor.
func Supervises(args []string) bool { return len(args) == 2 && args[0] == stageName }

// Stage is the supervisor. The program that supervises commands must call it before anything else in main, and exit with code if
// is is true: it was started as the supervisor then.
func Stage(args []string) (code int, is bool) {
	stages.Store(true)
	if !Supervises(args) {
		return 0, false
	}
	// For ps: it was started by a path that says nothing. It works without a name too.
	if name, err := unix.BytePtrFromString(stageName); err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
	}
	s := &stage{control: os.NewFile(controlFD, "control"), tree: -1, host: -1}
	s.orders = lines(s.control)
	if err := s.serve(args[1]); err != nil {
		return 1, true
	}
	return 0, true
}

// serve does what the spec says. Its error was told to the caller, or there is none to be told.
func (s *stage) serve(protocol string) error {
	switch {
	case protocol != Protocol:
		return s.fail("protocol", errors.New("its supervisor is of another release; install all programs of one"))
	case unix.Gettid() != os.Getpid():
		return s.fail("thread", errors.New("the supervisor does not begin on its first thread"))
	}
	if err := s.take(first); err != nil {
		return err
	}
	if err := readLine(s.orders, &s.spec); err != nil {
		return err // the caller needs it no more
	}
	if s.row = rowOf(s.spec.Profile); s.row == nil {
		return s.fail("profile", bad("there is no profile %q", s.spec.Profile))
	}
	if err := s.take(steps); err != nil {
		return err
	}
	found, err := s.prove()
	if err != nil {
		return s.fail("self-check", err)
	}
	if err := writeLine(s.control, word{Findings: &found}); err != nil {
		return err
	}
	s.spare() // while the caller looks from outside
	var o order
	if err := readLine(s.orders, &o); err != nil || !o.Go {
		return err // the caller refused, or is gone
	}
	pid, err := s.command()
	if err != nil {
		return s.fail("command", err)
	}
	_ = writeLine(s.control, word{Began: true}) // without a caller its end is found at once
	return s.supervise(pid)
}

// take takes the steps of a list that the profile has.
func (s *stage) take(list []step) error {
	for _, st := range list {
		if st.held && !s.row.held {
			continue
		}
		if err := st.run(s); err != nil {
			return s.fail(st.name, fmt.Errorf("step %q of profile %s: %w", st.name, s.spec.Profile, err))
		}
	}
	return nil
}

func (s *stage) fail(step string, err error) error {
	f := failure{Step: step, Error: err.Error(), Kind: kindHost}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, exec.ErrNotFound):
		f.Kind = kindMissing
	case step == "command":
		f.Kind = kindDenied
	}
	if step != "command" {
		f.Kind = kindHost
	}
	_ = writeLine(s.control, word{Failed: &f}) // without a caller there is nobody to tell
	return err
}

// descriptors closes all but the first three, the socket and what the runtime has, which are an epoll or event
// descriptor, and has none outlive an exec. The program itself is among what it closes.
func (s *stage) descriptors() error {
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("cannot mark the descriptors: %w; Linux 5.11 or newer is needed", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= controlFD {
			continue
		}
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !slices.Contains([]string{"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}, link) {
			unix.Close(fd)
		}
	}
	return nil
}

// adopt makes this process the parent of what the command leaves behind. The first process of a namespace is that by
// itself.
func (s *stage) adopt() error {
	// What a program may send to its session must not end who is to end it.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

func (s *stage) seccomp() error {
	p, err := seccomp.Filter(seccomp.Options{NoUnix: true, NoIP: s.row.noIP, OneID: true, NoSetID: s.row.writes})
	if err != nil {
		return err
	}
	return seccomp.Load(p)
}

// limits are inherited by the command. With this one a crash starts no handler of the host (core(5)).
func (s *stage) limits() error {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_CORE, &old); err != nil {
		return err
	}
	limit := min(sandbox.CoreLimit, old.Max)
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	return s.bound()
}

// command starts it.
func (s *stage) command() (pid int, err error) {
	if err := os.Chdir(s.spec.Dir); err != nil {
		return 0, fmt.Errorf("cannot enter %s: %w", s.spec.Dir, err)
	}
	os.Clearenv()
	_ = os.Setenv("PATH", valueOf(s.spec.Env, "PATH")) // for the look-up below, and cannot fail
	path, err := exec.LookPath(s.spec.Argv[0])
	if err != nil {
		return 0, fmt.Errorf("%w; see that it is installed%s", err, s.hidden())
	}
	pid, err = syscall.ForkExec(path, s.spec.Argv, &syscall.ProcAttr{
		Env: s.spec.Env, Files: []uintptr{0, 1, 2},
		// A group of its own and not a session: only who leads a session can get a terminal by opening one.
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", path, err)
	}
	return pid, nil
}

func (s *stage) hidden() string {
	if !s.row.held {
		return ""
	}
	return ", and not below a directory that is private here: " + strings.Join(privateIn(s.row), ", ")
}

// temporary is a directory in which the command may write.
func (s *stage) temporary() string {
	if dirs := privateIn(s.row); len(dirs) > 0 {
		return dirs[0]
	}
	return "/tmp"
}

// killTime is how long processes that got SIGKILL are waited for.
const killTime = 5 * time.Second

// supervise waits for the command, ends what is left of it, and says how it ended.
func (s *stage) supervise(pid int) error {
	status, gone := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go reap(pid, status, gone)
	ctx, lost := context.WithCancel(context.Background())
	defer lost()
	stop := make(chan struct{})
	usual := time.Duration(s.spec.GraceMS) * time.Millisecond
	grace := usual // once stop is closed it is read
	go func() {
		defer lost()
		var o order
		if readLine(s.orders, &o) == nil && o.Stop {
			if o.Now {
				grace = 0
			}
			close(stop)
			_ = readLine(s.orders, &o) // nothing more is said: this is the caller's end
		}
	}()
	var e ended
	end := func(grace time.Duration) { e.Left = s.endAll(ctx, grace, gone) }
	var ws syscall.WaitStatus
	select {
	case ws = <-status:
		end(usual)
	case <-stop:
		e.Stopped = true
		end(grace)
		ws = ofEnded(status, gone)
	case <-ctx.Done():
		end(usual)
		return context.Cause(ctx)
	}
	e.Code = ws.ExitStatus()
	if ws.Signaled() {
		e.Signal, e.Code = int(ws.Signal()), 128+int(ws.Signal())
	}
	return writeLine(s.control, word{Ended: &e})
}

// ofEnded is how the command ended, or that it was killed, if it is one of those that could not be ended.
func ofEnded(status <-chan syscall.WaitStatus, gone <-chan struct{}) syscall.WaitStatus {
	select {
	case <-gone:
		return <-status // which follows
	case ws := <-status:
		return ws
	default:
		return syscall.WaitStatus(unix.SIGKILL)
	}
}

// reap waits for all children: the command, whose status it hands on, and orphans. It closes gone when there is none,
// so that nothing that the command started is there either. If the command left nothing, gone is closed first.
func reap(command int, status chan<- syscall.WaitStatus, gone chan<- struct{}) {
	options := 0
	var held []syscall.WaitStatus // of the command, until it is known whether there are others
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD
			close(gone)
		case pid == command:
			held, options = append(held, ws), unix.WNOHANG
			continue
		case pid > 0:
			continue
		}
		for _, ws := range held {
			status <- ws
		}
		if held, options = nil, 0; err != nil {
			return
		}
	}
}
