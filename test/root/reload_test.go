package root_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
)

// SIGHUP has the daemon read its rules again. Rules that cannot be used leave those before in
// force, with a record of the file, line and column; and at no moment does what both forbid pass.
func TestHangUpReloadsThePolicy(t *testing.T) {
	write := func(name, text string) {
		t.Helper()
		err := os.WriteFile(name+".new", []byte(text), 0o644)
		if err == nil {
			err = os.Rename(name+".new", name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	forbid := func(risk int) string {
		return fmt.Sprintf("version: 1\nrules:\n  - {id: team.forbidden, level: BLOCK, risk_score: %d, capabilities: [], "+
			"reason: not here, match: {command: [forbidden]}}\n", risk)
	}
	var rules string
	h := newHostWith(t, func(dir string) string {
		rules = filepath.Join(dir, "policy.yaml")
		return "socket_mode: \"0666\"\npolicy:\n  path: " + rules + "\n"
	})
	write(rules, forbid(90))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "create", "crt reload")
	daemon := h.part(t, "daemon")
	// reload has the daemon read the rules, and returns the record of it.
	reload := func() record {
		t.Helper()
		mark := h.mark(t)
		if err := unix.Kill(daemon, unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		var got record
		until(t, "the record of the load", func() bool {
			for _, r := range h.since(t, mark) {
				if r.Type == "policy" {
					got = r
					return true
				}
			}
			return false
		})
		return got
	}

	var stop atomic.Bool
	var tried atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		c := carrelv1connect.NewCommandServiceClient(h.client(t, 0), "http://carrel")
		wg.Go(func() {
			for !stop.Load() {
				_, err := c.Exec(t.Context(), connect.NewRequest(
					&carrelv1.ExecRequest{Workspace: "crt reload", Command: &carrelv1.Command{Argv: []string{"forbidden"}, Source: "user"}},
				))
				if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "team.forbidden") {
					t.Errorf("between two policies: %v", err)
					return
				}
				tried.Add(1)
			}
		})
	}
	for i := range 20 {
		before := tried.Load()
		if i%3 == 2 {
			write(rules, "version: 1\nrules:\n  - id: team.forbidden\n    level: MAYBE\n")
			r := reload()
			if !strings.Contains(r.raw, `"status":"failed"`) || !strings.Contains(r.raw, rules+":4:12: ") {
				t.Errorf("%s", r.raw)
			}
		} else {
			write(rules, forbid(90+i%10))
			if r := reload(); !strings.Contains(r.raw, `"status":"ok"`) {
				t.Errorf("%s", r.raw)
			}
		}
		until(t, "more commands", func() bool { return t.Failed() || tried.Load() > before })
	}
	stop.Store(true)
	wg.Wait()
	if h.part(t, "daemon") != daemon {
		t.Error("it is another daemon")
	}
	write(rules, "version: 1\nrules: []\n")
	if r := reload(); !strings.Contains(r.raw, `"status":"ok"`) {
		t.Errorf("%+v", r)
	}
	// The record comes before the rules are in force.
	until(t, "the end of the rules from before", func() bool {
		return !strings.Contains(h.try(nil, "", "exec", "crt reload", "--", "forbidden").err, "team.forbidden")
	})
}
