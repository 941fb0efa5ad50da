package hostrun

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Protocol is what a supervisor and its caller speak. It is the argument of a supervisor, which refuses another one: two
// programs of different releases could mean different bounds by the same words.
const Protocol = "1"

// Program is the program that supervises commands, carrel-hostrun, held open since it was looked at. What is started is that
// file, whatever its path leads to by then. Nil is the running program, which must call Stage then.
type Program struct{ f *os.File }

// OpenProgram opens the program at path. The caller must call Close.
//
// failed_precondition: somebody else could write it. Besides root and the caller it may belong to the owner of the running
// program, who decides already what runs.
func OpenProgram(path string) (*Program, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the program that supervises commands: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	p := &Program{f}
	if err := p.check(path); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// check refuses a program that others can write. For root that is its group too.
func (p *Program) check(path string) error {
	at, err := p.f.Stat()
	if err != nil {
		return fmt.Errorf("cannot look at the program that supervises commands: %w", err)
	}
	running, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("cannot look at the running program: %w", err)
	}
	st, own := at.Sys().(*syscall.Stat_t), running.Sys().(*syscall.Stat_t)
	others, euid := uint32(0o002), uint32(os.Geteuid())
	if euid == 0 {
		others = 0o022
	}
	why := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		why = "it is no file; build it with \"make build\" or install the package"
	case st.Uid != 0 && st.Uid != euid && st.Uid != own.Uid:
		why = fmt.Sprintf("it belongs to uid %d, who is neither root, nor you, nor the owner of carrel; chown root it, or install the package",
			st.Uid)
	case st.Mode&others != 0:
		why = fmt.Sprintf("others can write it (mode %04o); chmod go-w it", st.Mode&0o7777)
	}
	if why != "" {
		return fmt.Errorf("cannot have commands supervised by %s: %s: %w", path, why, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Close closes it. Supervisors that were started go on.
func (p *Program) Close() error { return p.f.Close() }

// stages is set once the running program has called Stage.
var stages atomic.Bool

// Supervisor is the command that starts a supervisor by its name, with files as its descriptors from 3 on. The next one is the
// program itself, which the supervisor closes. The command starts once, and before the program is closed.
func (p *Program) Supervisor(name string, files ...*os.File) (*exec.Cmd, error) {
	if p == nil {
		if !stages.Load() {
			return nil, fmt.Errorf("cannot start a supervisor: the running program is none, and no other was named: %w", errdefs.ErrInternal)
		}
		f, err := os.OpenFile("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		p = &Program{f} // the garbage collector closes it
	}
	// By its number in the child, where the one that it has here may be taken by then.
	return &exec.Cmd{
		Path: "/proc/self/fd/" + strconv.Itoa(firstFD+len(files)), Args: []string{name, Protocol}, Env: []string{}, Dir: "/",
		ExtraFiles: append(slices.Clip(files), p.f),
	}, nil
}

// firstFD is the first descriptor of a supervisor that is not one of its three streams.
const firstFD = 3
