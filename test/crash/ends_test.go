package crash_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// endPoints are those that TestEndPoints arms.
var endPoints = []string{"daemon.approval.ended", "daemon.approval.end-recorded", "daemon.recover.ended"}

// Nobody answers in time, and the daemon is killed at every step of the end of the question:
// where it ends while the daemon runs, and where its time passed while none did and a start ends
// it. The record has the end once, and the events of the start that recorded it.
func TestEndPoints(t *testing.T) {
	h := newHost(t)
	config := filepath.Join(h.dir, "carreld.yaml")
	must(t, os.WriteFile(config, []byte("approval:\n  wait: 1s\n"), 0o644))
	tryUp := func() result {
		return h.try(append([]string{"up", "--detach", "--prefix", h.prefix, "--config", config}, h.flags()...)...)
	}
	up := func() {
		t.Helper()
		if r := tryUp(); r.code != 0 {
			t.Fatalf("cannot bring carrel up: %v", r)
		}
	}
	up()
	h.carrel(t, "create", "crk ends")
	requested := regexp.MustCompile(`"type":"request".*"approval":"(ap-[0-9a-f]{16})"`)
	record := func() string {
		t.Helper()
		b, err := os.ReadFile(h.data + "/daemon/audit/audit.jsonl")
		must(t, err)
		return string(b)
	}
	// told counts the events of a question's end since the start, up to those of now.
	told := func(id string) (n int) {
		t.Helper()
		h.carrel(t, "exec", "crk ends", "--", "true")
		lines, end := h.events(t)
		defer end()
		for {
			var ev struct{ Kind, Note string }
			must(t, lines.Decode(&ev))
			switch {
			case ev.Kind == "command.exec":
				return n
			case ev.Kind == "approval.expired" && ev.Note == id:
				n++
			}
		}
	}
	for _, c := range []struct {
		name, first string
		points      []string
	}{{"running", "", endPoints[:2]}, {"at a start", "daemon.approval.asked", endPoints[1:]}} {
		for _, point := range c.points {
			t.Run(c.name+" "+point, func(t *testing.T) {
				mark := h.logEnd()
				h.arm(t, point, 1)
				if c.first != "" {
					h.arm(t, c.first, 1)
				}
				began := time.Now()
				r := h.try("exec", "--wait", "1s", "crk ends", "--", "git", "push", "https://example.invalid/", rand.Text())
				if r.code == 0 {
					t.Errorf("it ran: %v", r)
				}
				all := requested.FindAllStringSubmatch(record(), -1)
				if len(all) == 0 {
					t.Fatalf("nobody was asked: %v", r)
				}
				id := all[len(all)-1][1]
				if c.first != "" {
					if !h.fired(c.first, mark) {
						t.Fatalf("nothing ended at %s: %v", c.first, r)
					}
					until(t, "the end of the question", func() bool { return time.Since(began) > time.Second })
					if r := tryUp(); r.code == 0 {
						t.Errorf("a start that was to be killed came up: %v", r)
					}
				}
				if !h.fired(point, mark) {
					t.Fatalf("nothing ended at %s: %v", point, r)
				}
				up()
				end := `"approval":"` + id + `","status":"denied","data":{"kind":"expired"}`
				if n := strings.Count(record(), end); n != 1 {
					t.Errorf("the record has its end %d times in\n%s", n, record())
				}
				if out := h.carrel(t, "approvals", "show", id); !strings.Contains(out, "expired") {
					t.Errorf("%s", out)
				}
				if out := h.carrel(t, "approvals", "list", "--state", "expired"); !strings.Contains(out, id) {
					t.Errorf("%s", out)
				}
				want := 0
				if point != "daemon.approval.end-recorded" {
					want = 1 // the last start has recorded it
				}
				if n := told(id); n != want {
					t.Errorf("%d events of its end, not %d", n, want)
				}
			})
		}
	}
	h.settled(t)
	h.carrel(t, "audit", "verify")
	h.carrel(t, "destroy", "--purge", "crk ends")
	h.gone(t)
}

// A daemon that is too busy to answer is left alone by an up that did not start it, and so is its
// broker: people's commands run in it.
func TestUpLeavesWhatItDidNotStart(t *testing.T) {
	needRoot(t)
	t.Parallel() // most of it is waiting for what does not answer
	h := newHostUp(t)
	before := map[string]int{}
	for _, part := range []string{"daemon", "broker"} {
		pid, err := h.part(part)
		must(t, err)
		before[part] = pid
	}
	must(t, unix.Kill(before["daemon"], unix.SIGSTOP))
	until(t, "the daemon to stop", func() bool { return halted(before["daemon"]) }) // one of its threads has to take the signal first
	r := h.within(t, 40*time.Second, append([]string{"up", "--detach", "--prefix", h.prefix}, h.flags()...)...)
	must(t, unix.Kill(before["daemon"], unix.SIGCONT))
	if want := fmt.Sprintf("runs as pid %d and is left alone", before["daemon"]); r.code == 0 || !strings.Contains(r.err, want) {
		t.Errorf("up beside a daemon that does not answer: %v", r)
	}
	h.carrel(t, "ls")
	for part, was := range before {
		if pid, err := h.part(part); err != nil || pid != was {
			t.Errorf("the %s was %d and is %d, %v", part, was, pid, err)
		}
	}
}

// halted reports whether all threads of a process are stopped (proc_pid_stat(5)).
func halted(pid int) bool {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range all {
		b, rerr := os.ReadFile(path)
		_, rest, ok := strings.Cut(string(b), ") ")
		if rerr != nil || !ok || rest[0] != 'T' {
			return false
		}
	}
	return err == nil && len(all) > 0
}
