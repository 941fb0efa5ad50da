package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// stageName is argv[0] of the supervisor of a job.
const stageName = "carrel-job"

// The descriptors that a supervisor is given. It holds the lock by having it open.
const (
	lockFD  = 3
	dirFD   = 4
	readyFD = 5
	// programFD is the program: see hostrun.Program.
	programFD = 6
)

// grace is how long a job has between SIGTERM and SIGKILL.
const grace = 5 * time.Second

// errStopped is the cause of the end of a job that somebody stopped.
var errStopped = errors.New("it was stopped")

// Stage is the supervisor of a job. The program that supervises jobs must call it at the beginning of main, after hostrun.Stage,
// and exit with code if is is true: it was started as the supervisor then.
func Stage(args []string) (code int, is bool) {
	if len(args) != 2 || args[0] != stageName {
		return 0, false
	}
	_ = unix.Close(programFD)
	for fd := lockFD; fd <= readyFD; fd++ {
		unix.CloseOnExec(fd)
	}
	ready := os.NewFile(readyFD, "ready")
	if args[1] != hostrun.Protocol {
		tell(ready, begun{Error: "its supervisor is of another release; install all programs of one"})
		return 1, true
	}
	if err := supervise(folder{dirFD, "the job's directory"}, ready); err != nil {
		tell(ready, begun{Error: err.Error()})
		return 1, true
	}
	return 0, true
}

// tell says how the beginning went. If nobody hears it, the directory says the same.
func tell(ready *os.File, w begun) {
	if b, err := json.Marshal(w); err == nil {
		_, _ = ready.Write(append(b, '\n'))
	}
	_ = ready.Close()
}

// supervise runs the command of a job. An error says that it did not run.
func supervise(dir folder, ready *os.File) error {
	var s Spec
	if err := dir.load(specName, &s); err != nil {
		return err
	}
	end, err := dir.open(endName+".new", unix.O_WRONLY)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	if err := orders(dir, func() { stop(errStopped) }); err != nil {
		return err
	}
	profile := cmp.Or(hostrun.Profile(s.Profile), hostrun.None)
	if s.ReadOnly {
		profile = hostrun.SystemInspect
	}
	if err := hostrun.Adopt(); err != nil {
		return err
	}
	began := false
	res, err := hostrun.Run(ctx, hostrun.Command{
		Argv: s.Argv, Dir: s.Dir, Timeout: s.Limit(), Grace: grace, MaxOutput: 4 << 10, Profile: profile, AllowRoot: s.AsRoot,
		Writes: s.Writes,
		Limits: hostrun.Limits{Memory: s.MaxMemory, Processes: s.MaxProcesses},
		Stdout: &keeper{in: dir, stream: Stdout}, Stderr: &keeper{in: dir, stream: Stderr},
		Began: func(c []workspace.Control) {
			began = true
			tell(ready, begun{Held: hostrun.Held(profile, c)})
		},
	})
	hostrun.EndAdopted() // there is nothing but what is left by a supervisor that was killed
	e := End{Code: res.Code, Signal: int(res.Signal), TimedOut: res.TimedOut, Left: short(res.Left), At: time.Now()}
	switch {
	case err == nil:
	case errors.Is(err, errStopped) && began:
		e.Stopped = true
	default:
		e.Error = fmt.Sprintf("%.2000s", err.Error())
	}
	if ferr := dir.finish(end, endName, e); ferr != nil {
		err = errors.Join(err, ferr)
	}
	if began {
		return nil
	}
	return err
}

// short is what the room for the end of a job holds of a list.
func short(list []string) []string {
	list = list[:min(len(list), 16)]
	for i := range list {
		list[i] = fmt.Sprintf("%.200s", list[i])
	}
	return list
}

// orders calls stop when somebody writes to the job's FIFO, or sends SIGTERM. Signals that a terminal or its end sends are
// for others.
func orders(dir folder, stop func()) error {
	// Open for both, so that it has a writer always, and no end.
	f, err := dir.open(controlName, unix.O_RDWR)
	if err != nil {
		return err
	}
	go func() {
		if n, _ := f.Read(make([]byte, 1)); n > 0 {
			stop()
		}
	}()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	go func() {
		for s := range signals {
			if s == unix.SIGTERM {
				stop()
			}
		}
	}()
	return nil
}

// order tells the supervisor of a job to end it. unix.ENXIO: there is none.
func (d folder) order() error {
	f, err := d.open(controlName, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{'s'})
	return errors.Join(err, f.Close())
}
