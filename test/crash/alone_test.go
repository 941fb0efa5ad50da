package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// seen is what inspect says of a workspace.
type seen struct {
	Name  string `json:"name"`
	State string `json:"state"`
	PID   int    `json:"executor_pid"`
}

func (h *host) inspect(t testing.TB, key string) (w seen) {
	t.Helper()
	must(t, json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", key)), &w))
	return w
}

// end kills a part of carrel and waits until it has ended.
func (h *host) end(t testing.TB, part string) {
	t.Helper()
	pid, err := h.part(part)
	must(t, err)
	must(t, kill(pid))
}

// states are what ls says of the workspaces, by key: it looks, and has nothing put right.
func (h *host) states(t testing.TB) map[string]string {
	t.Helper()
	var all []struct {
		Key   string `json:"key"`
		State string `json:"state"`
	}
	must(t, json.Unmarshal([]byte(h.carrel(t, "ls", "-o", "json")), &all))
	states := map[string]string{}
	for _, w := range all {
		states[w.Key] = w.State
	}
	return states
}

// times is how often a test aims, or as often as TRIALS says.
func times(t testing.TB, n int) int {
	t.Helper()
	if s := os.Getenv("TRIALS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		must(t, err)
	}
	return n
}

// A broker that dies while a daemon starts is no sign that executors have died.
func TestBrokerEndsWhileTheDaemonStarts(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	var was []seen
	for n := range 3 {
		key := fmt.Sprint("crk lives ", n)
		h.carrel(t, "create", "--idle-timeout", "never", key)
		h.carrel(t, "exec", "--detach", key, "--", "sleep", "100000")
		was = append(was, h.inspect(t, key))
	}
	h.carrel(t, "pause", was[2].Name)
	was[2].State = "paused"
	r := mrand.New(mrand.NewPCG(seed(t), 0))
	for n := range times(t, 6) {
		h.end(t, "daemon")
		ended, err := h.part("daemon")
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		up := h.command(ctx, append([]string{"up", "--detach", "--prefix", h.prefix}, h.flags()...)...)
		must(t, up.Start())
		until(t, "the start of a daemon", func() bool { pid, err := h.part("daemon"); return err == nil && pid != ended })
		wait := time.Duration(r.IntN(60_000)) * time.Microsecond
		<-time.After(wait) // the moment to hit is not announced
		h.end(t, "broker")
		_ = up.Wait() // it may say that the broker has gone
		cancel()
		h.up(t)
		for _, w := range was {
			if now := h.inspect(t, w.Name); now != w {
				t.Fatalf("trial %d, the broker ended after %v: %+v became %+v", n, wait, w, now)
			}
		}
	}
	h.carrel(t, "resume", was[2].Name)
	for _, w := range was {
		if out := h.carrel(t, "ps", w.Name); !strings.Contains(out, "sleep") {
			t.Errorf("its command is gone: %s", out)
		}
		h.carrel(t, "exec", w.Name, "--", "true")
	}
	h.settled(t)
	h.look(t, check.Expect{Any: true})
}

// What a client was told failed because the broker was gone comes to an end that is told, and nothing
// stays on the way: when up has returned, and whether the daemon lives or not.
func TestBrokerEndsAlone(t *testing.T) {
	t.Parallel()
	for _, daemon := range []bool{false, true} {
		h := newHostUp(t)
		for _, key := range []string{"crk goes", "crk stops", "crk stays", "crk paused"} {
			h.carrel(t, "create", "--idle-timeout", "never", key)
		}
		h.carrel(t, "pause", "crk paused")
		h.end(t, "broker")
		for _, args := range [][]string{
			{"destroy", "crk goes"},
			{"stop", "crk stops"},
			{"create", "crk new"},
			{"update", "--pids", "77", "crk stays"},
			{"pause", "crk stays"},
			{"resume", "crk paused"},
		} {
			r := h.try(args...)
			if r.code == 0 {
				t.Errorf("%q succeeds without a broker", args)
			}
			if (args[0] == "destroy" || args[0] == "create") && !strings.Contains(r.err, "as soon as that can be done") {
				t.Errorf("%q does not say what becomes of it: %s", args, r.err)
			}
		}
		if daemon {
			h.end(t, "daemon")
		}
		r := h.tryUp()
		// Another program may hold the user database for longer than up waits.
		said := func(kind string) bool { return strings.Contains(r.out, kind) || strings.Contains(r.out, "goes_on") }
		if r.code != 0 || !daemon && (!said("destroy_finished") || !said("create_undone")) {
			t.Errorf("up does not say what it has brought to its end: %v", r)
		}
		want := map[string]string{"crk stops": "stopped", "crk stays": "running", "crk paused": "paused"}
		if got := h.states(t); !daemon && !strings.Contains(r.out, "goes_on") && !maps.Equal(got, want) {
			t.Errorf("%v, not %v", got, want)
		}
		until(t, "their end", func() bool { return maps.Equal(h.states(t), want) })
		for _, args := range [][]string{
			{"exec", "crk stays", "--", "true"}, {"exec", "crk stops", "--", "true"}, {"resume", "crk paused"}, {"exec", "crk paused", "--", "true"},
		} {
			if r := h.try(args...); r.code != 0 {
				t.Errorf("the daemon ended too: %v: %q: %v", daemon, args, r)
			}
		}
		h.settled(t)
		h.look(t, check.Expect{Any: true})
		h.gone(t)
	}
}

// A workspace whose executor ended while no broker was there to see it is stopped when up has returned,
// whatever it was.
func TestBrokerAndExecutorEnd(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	for _, state := range []string{"running", "paused"} {
		for _, daemon := range []bool{false, true} {
			key := fmt.Sprint("crk ", state, " ", daemon)
			h.carrel(t, "create", "--idle-timeout", "never", key)
			if state == "paused" {
				h.carrel(t, "pause", key)
			}
			pid := h.inspect(t, key).PID
			h.end(t, "broker")
			if daemon {
				h.end(t, "daemon")
			}
			must(t, kill(pid))
			h.up(t)
			if got := h.states(t)[key]; got != "stopped" {
				t.Errorf("%s, and the daemon ended: %v: it is %s", state, daemon, got)
			}
			for _, args := range [][]string{{"exec", key, "--", "true"}, {"stop", key}, {"start", key}, {"pause", key}, {"resume", key}} {
				if r := h.try(args...); r.code != 0 {
					t.Errorf("%s, and the daemon ended: %v: %q: %v", state, daemon, args, r)
				}
			}
		}
	}
	h.settled(t)
	h.look(t, check.Expect{Any: true})
}

// A broker that dies in a start leaves no executor in a workspace that is stopped.
func TestBrokerEndsInAStart(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	h.carrel(t, "create", "--no-start", "crk starts")
	r := mrand.New(mrand.NewPCG(seed(t), 0))
	for n := range times(t, 6) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		start := h.command(ctx, "start", "crk starts")
		must(t, start.Start())
		wait := time.Duration(r.IntN(80_000)) * time.Microsecond
		<-time.After(wait) // the moment to hit is not announced
		h.end(t, "broker")
		_ = start.Wait()
		cancel()
		h.up(t)
		in, err := check.Read(h.data, h.prefix)
		must(t, err)
		in.Before = before
		find(t, in, check.Expect{Any: true})
		if t.Failed() {
			t.Fatalf("trial %d, the broker ended after %v: %+v", n, wait, h.inspect(t, "crk starts"))
		}
		h.carrel(t, "exec", "crk starts", "--", "true")
		h.carrel(t, "stop", "crk starts")
	}
}

// An up beside a daemon that makes archives does not meet their files.
func TestUpBesideArchives(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	h.carrel(t, "create", "--idle-timeout", "never", "crk put away")
	h.carrel(t, "exec", "crk put away", "--", "/bin/sh", "-c", "head -c 4000000 /dev/urandom > file")
	more, done := make(chan struct{}), make(chan int)
	go func() {
		made := 0
		defer func() { done <- made }()
		for {
			select {
			case <-more:
				return
			default:
			}
			if h.try("archive", "create", "--live", "crk put away").code == 0 { // without a broker none is made
				made++
			}
		}
	}()
	for range times(t, 6) {
		h.end(t, "broker") // else up does nothing
		if r := h.tryUp(); r.code != 0 {
			t.Errorf("up: %v", r)
		}
	}
	close(more)
	if made := <-done; made == 0 {
		t.Error("no archive was made meanwhile")
	}
}

// An up that waits for another program's lock on the user database says whose it is.
func TestUpSaysWhoseLockItWaitsFor(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	h.end(t, "broker")
	// The next broker waits for the lock to look after a tool of the one before.
	must(t, os.WriteFile(h.data+"/broker/tool", nil, 0o600))
	f, err := os.OpenFile("/etc/.pwd.lock", os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	must(t, unix.FcntlFlock(f.Fd(), unix.F_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK})) // others wait for 15 s
	free := time.AfterFunc(3500*time.Millisecond, func() { f.Close() })
	defer free.Stop()
	r := h.tryUp()
	if want := fmt.Sprintf("waiting for process %d (", os.Getpid()); r.code != 0 || !strings.Contains(r.err, want) {
		t.Errorf("up does not say %q: %v", want, r)
	}
}
