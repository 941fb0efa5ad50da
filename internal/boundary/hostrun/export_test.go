package hostrun

import (
	"io"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Spare is the process that is ready for the next command, 0 if there is none.
func (r *Runner) Spare() int {
	r.mu.Lock()
	x := r.spare
	r.mu.Unlock()
	if x == nil {
		return 0
	}
	if <-x.started; x.err != nil {
		return 0
	}
	return x.s.command.Process.Pid
}

// Ended waits until the process that is ready has ended.
func (r *Runner) Ended() { <-r.spare.s.exited }

// Unstaged has the running program not supervise commands, until undo is called.
func Unstaged() (undo func()) {
	stages.Store(false)
	return func() { stages.Store(true) }
}

// Keep returns what keeps max bytes of what is written to it, and what says what was kept.
func Keep(max int) (io.Writer, func() Output) {
	k := &keeper{max: max}
	return k, k.output
}

// Judge judges findings, each a control, whether it holds, and a text.
func Judge(p Profile, found ...[3]string) workspace.Report {
	var list []finding
	for _, f := range found {
		list = append(list, finding{f[0], f[1] == "ok", f[2]})
	}
	return workspace.Report{Controls: rowOf(p).judge(list, "")}
}

func specOf(p Profile, in place) *spec {
	s := &spec{place: in}
	if rowOf(p).writes {
		s.Writes = []place{in}
	}
	return s
}

// JudgeMounts judges a mountinfo file for a command in dir with locked names.
func JudgeMounts(path string, p Profile, dir string, locked ...string) (bool, string, error) {
	m, err := readMounts(path)
	if err != nil {
		return false, "", err
	}
	ok, says := judgeMounts(m, specOf(p, place{Dir: dir, Locked: locked}), rowOf(p))
	return ok, says, nil
}
