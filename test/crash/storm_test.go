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

	"github.com/carrel-dev/carrel/internal/sandbox/image"
	"github.com/carrel-dev/carrel/test/crash/check"
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

// victim kills one process and reports of which kind, "" if there was none.
func (s *storm) victim(t *testing.T, r *mrand.Rand) string {
	t.Helper()
	switch n := r.IntN(100); {
	case n < 25:
		return s.part(t, "broker")
	case n < 50:
		return s.part(t, "daemon")
	case n < 60: // both at once
		s.part(t, "daemon")
		return s.part(t, "broker")
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

func (s *storm) part(t *testing.T, name string) string {
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
	must(t, kill(pid))
	s.count(name)
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

// compare sees, with nothing at work and no further restart, that all agree.
func (s *storm) compare(t *testing.T) {
	t.Helper()
	h := s.h
	h.up(t)
	h.settled(t)
	until(t, "the end of what is on the way", func() bool {
		out := h.carrel(t, "ls", "-o", "json")
		return !strings.Contains(out, `"creating"`) && !strings.Contains(out, `"destroying"`)
	})
	h.settled(t)
	// The ledger, the kernel, the database and the record.
	var tokens []string
	for _, dir := range []string{"homes", "retained"} {
		found, err := filepath.Glob(h.data + "/" + dir + "/*/tokens")
		must(t, err)
		tokens = append(tokens, found...)
	}
	h.look(t, check.Expect{Any: true, Tokens: tokens, Retained: h.retained(t)})
	// What a broker has begun whose daemon did not hear of it, and what a client that was killed had asked for, comes to its end
	// within seconds and without a restart.
	const within = 10 * time.Second
	began := time.Now()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for round := 0; ; round++ {
		all := s.differences(t)
		switch {
		case len(all) == 0:
			return
		case time.Since(began) < within && !slices.ContainsFunc(all, func(d difference) bool { return !d.passes }):
			if round == 0 {
				t.Logf("not at once: %v", all)
			}
			<-again.C
			continue
		}
		for _, d := range all {
			t.Error(d.text)
			if d.name != "" {
				s.told(t, d.name)
			}
		}
		return
	}
}

// difference is one between ledger, API and what was acknowledged. One that passes may be seen for seconds.
type difference struct {
	text   string
	name   string
	passes bool
}

// told prints what daemon and broker say of a workspace.
func (s *storm) told(t *testing.T, name string) {
	t.Helper()
	for _, log := range []string{"daemon.log", "broker.log"} {
		b, err := os.ReadFile(filepath.Join(s.h.data, "log", log))
		if err != nil {
			t.Log(err)
			continue
		}
		var about []string
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, name) {
				about = append(about, line)
			}
		}
		t.Logf("%s of %s:\n%s", log, name, strings.Join(about[max(0, len(about)-20):], ""))
	}
}

// retained are the paths of the kept homes that the API lists.
func (h *host) retained(t *testing.T) (paths []string) {
	t.Helper()
	var list []struct {
		Home string `json:"home"`
	}
	must(t, json.Unmarshal([]byte(h.carrel(t, "ls", "--retained", "-o", "json")), &list))
	for _, r := range list {
		paths = append(paths, r.Home)
	}
	return paths
}

// listed is a workspace as the list of the API has it.
type listed struct {
	Name  string `json:"name"`
	Key   string `json:"key"`
	State string `json:"state"`
}

// differences says where ledger, API and what was acknowledged differ.
func (s *storm) differences(t *testing.T) (all []difference) {
	t.Helper()
	found := func(format string, a ...any) { all = append(all, difference{text: fmt.Sprintf(format, a...)}) }
	var list []listed
	must(t, json.Unmarshal([]byte(s.h.carrel(t, "ls", "-o", "json")), &list))
	lines := s.h.ledger(t)
	ledger := last(lines)
	keys := map[string]bool{}
	for _, w := range list {
		keys[w.Key] = true
		e := ledger[w.Name]
		pid := 0
		if e.Executor != nil {
			pid = e.Executor.PID
		}
		if now := s.h.inspect(t, w.Name); e.State != w.State || now.State != w.State || now.PID != pid {
			all = append(all, difference{name: w.Name, passes: true, text: fmt.Sprintf(
				"%s (%s) is %s in the ledger, with executor %d, %s in the list, and %s with executor %d by inspect", w.Name, w.Key, e.State,
				pid, w.State, now.State, now.PID)})
		}
		delete(ledger, w.Name)
	}
	for name, e := range ledger {
		if e.State != "destroyed" {
			found("the ledger has %s as %s, and the API does not", name, e.State)
		}
	}
	for _, e := range lines {
		if before, given := s.ids[e.IDs.Executor]; given && before != e.Name {
			found("id %d was given to %s and to %s", e.IDs.Executor, before, e.Name)
		}
		s.ids[e.IDs.Executor] = e.Name
	}
	for key, w := range s.want {
		switch {
		case w.there && !keys[key]:
			found("%q was acknowledged and is not there", key)
			continue
		case w.gone && keys[key]:
			found("the end of %q was acknowledged, and it is there", key)
			continue
		case len(w.tokens) == 0 || !w.there:
			continue
		}
		_ = s.h.try("resume", key) // most are not paused
		out := s.h.carrel(t, "exec", key, "--", "cat", "tokens")
		for _, token := range w.tokens {
			if n := strings.Count(out, token+"\n"); n != 1 {
				found("a line in %q was acknowledged once and is there %d times", key, n)
			}
		}
	}
	return all
}

// Each difference is seen.
func TestStormSeesDifferences(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	h.carrel(t, "create", "crk there")
	h.carrel(t, "exec", "crk there", "--", "/bin/sh", "-c", "echo line >> tokens")
	w := h.inspect(t, "crk there")
	first := last(h.ledger(t))[w.Name].IDs.Executor
	for what, plant := range map[string]func(*storm){
		"":                     func(s *storm) { s.want["crk there"] = wanted{there: true, tokens: []string{"line"}} },
		"is not there":         func(s *storm) { s.want["crk lost"] = wanted{there: true} },
		"and it is there":      func(s *storm) { s.want["crk there"] = wanted{gone: true} },
		"is there 0 times":     func(s *storm) { s.want["crk there"] = wanted{there: true, tokens: []string{"line", "lost"}} },
		"was given to crk-old": func(s *storm) { s.ids[first] = "crk-old" },
	} {
		s := newStorm(h, 1)
		plant(s)
		got := s.differences(t)
		if what == "" && len(got) > 0 || what != "" && (len(got) != 1 || !strings.Contains(got[0].text, what)) {
			t.Errorf("%q: %+v", what, got)
		}
	}
	// The ledger says something else than the API.
	f, err := os.OpenFile(h.data+"/broker/ledger.jsonl", os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	for _, e := range []entry{{Name: w.Name, State: "stopped"}, {Name: h.prefix + "-ffffffff", State: "running"}} {
		if e.IDs.Executor = first; e.Name != w.Name {
			e.IDs.Executor = 1
		}
		line, err := json.Marshal(map[string]entry{"workspace": e})
		must(t, err)
		_, err = f.Write(append(line, '\n'))
		must(t, err)
	}
	if got := newStorm(h, 1).differences(t); len(got) != 2 {
		t.Errorf("a ledger that says otherwise: %+v", got)
	}
	b, err := os.ReadFile(h.data + "/broker/ledger.jsonl")
	must(t, err)
	end := len(b)
	for range 2 {
		end = bytes.LastIndexByte(b[:end-1], '\n') + 1
	}
	must(t, os.Truncate(h.data+"/broker/ledger.jsonl", int64(end)))
}
