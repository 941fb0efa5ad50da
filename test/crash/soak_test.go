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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sandbox/image"
	"github.com/carrel-dev/carrel/test/crash/check"
)

// How much is done, unless SOAKTIME says for how long: then it goes on until that has
// passed, and growth is measured in full.
const (
	soakKills = 200
	soakBound = 4 * time.Minute // a minute on a quiet host
)

func soakTime(t testing.TB) time.Duration {
	t.Helper()
	s := os.Getenv("SOAKTIME")
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	must(t, err)
	return d
}

// seed is that of SEED, to repeat a run as far as the host's timing lets it, or a new one.
func seed(t testing.TB) uint64 {
	t.Helper()
	n := mrand.Uint64()
	if s := os.Getenv("SEED"); s != "" {
		var err error
		n, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SEED=%d", n)
	return n
}

// storm is a run of kills while clients are at work.
type storm struct {
	h     *host
	kills map[string]int
	// well counts what was asked for and done.
	well atomic.Int64

	mu      sync.Mutex
	clients map[int]int // pidfds of command lines under way, by pid
}

// client asks for one thing after the other, of workspaces of its own, and takes no
// answer amiss.
func (s *storm) client(ctx context.Context, r *mrand.Rand, number int) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("crk storm %d %d", number, r.IntN(2))
		token := fmt.Sprintf("echo %s >> tokens", rand.Text())
		operations := [][]string{
			{"create", key},
			{"create", "--request-id", fmt.Sprintf("c-%d-%d", number, n), key},
			{"exec", key, "--", "/bin/sh", "-c", token},
			{"exec", key, "--", "/bin/sh", "-c", token},
			{"exec", key, "--", "/bin/sh", "-c", token + "; sleep 0.2"},
			{"exec", "--detach", key, "--", "/bin/sh", "-c", token + "; sleep 0.3"},
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
		s.run(operations[r.IntN(len(operations))])
	}
}

func (s *storm) run(args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := s.h.command(ctx, args...)
	if c.Start() != nil {
		return
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err == nil {
		s.mu.Lock()
		s.clients[c.Process.Pid] = fd
		s.mu.Unlock()
	}
	if c.Wait() == nil {
		s.well.Add(1)
	}
	s.mu.Lock()
	delete(s.clients, c.Process.Pid)
	s.mu.Unlock()
	if err == nil {
		unix.Close(fd)
	}
}

// victim kills one process and reports of which kind, "" if there was none.
func (s *storm) victim(t *testing.T, r *mrand.Rand) string {
	t.Helper()
	switch n := r.IntN(100); {
	case n < 30:
		return s.part(t, "broker")
	case n < 60:
		return s.part(t, "daemon")
	case n < 70: // both at once
		s.part(t, "daemon")
		return s.part(t, "broker")
	case n < 88:
		return s.executor(t)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, fd := range s.clients {
			if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
				return "client"
			}
		}
		return ""
	}
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
	s.kills[name]++
	return name
}

// executor kills one of those that the ledger names.
func (s *storm) executor(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(s.h.data + "/broker/ledger.jsonl")
	must(t, err)
	type entry struct {
		Name string `json:"name"`
		IDs  struct {
			Executor int `json:"executor"`
		} `json:"ids"`
		Executor *struct {
			PID int `json:"pid"`
		} `json:"executor"`
	}
	last := map[string]entry{}
	for line := range bytes.Lines(b) {
		var l struct {
			Workspace entry `json:"workspace"`
		}
		if json.Unmarshal(line, &l) == nil {
			last[l.Workspace.Name] = l.Workspace
		}
	}
	for _, e := range last {
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
			s.kills["executor"]++
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
			s.kills["up"]++
		}
	}
	s.h.up(t)
}

// Killed at random while clients are at work: carrel comes up every time, and in the end
// nothing is left, nothing is lost and nothing ran twice.
func TestSoak(t *testing.T) {
	h := newHostUp(t)
	h.set(t, "create_per_hour", 1_000_000)
	n := seed(t)
	r := mrand.New(mrand.NewPCG(n, 0))
	s := &storm{h: h, kills: map[string]int{}, clients: map[int]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() { s.client(ctx, mrand.New(mrand.NewPCG(n, uint64(i+1))), i) })
	}
	defer clients.Wait()
	defer cancel()
	begin, total, long := time.Now(), 0, soakTime(t)
	tick := time.NewTimer(0)
	defer tick.Stop()
	for more := true; more; {
		<-tick.C
		// On a slow host too, something gets done between two kills.
		for done, end := s.well.Load(), time.Now().Add(time.Second); s.well.Load() == done && time.Now().Before(end); {
			tick.Reset(5 * time.Millisecond)
			<-tick.C
		}
		switch what := s.victim(t, r); what {
		case "":
		case "client":
			s.kills[what]++
		case "executor":
		default:
			s.restart(t, r)
		}
		total = 0
		for _, k := range s.kills {
			total += k
		}
		if long > 0 {
			more = time.Since(begin) < long
		} else {
			more = total < soakKills && time.Since(begin) < soakBound
		}
		tick.Reset(time.Duration(r.IntN(120)) * time.Millisecond)
	}
	cancel()
	clients.Wait()
	t.Logf("%d kills in %v: %v", total, time.Since(begin).Round(time.Second), s.kills)
	if long == 0 && total < soakKills {
		t.Errorf("only %d of %d kills came within %v", total, soakKills, soakBound)
	}
	// The last restart finishes what is open.
	s.part(t, "daemon")
	s.part(t, "broker")
	h.up(t)
	h.settled(t)
	var tokens []string
	for _, dir := range []string{"homes", "retained"} {
		found, err := filepath.Glob(h.data + "/" + dir + "/*/tokens")
		must(t, err)
		tokens = append(tokens, found...)
	}
	h.look(t, check.Expect{Any: true, Tokens: tokens})
	record, err := os.ReadFile(h.data + "/daemon/audit/audit.jsonl")
	must(t, err)
	ran := bytes.Count(record, []byte(`"kind":"command.exec"`))
	if ran < 20 {
		t.Errorf("only %d commands ran: the test has seen little", ran)
	}
	t.Logf("%d commands ran", ran)
	for key := range strings.FieldsSeq(h.carrel(t, "ls", "-q")) {
		h.carrel(t, "destroy", "--purge", key)
	}
	h.settled(t)
	h.look(t, check.Expect{})
	h.gone(t)
}

// measures are what must not grow.
type measures map[string]int

func (h *host) measure(t *testing.T, executor int) measures {
	t.Helper()
	m := measures{}
	pids := map[string]int{"executor": executor}
	for _, part := range []string{"broker", "daemon"} {
		pid, err := h.part(part)
		must(t, err)
		pids[part] = pid
	}
	for part, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		must(t, err)
		m[part+" descriptors"] = len(fds)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		must(t, err)
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			switch f[0] {
			case "Threads:":
				m[part+" threads"], err = strconv.Atoi(f[1])
			case "VmRSS:":
				m[part+" KiB"], err = strconv.Atoi(f[1])
			}
			must(t, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	m["mounts"] = bytes.Count(mounts, []byte(h.dir))
	passwd, err := os.ReadFile("/etc/passwd")
	must(t, err)
	m["users"] = bytes.Count(passwd, []byte(h.prefix))
	must(t, filepath.WalkDir("/sys/fs/cgroup", func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.Contains(path, h.instance().Cgroup) {
			m["control groups"]++
		}
		return nil
	}))
	return m
}

// grown says which measures grew beyond what the collector and the scheduler explain.
func grown(before, after measures) []string {
	var bad []string
	for what, was := range before {
		most := was
		switch {
		case strings.HasSuffix(what, "KiB"):
			most = was + was/3 + 6<<10
		case strings.HasSuffix(what, "threads"):
			most = was + 6
		case strings.HasSuffix(what, "descriptors"):
			most = was + 2
		}
		if after[what] > most {
			bad = append(bad, fmt.Sprintf("%s: %d, and %d before", what, after[what], was))
		}
	}
	return bad
}

// A thousand workspaces and ten thousand commands, or a twentieth of both where the time
// is short: nothing grows.
func TestGrowth(t *testing.T) {
	h := newHostUp(t)
	h.set(t, "create_per_hour", 1_000_000)
	part := 20
	if soakTime(t) > 0 {
		part = 1
	}
	h.carrel(t, "create", "--idle-timeout", "never", "crk stays")
	var d struct {
		PID int `json:"executor_pid"`
	}
	must(t, json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", "crk stays")), &d))
	work := func(cycles, execs int) {
		for i := range cycles {
			key := fmt.Sprint("crk cycle ", i%7)
			h.carrel(t, "create", key)
			h.carrel(t, "destroy", "--purge", key)
		}
		for range execs {
			h.carrel(t, "exec", "crk stays", "--", "/bin/true")
		}
	}
	work(10, 100)
	before := h.measure(t, d.PID)
	t.Logf("before: %v", before)
	work(1000/part, 10000/part)
	var bad []string
	until(t, "the end of what is under way", func() bool {
		bad = grown(before, h.measure(t, d.PID))
		return len(bad) == 0 || t.Failed()
	})
	t.Logf("after %d workspaces and %d commands: %v", 1000/part, 10000/part, h.measure(t, d.PID))
	for _, b := range bad {
		t.Errorf("grown: %s", b)
	}
	h.gone(t)
}

func TestGrowthIsSeen(t *testing.T) {
	before := measures{"broker KiB": 8000, "daemon threads": 8, "daemon descriptors": 12, "users": 1, "mounts": 0}
	if bad := grown(before, measures{"broker KiB": 9000, "daemon threads": 9, "daemon descriptors": 13, "users": 1}); len(bad) > 0 {
		t.Errorf("seen where there is none: %q", bad)
	}
	for what, n := range (measures{"broker KiB": 20000, "daemon threads": 40, "daemon descriptors": 30, "users": 2, "mounts": 1}) {
		if bad := grown(before, measures{what: n}); len(bad) != 1 {
			t.Errorf("%s of %d is not seen", what, n)
		}
	}
}
