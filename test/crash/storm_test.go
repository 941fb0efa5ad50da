package crash_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
)

// storm kills while clients are at work. Each client has workspaces of its own and asks for one thing
// after the other, so that what was acknowledged says what must be there, whatever was killed.
type storm struct {
	h      *host
	random []*mrand.Rand // of the clients

	mu           sync.Mutex
	kills        map[string]int
	clients      map[int]int // pidfds of command lines under way, by pid
	asked        int
	acknowledged int
	// want is what was acknowledged of each workspace, by key.
	want map[string]wanted
	// ids are the names that first ids were given to.
	ids map[uint32]string
}

// wanted is what acknowledgements say of a workspace.
type wanted struct {
	// there and gone: it must be there, or must not. Neither is known after an operation that failed.
	there, gone bool
	// tokens are the lines that commands wrote whose exit code came.
	tokens []string
}

const stormClients = 3

func newStorm(h *host, seed uint64) *storm {
	s := &storm{h: h, kills: map[string]int{}, clients: map[int]int{}, want: map[string]wanted{}, ids: map[uint32]string{}}
	for i := range stormClients {
		s.random = append(s.random, mrand.New(mrand.NewPCG(seed, uint64(i+1))))
	}
	return s
}

func (s *storm) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%v killed, %d of %d operations acknowledged", s.kills, s.acknowledged, s.asked)
}

func (s *storm) killed() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kills {
		n += k
	}
	return n
}

func (s *storm) count(victim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills[victim]++
}

// round kills so often while the clients work.
func (s *storm) round(t *testing.T, r *mrand.Rand, kills int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	for i := range stormClients {
		clients.Go(func() { s.client(ctx, s.random[i], i) })
	}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for end := s.killed() + kills; s.killed() < end && !t.Failed(); {
		<-tick.C
		// On a slow host too, something gets done between two kills.
		for done, late := s.done(), time.Now().Add(time.Second); s.done() == done && time.Now().Before(late); {
			tick.Reset(5 * time.Millisecond)
			<-tick.C
		}
		switch s.victim(t, r) {
		case "broker", "daemon":
			s.restart(t, r)
		}
		tick.Reset(time.Duration(r.IntN(120)) * time.Millisecond)
	}
}

func (s *storm) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acknowledged
}

// client asks for one thing after the other.
func (s *storm) client(ctx context.Context, r *mrand.Rand, number int) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("crk storm %d %d", number, r.IntN(2))
		token := rand.Text()
		line := "echo " + token + " >> tokens"
		operations := [][]string{
			{"create", key},
			{"create", "--request-id", rand.Text(), key},
			{"exec", key, "--", "/bin/sh", "-c", line},
			{"exec", key, "--", "/bin/sh", "-c", line},
			{"exec", key, "--", "/bin/sh", "-c", line + "; sleep 0.2"},
			{"exec", "--detach", key, "--", "/bin/sh", "-c", line + "; sleep 0.3"},
			{"pause", key},
			{"resume", key},
			{"resume", key},
			{"update", "--pids", fmt.Sprint(60 + r.IntN(60)), key},
			{"update", "--memory", fmt.Sprintf("%dMiB", 128+r.IntN(200)), key},
			{"stop", key},
			{"start", key},
			{"destroy", key},
			{"destroy", "--purge", key},
		}
		if image.Ready() == nil {
			operations = append(operations, []string{"create", "--disk", "32MiB", key})
		}
		args := operations[r.IntN(len(operations))]
		ok := s.run(args)
		s.learn(key, args, token, ok)
		if !ok { // as one whose parts are down
			<-time.After(time.Duration(r.IntN(40)) * time.Millisecond)
		}
	}
}

// learn notes what the end of an operation says of a workspace.
func (s *storm) learn(key string, args []string, token string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if ok {
		s.acknowledged++
	}
	w := s.want[key]
	switch {
	case args[0] == "destroy" && ok:
		w = wanted{gone: true}
	case args[0] == "destroy": // it may be carried out
		w = wanted{}
	case args[0] == "create" && ok:
		w.there, w.gone = true, false
	case args[0] == "create": // it may have been made
		w.gone = false
	case args[0] == "exec" && args[1] != "--detach" && ok:
		w.there, w.gone, w.tokens = true, false, append(w.tokens, token)
	}
	s.want[key] = w
}

// run runs a command line, which may be killed, and reports whether it succeeded.
func (s *storm) run(args []string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := s.h.command(ctx, args...)
	if c.Start() != nil {
		return false
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err == nil {
		s.mu.Lock()
		s.clients[c.Process.Pid] = fd
		s.mu.Unlock()
	}
	ok := c.Wait() == nil
	if c.ProcessState.ExitCode() == -1 {
		<-time.After(time.Second) // what it had asked for may be begun still, and comes before the next
	}
	s.mu.Lock()
	delete(s.clients, c.Process.Pid)
	s.mu.Unlock()
	if err == nil {
		unix.Close(fd)
	}
	return ok
}

// victim ends one process and reports of which kind, "" if there was none.
func (s *storm) victim(t *testing.T, r *mrand.Rand) string {
	t.Helper()
	switch n := r.IntN(100); {
	case n < 25:
		return s.part(t, r, "broker")
	case n < 50:
		return s.part(t, r, "daemon")
	case n < 60: // both at once
		s.part(t, r, "daemon")
		return s.part(t, r, "broker")
	case n < 76:
		return s.executor(t)
	case n < 88:
		return s.tool()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.clients {
		if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			s.kills["client"]++
			return "client"
		}
	}
	return ""
}

// signals end a part: half of them at once, the others in order, as systemd, "carrel down" and Ctrl-C do.
var signals = []unix.Signal{unix.SIGKILL, unix.SIGKILL, unix.SIGTERM, unix.SIGINT}

func (s *storm) part(t *testing.T, r *mrand.Rand, name string) string {
	t.Helper()
	pid, err := s.h.part(name)
	if err != nil {
		return ""
	}
	// A pid file is older than what has its number by now.
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(comm, []byte(s.h.data)) {
		return ""
	}
	by := signals[r.IntN(len(signals))]
	must(t, end(pid, by))
	s.count(fmt.Sprintf("%s by %s", name, unix.SignalName(by)))
	return name
}

// tool kills a program that the broker runs on the user database.
func (s *storm) tool() string {
	pid, err := s.h.part("broker")
	if err != nil {
		return ""
	}
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", pid)) // it may have ended
	for _, path := range all {
		b, _ := os.ReadFile(path)
		for f := range strings.FieldsSeq(string(b)) {
			var child int
			if _, err := fmt.Sscan(f, &child); err != nil {
				continue
			}
			fd, err := unix.PidfdOpen(child, 0)
			if err != nil {
				continue
			}
			// Held now: what is read next is of this process or of none.
			comm, _ := os.ReadFile("/proc/" + f + "/comm")
			mine := slices.Contains([]string{"useradd", "userdel", "groupdel"}, strings.TrimSpace(string(comm)))
			killed := mine && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
			unix.Close(fd)
			if killed {
				s.count("tool")
				return "tool"
			}
		}
	}
	return ""
}

// entry is what the ledger says of a workspace.
type entry struct {
	Name  string `json:"name"`
	State string `json:"state"`
	IDs   struct {
		Executor uint32 `json:"executor"`
	} `json:"ids"`
	Executor *struct {
		PID int `json:"pid"`
	} `json:"executor"`
}

// ledger returns its lines in order.
func (h *host) ledger(t testing.TB) (lines []entry) {
	t.Helper()
	b, err := os.ReadFile(h.data + "/broker/ledger.jsonl")
	must(t, err)
	for line := range bytes.Lines(b) {
		var l struct {
			Workspace *entry `json:"workspace"`
		}
		if json.Unmarshal(line, &l) == nil && l.Workspace != nil {
			lines = append(lines, *l.Workspace)
		}
	}
	return lines
}

// last is the last line about each workspace.
func last(lines []entry) map[string]entry {
	all := map[string]entry{}
	for _, e := range lines {
		all[e.Name] = e
	}
	return all
}

// executor kills one of those that the ledger names.
func (s *storm) executor(t *testing.T) string {
	t.Helper()
	for _, e := range last(s.h.ledger(t)) {
		if e.Executor == nil {
			continue
		}
		fd, err := unix.PidfdOpen(e.Executor.PID, 0)
		if err != nil {
			continue
		}
		defer unix.Close(fd)
		// Held now: what is read next is of this process or of none.
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.Executor.PID))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", e.IDs.Executor)) {
			continue
		}
		if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			s.count("executor")
			return "executor"
		}
	}
	return ""
}

// restart brings carrel up again; now and then that is killed too.
func (s *storm) restart(t *testing.T, r *mrand.Rand) {
	t.Helper()
	if r.IntN(4) == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(150))*time.Millisecond)
		c := s.h.command(ctx, append([]string{"up", "--detach", "--prefix", s.h.prefix}, s.h.flags()...)...)
		_ = c.Run()
		cancel()
		if c.ProcessState != nil && c.ProcessState.ExitCode() == -1 {
			s.count("up")
		}
	}
	s.h.up(t)
}
