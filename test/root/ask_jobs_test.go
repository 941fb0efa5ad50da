package root_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/ptytest"
)

var jobID = regexp.MustCompile(`\\"job\\":\\"(c-[0-9a-f]{16})\\"`)

// background is a step that goes on after its plan, for at most some seconds.
func background(target, command string, seconds int) map[string]any {
	s := planStep(target, command, false)
	s["background"] = true
	if seconds > 0 {
		s["timeout_seconds"] = seconds
	}
	return s
}

// told is the end of what a model was told, without the schema.
func told(said []string) string {
	last := said[len(said)-1]
	if i := strings.LastIndex(last, `"role":"user"`); i >= 0 {
		last = last[i:]
	}
	last, _, _ = strings.Cut(last, `"response_format"`)
	return last
}

// as is carrel for an operator with a home. Jobs end with the test.
func (o *operator) as(t *testing.T, m *modeled) func(args ...string) *exec.Cmd {
	carrel := func(args ...string) *exec.Cmd {
		c := m.command(context.Background(), o.Credential, args...)
		c.Env, c.Dir = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME="), o.home
		return c
	}
	t.Cleanup(func() {
		for _, job := range regexp.MustCompile(`c-[0-9a-f]{16}`).FindAllString(finish(carrel("job", "ls"), "").out, -1) {
			if r := finish(carrel("job", "stop", job), ""); r.code != 0 {
				t.Errorf("%+v", r)
			}
		}
	})
	return carrel
}

// A step in the background is approved as every other, its result is that it runs, and it goes on when the agent's turn, the
// process that began it and the daemon have ended: on this machine, in a workspace and on a remote host.
func TestAskInTheBackground(t *testing.T) {
	o := newOperator(t)
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	port, known := o.sshd(t, "127.0.0.2")
	other, _ := o.sshd(t, "127.0.0.3")
	o.write(t, ".ssh/known_hosts", []byte(known))
	o.write(t, ".config/carrel/hosts.yaml", fmt.Appendf(nil, "hosts:\n  web-1: {address: 127.0.0.2, port: %s}\n"+
		"  web-2: {address: 127.0.0.3, port: %s}\n", port, other))
	carrel := o.as(t, m)
	if r := finish(carrel("create", "demo"), ""); r.code != 0 {
		t.Fatal(r.err)
	}
	ask := func(prompt string) *ptytest.Terminal {
		return ptytest.Start(t, carrel("ask", "--llm", "m1", "--model", "house", prompt), 50, 160, false)
	}
	wait := func(name string) string {
		return "echo begun; while [ ! -e go-" + name + " ]; do sleep 0.05; done; echo from-" + name + "; exit 3"
	}
	s := m.script(t, always(planOfAll(background("host", wait("host"), 0), background("workspace demo", wait("demo"), 600),
		background("remote web-1", wait("web"), 86400), planStep("host", "echo after", false))), always(directly("they run")))
	mark := m.mark(t)
	x := ask("go on")
	x.Expect(question)
	if screen := x.Screen(); !strings.Contains(screen, "in the background for at most 1h0m0s, ") || !strings.Contains(screen, "at most 24h0m0s") {
		t.Errorf("asked %q", screen)
	}
	x.Type("y\n")
	x.Expect("they run")
	if code, screen := x.Wait(), x.Screen(); code != 0 || strings.Count(screen, "runs as job c-") != 3 || !strings.Contains(screen, "4. host: done") {
		t.Fatalf("%d: %q", code, screen)
	}
	said := s.said()
	found := jobID.FindAllStringSubmatch(said[len(said)-1], -1)
	if len(found) != 3 {
		t.Fatalf("the model was told %q", told(said))
	}
	host, demo, web := found[0][1], found[1][1], found[2][1]
	for _, job := range []string{host, demo, web} {
		m.recorded(t, mark, `"kind":"command.exec"`, `"detach":true`, job)
	}
	// That they began is no exit code.
	begins := map[string]bool{}
	for _, r := range m.since(t, mark) {
		if r.Type == "intent" && strings.Contains(r.raw, `"detach":true`) {
			begins[fmt.Sprintf(`"intent":%d,`, r.Seq)] = true
		}
		for intent := range begins {
			if r.Type == "outcome" && strings.Contains(r.raw, intent) {
				if delete(begins, intent); strings.Contains(r.raw, `"code"`) {
					t.Errorf("the record has an exit code of a job that began: %s", r.raw)
				}
			}
		}
	}
	if len(begins) > 0 {
		t.Errorf("of %v there is no outcome", begins)
	}
	// In the next turn the agent is told of them.
	s = m.script(t, always(directly("as I said")))
	r := finish(carrel("ask", "--llm", "m1", "--resume", "which?"), "")
	if said := s.said(); r.code != 0 || !strings.Contains(said[0], host) || !strings.Contains(said[0], demo) || !strings.Contains(said[0], web) {
		t.Errorf("%+v, and the model was told %q", r, told(said))
	}
	kill(t, m.part(t, "daemon"))
	type job struct {
		ID, Status, Target string
		Code               *int `json:"exit_code"`
	}
	list := func() (jobs []job) {
		r := finish(carrel("job", "ls", "-o", "json"), "")
		if r.code != 0 || json.Unmarshal([]byte(r.out), &jobs) != nil {
			t.Fatalf("%+v", r)
		}
		return jobs
	}
	for _, j := range list() {
		if j.Status != "running" || j.ID != host && j.ID != web {
			t.Errorf("%+v", j)
		}
	}
	for _, name := range []string{"host", "web"} {
		o.write(t, "go-"+name, nil)
	}
	until(t, "the end of the jobs", func() bool {
		jobs := list()
		return len(jobs) == 2 && jobs[0].Status == "exited 3" && jobs[1].Status == "exited 3"
	})
	for job, want := range map[string]string{host: "begun\nfrom-host\n", web: "begun\nfrom-web\n"} {
		if r := finish(carrel("job", "output", "--follow", job), ""); r.code != 0 || r.out != want {
			t.Errorf("%s: %+v", job, r)
		}
	}
	if err := m.up(); err != nil {
		t.Fatal(err)
	}
	if r := finish(carrel("exec", "demo", "--", "touch", "go-demo"), ""); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := finish(carrel("wait", "demo", demo), ""); r.out != "3\n" {
		t.Errorf("%+v", r)
	}
	if r := finish(carrel("logs", "demo", demo), ""); r.out != "begun\nfrom-demo\n" {
		t.Errorf("%+v", r)
	}
	// One that cannot begin fails the plan, and is not listed.
	left := filepath.Join(o.home, "left")
	s = m.script(t, always(planOfAll(background("remote web-2", "touch "+left, 0), planStep("host", "touch "+left, false))), always(directly("no")))
	x = ask("there")
	x.Expect(question)
	x.Type("y\n")
	x.Expect("no")
	x.Wait()
	if said := s.said(); !strings.Contains(said[len(said)-1], `\"outcome\":\"failed\"`) || len(list()) != 2 {
		t.Errorf("%v; the model was told %q", list(), told(said))
	}
	if _, err := os.Lstat(left); err == nil {
		t.Error("a step behind one that failed was run")
	}
	// What a plan waits for is not run in the background.
	var p map[string]any
	if err := json.Unmarshal([]byte(planOf("host", "true", true)), &p); err != nil {
		t.Fatal(err)
	}
	p["verification_commands"] = []any{background("host", "true", 0)}
	b, _ := json.Marshal(p)
	s = m.script(t, always(string(b)), always(directly("no")))
	if finish(carrel("ask", "--llm", "m1", "verify"), ""); !strings.Contains(s.said()[1], "the plan waits for what it says") {
		t.Errorf("the model was told %q", told(s.said()))
	}
	for _, job := range []string{host, web} {
		if r := finish(carrel("job", "rm", job), ""); r.code != 0 {
			t.Errorf("%+v", r)
		}
	}
	if left, _ := filepath.Glob(o.home + "/.local/state/carrel/*jobs/c-*"); len(left) > 0 || len(list()) != 0 {
		t.Errorf("there is %v", left)
	}
}

// A job goes on when "carrel ask" is killed right after it has begun, and is stopped with all that it has started. At its
// time it ends by itself.
func TestAskKilledInTheBackground(t *testing.T) {
	o := newOperator(t)
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	carrel := o.as(t, m)
	pids := filepath.Join(o.home, "pids")
	hold := make(chan struct{})
	defer close(hold)
	m.script(t, always(planOfAll(
		background("host", "setsid sleep 1000 & echo $! $$ > "+pids+"; wait", 600), background("host", "sleep 1000", 2),
	)), func(string) string {
		<-hold
		return directly("too late")
	})
	c := carrel("ask", "--llm", "m1", "--model", "house", "--on", "host", "go on")
	x := ptytest.Start(t, c, 50, 160, false)
	x.Expect(question)
	x.Type("y\n")
	x.Expect("2. host: runs as job c-")
	found := regexp.MustCompile(`runs as job (c-[0-9a-f]{16})`).FindAllStringSubmatch(x.Screen(), -1)
	kill(t, c.Process.Pid)
	x.Wait()
	if len(found) != 2 {
		t.Fatalf("%q", x.Screen())
	}
	show := func(job string) string { return finish(carrel("job", "show", job), "").out }
	var group, child int
	until(t, "the numbers of the job's processes", func() bool {
		b, _ := os.ReadFile(pids)
		n, _ := fmt.Sscan(string(b), &child, &group)
		return n == 2
	})
	if out := show(found[0][1]); !strings.Contains(out, "running") {
		t.Errorf("%q", out)
	}
	until(t, "the end of the job whose time is over", func() bool { return strings.Contains(show(found[1][1]), "timed out") })
	began := time.Now()
	if r := finish(carrel("job", "stop", found[0][1]), ""); r.code != 0 || !strings.Contains(r.out, "stopped") {
		t.Errorf("%+v after %v", r, time.Since(began))
	}
	for _, pid := range []int{child, group} {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(b), ") Z ") {
			t.Errorf("process %d of the job is there: %s", pid, b)
		}
	}
}
