package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/vm/job"
)

const (
	// afterQuit is how long a job that has run out of time has to print its goroutines.
	afterQuit = 5 * time.Second
	// afterEnd is how long processes that end with their job have to do so.
	afterEnd = 3 * time.Second
	// maxLine bounds one line of output; a longer one comes in parts.
	maxLine = 32 << 10
)

// runner runs jobs and is the parent of everything that lost its own.
type runner struct {
	report *reporter
	died   chan os.Signal
}

func newRunner(r *reporter) *runner {
	x := &runner{report: r, died: make(chan os.Signal, 1)}
	signal.Notify(x.died, unix.SIGCHLD)
	return x
}

// run runs one job and reports it. What it leaves is a problem, and is ended before the
// next one begins.
func (x *runner) run(j job.Job) {
	x.report.send(job.Event{Kind: job.Start, Job: j.Name})
	before := state()
	problems, err := x.command(j)
	if err != nil {
		problems = append(problems, err.Error())
	}
	var changed []string
	after := state()
	for what := range after {
		if !before[what] {
			changed = append(changed, "it left a "+what)
		}
	}
	for what := range before {
		if !after[what] {
			changed = append(changed, "it took away a "+what)
		}
	}
	slices.Sort(changed)
	x.report.send(job.Event{Kind: job.End, Job: j.Name, Problems: append(problems, changed...)})
}

func (x *runner) command(j job.Job) (problems []string, err error) {
	path, err := exec.LookPath(j.Argv[0])
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// Not os/exec: its Wait and the reaping of orphans would take each other's children.
	pid, err := syscall.ForkExec(path, j.Argv, &syscall.ProcAttr{
		Dir: j.Dir, Env: j.Env, Files: []uintptr{null.Fd(), w.Fd(), w.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	_ = w.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", path, err)
	}
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		x.copyLines(j.Name, r)
	}()

	limit := time.NewTimer(time.Duration(j.Seconds) * time.Second)
	defer limit.Stop()
	kill := time.NewTimer(time.Hour)
	defer kill.Stop()
	for ended := false; !ended; {
		select {
		case <-x.died:
			for pid2, ws := range reap() {
				if pid2 == pid {
					ended = true
					if ws != 0 {
						problems = append(problems, "it ended with "+status(ws))
					}
				}
			}
		case <-limit.C:
			problems = append(problems, fmt.Sprintf("it ran out of its %d seconds", j.Seconds))
			_ = unix.Kill(pid, unix.SIGQUIT)
			kill.Reset(afterQuit)
		case <-kill.C:
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	for _, name := range x.clear() {
		problems = append(problems, "it left a process: "+name)
	}
	<-printed // everything that held the pipe is gone
	return problems, nil
}

// clear waits for processes to end by themselves, then ends what is left and says what
// that was.
func (x *runner) clear() []string {
	left := time.After(afterEnd)
	for {
		names := processes()
		if len(names) == 0 {
			return nil
		}
		select {
		case <-x.died:
			reap()
		case <-left:
			_ = unix.Kill(-1, unix.SIGKILL)
			for len(processes()) > 0 {
				<-x.died
				reap()
			}
			return names
		}
	}
}

// reap collects what has died.
func reap() map[int]unix.WaitStatus {
	dead := map[int]unix.WaitStatus{}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return dead
		}
		dead[pid] = ws
	}
}

func status(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + unix.SignalName(ws.Signal())
	}
	return fmt.Sprintf("exit code %d", ws.ExitStatus())
}

// processes lists every process but this one and the kernel's own threads.
func processes() []string {
	entries, _ := os.ReadDir("/proc")
	var names []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 2 {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// pid (comm) state ppid …; comm may hold anything (proc_pid_stat(5)).
		end := strings.LastIndexByte(string(b), ')')
		if f := strings.Fields(string(b[end+1:])); len(f) > 1 && f[1] != "2" {
			args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			names = append(names, fmt.Sprintf("%s state %s: %s", b[:end+1], f[0], strings.ReplaceAll(string(args), "\x00", " ")))
		}
	}
	return names
}

func (x *runner) copyLines(name string, from io.Reader) {
	r := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			text := strings.ToValidUTF8(strings.TrimSuffix(string(line), "\n"), "\ufffd")
			x.report.send(job.Event{Kind: job.Output, Job: name, Text: text})
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
