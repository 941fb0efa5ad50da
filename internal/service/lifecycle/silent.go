package lifecycle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// ExecutorSilent is told by a runtime, again and again, that the executor of a workspace has
// answered nothing for long. A slow answer is no proof of death: the workspace is stopped only
// if the kernel shows that the executor cannot answer, or if the host left it time to.
func (l *Lifecycle) ExecutorSilent(name id.Workspace, since time.Time) {
	err := l.ifFree(context.Background(), slot{name: name}, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil || !w.State.Live() || w.Silent.IsZero() {
			return err
		}
		seen := stuck("/proc", w.ExecutorPID)
		if seen == "" && starved("/proc") {
			return nil
		}
		if seen == "" {
			seen = "the host had time for it"
		}
		why := fmt.Sprintf("its executor has answered nothing since %s, and %s", since.UTC().Format(time.RFC3339), seen)
		l.cfg.Log.Warn("a workspace does not answer; it is stopped", "workspace", name, "reason", why)
		return l.haltAsSystem(ctx, w, why)
	})
	if err != nil {
		l.cfg.Log.Error("cannot stop a workspace that does not answer", "workspace", name, "error", err)
	}
}

// stuck says what keeps a process from running: a thread of it that waits in vfork for a child
// that was stopped before it could exec. It is "" if nothing like that is seen.
func stuck(proc string, pid int) string {
	if pid <= 0 {
		return ""
	}
	threads, err := filepath.Glob(filepath.Join(proc, strconv.Itoa(pid), "task", "*"))
	if err != nil {
		return ""
	}
	for _, thread := range threads {
		if processState(thread) != "D" { // how vfork waits
			continue
		}
		children, err := os.ReadFile(filepath.Join(thread, "children"))
		if err != nil {
			continue
		}
		for child := range strings.FieldsSeq(string(children)) {
			if s := processState(filepath.Join(proc, child)); s == "T" || s == "t" {
				return "a process that it was starting was stopped by a signal before it began"
			}
		}
	}
	return ""
}

// processState is the state letter of a process or thread, "" if it is gone: see proc_pid_stat(5).
func processState(dir string) string {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// starved reports whether the host had so little to give in the last minute that a process which
// did not run may be a healthy one. Without pressure information the load decides.
func starved(proc string) bool {
	known := false
	for _, p := range []struct {
		file, line string
		most       float64 // percent of a minute
	}{{"cpu", "some", 95}, {"memory", "full", 20}, {"io", "full", 80}} {
		text, err := os.ReadFile(filepath.Join(proc, "pressure", p.file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == p.line {
				v, err := strconv.ParseFloat(strings.TrimPrefix(f[2], "avg60="), 64)
				known = known || err == nil
				if v > p.most {
					return true
				}
			}
		}
	}
	if known {
		return false
	}
	text, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return true
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	return err != nil || load > float64(8*runtime.NumCPU())
}
