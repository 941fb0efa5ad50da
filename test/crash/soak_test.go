package crash_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// How much is done, unless SOAKTIME says for how long: then it goes on until that has
// passed, and growth is measured in full if it is at least fullGrowth.
const (
	soakKills  = 100
	fullGrowth = 30 * time.Minute
	soakBound  = 4 * time.Minute // a minute on a quiet host
	// roundKills is how many kills come before everything is compared.
	roundKills = 50
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

// Killed at random while clients are at work, in rounds: carrel comes up every time, and after each round
// ledger, kernel, API and record agree, what was acknowledged is there, nothing ran twice and no id was
// given out again. In the end nothing is left.
func TestSoak(t *testing.T) {
	h := newHostUp(t)
	h.set(t, "create_per_hour", 1_000_000)
	h.set(t, "create_burst", 1_000_000)
	n := seed(t)
	r := mrand.New(mrand.NewPCG(n, 0))
	s := newStorm(h, n)
	begin, long := time.Now(), soakTime(t)
	rounds := 0
	for more := true; more && !t.Failed(); rounds++ {
		s.round(t, r, roundKills)
		s.compare(t)
		if long > 0 {
			more = time.Since(begin) < long
		} else {
			more = s.killed() < soakKills && time.Since(begin) < soakBound
		}
		if long > 0 || !more {
			t.Logf("round %d, %v: %s", rounds, time.Since(begin).Round(time.Second), s)
		}
	}
	if long == 0 && s.killed() < soakKills {
		t.Errorf("only %d of %d kills came within %v", s.killed(), soakKills, soakBound)
	}
	if s.acknowledged < s.killed()/4 {
		t.Errorf("only %d operations were acknowledged: the test has seen little", s.acknowledged)
	}
	for key := range strings.FieldsSeq(h.carrel(t, "ls", "-q")) {
		h.carrel(t, "destroy", "--purge", key)
	}
	h.settled(t)
	h.look(t, check.Expect{Retained: h.retained(t)})
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
	if soakTime(t) >= fullGrowth {
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
