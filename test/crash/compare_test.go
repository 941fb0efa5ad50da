package crash_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/crash/check"
)

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
