package root_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// patchOf is a plan that changes files of a target, and looks at them afterwards by a command there.
func patchOf(target, diff, look string, files ...string) string {
	checks := []any{}
	if look != "" {
		checks = append(checks, planStep(target, look, true))
	}
	b, _ := json.Marshal(map[string]any{
		"type": "file_patch_plan", "goal": "use another port", "request_intent": "update", "target": target, "files_changed": files,
		"unified_diff": diff, "risk_summary": "r", "verification_commands": checks, "rollback_commands": []any{}, "permission_changes": []any{},
	})
	return string(b)
}

// portDiff changes the first line of a file.
func portDiff(path string) string {
	return "--- a/" + path + "\n+++ b/" + path + "\n@@ -1,2 +1,2 @@\n-port = 80\n+port = 8080\n name = a\n"
}

// answering asks for a change, and gives answers at the terminal.
func (m *modeled) answering(t *testing.T, who *syscall.Credential, expect, keys string) *ptytest.Terminal {
	t.Helper()
	c := m.command(context.Background(), who, "ask", "--llm", "m1", "--model", "house", "--on", "none", "change it")
	x := ptytest.Start(t, c, 60, 120, false)
	x.Expect(expect)
	if keys != "" {
		x.Type(keys)
	}
	return x
}

// A patch for a workspace is shown with its lines, made on a yes alone inside it and as its commands' user, recorded with the
// workspace as its target, and undone. What is no file of its own is refused before anybody is asked.
func TestAskForAPatchOfAWorkspace(t *testing.T) {
	m, alice, _ := newAsked(t)
	d := m.look(t, "demo")
	d.sh(t, `printf 'port = 80\nname = a\n' > app.conf; chmod 640 app.conf; mkdir d; printf 'secret\nname = a\n' > d/x`)
	text := func() string {
		return d.sh(t, "cat app.conf; stat -c '%u %a' app.conf; ls -A . | grep -c carrel-p || true")
	}
	const was, is = "port = 80\nname = a\n", "port = 8080\nname = a\n"
	own := fmt.Sprintf("%d 640\n0", d.UID)
	for i, keys := range []string{"n\n\n", "y\n"} {
		mark := m.mark(t)
		plan := patchOf("workspace demo", portDiff("app.conf"), "grep 8080 app.conf", "app.conf")
		s := m.script(t, always(plan), always(directly("it is changed")))
		x := m.answering(t, alice, question, "")
		if screen := x.Screen(); !strings.Contains(screen, "+port = 8080") || !strings.Contains(screen, "workspace demo: change 1 file") {
			t.Errorf("asked %q", screen)
		}
		if got := text(); got != was+own {
			t.Errorf("changed before the answer: %q", got)
		}
		x.Type(keys)
		if i == 0 {
			x.Expect("not approved")
			x.Wait()
			if got := text(); got != was+own {
				t.Errorf("changed without a yes: %q", got)
			}
			continue
		}
		x.Expect("it is changed")
		x.Wait()
		if got := text(); got != is+own {
			t.Errorf("%q, and has to be %q", got, is+own)
		}
		if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "port = 8080") { // the command behind it has seen it
			t.Errorf("the model was told %q", last(said))
		}
		m.recorded(t, mark, `"kind":"patch.plan"`, `"files":["app.conf"]`)
		m.recorded(t, mark, `"kind":"patch.apply"`, `"workspace":"`+d.Name+`"`, `"files":["/home/work/app.conf"]`)
	}
	id := regexp.MustCompile(`p-[0-9a-f]{16}`).FindString(m.carrel(t, "undo", "--on", "demo"))
	if other := user(t, "crt-other"); id == "" || m.try(other, "", "undo", "--on", "demo", id).code == 0 ||
		m.try(other, "", "undo", "--on", d.Name).code == 0 {
		t.Errorf("the change %q is another user's to undo, or to see", id)
	}
	if r := m.try(alice, "", "undo", "--on", "demo", id); r.code != 0 || text() != was+own {
		t.Errorf("%+v, %q", r, text())
	}
	if r := m.try(alice, "", "undo", "--on", "demo", id); r.code == 0 || !strings.Contains(r.err, "undone before") {
		t.Errorf("%+v", r)
	}
	// What changes between the question and the answer is not overwritten: it is merged, or nothing is changed.
	change := func(happens, says string) {
		t.Helper()
		m.script(t, always(patchOf("workspace demo", portDiff("app.conf"), "", "app.conf")), always(directly("so it is")))
		x := m.answering(t, alice, question, "")
		d.sh(t, happens)
		x.Type("y\n")
		x.Expect(says)
		x.Expect("so it is")
		x.Wait()
	}
	mark := m.mark(t)
	change("printf 'port = 80\nname = a\nmore\n' > app.conf", "done; merged, as it had changed elsewhere meanwhile: app.conf")
	if got := d.sh(t, "cat app.conf"); got != "port = 8080\nname = a\nmore" {
		t.Errorf("%q", got)
	}
	m.recorded(t, mark, `"type":"outcome"`, `"merged":["app.conf"],"made":"sha256:`)
	for _, c := range m.made(t) { // those of other contents are refused
		m.try(alice, "", "undo", "--on", "demo", c)
	}
	if got := d.sh(t, "cat app.conf"); got != "port = 80\nname = a\nmore" {
		t.Errorf("undone: %q", got)
	}
	for happens, is := range map[string]string{
		"printf 'port = 80\nname = b\n' > app.conf":                                  "port = 80\nname = b",
		"printf 'port = 80\nname = a\n' > app.conf; mv app.conf s; ln -s s app.conf": "port = 80\nname = a",
		"rm app.conf; mkfifo app.conf; printf x > s":                                 "x",
	} {
		d.sh(t, `rm -f app.conf s; printf 'port = 80\nname = a\n' > app.conf; chmod 640 app.conf`)
		change(happens, "has changed since")
		if got := d.sh(t, "[ -f s ] && cat s || cat app.conf"); got != is {
			t.Errorf("%s: %q", happens, got)
		}
	}
	d.sh(t, `rm -f app.conf s; printf 'port = 80\nname = a\n' > app.conf; chmod 640 app.conf`)
	// Links, pipes, second names and what is not the workspace's own are no files to change, and nobody is asked.
	d.sh(t, `ln -s d l; ln -s /etc e; ln app.conf hard; mkfifo pipe; ln -s app.conf link`)
	for path, why := range map[string]string{
		"l/x": "symbolic link", "e/hosts": "symbolic link", "link": "symbolic link", "hard": "hard links", "pipe": "pipe", "d": "directory",
		"../x": "is not usable", "/proc/self/environ": "no file in /proc", "/dev/full": "no file in /dev", "none": "not there",
	} {
		s := m.script(t, always(patchOf("workspace demo", portDiff(path), "", path)), always(directly("done")))
		r := m.try(alice, "", "ask", "--llm", "m1", "--on", "none", "change it")
		if said := s.said(); r.code != 0 || strings.Contains(r.err, "plan 1") || len(said) != 2 || !strings.Contains(said[1], why) {
			t.Errorf("%s: %+v, the model was told %q", path, r, last(said))
		}
	}
	// Another user's workspace is none to change, and nothing of it is read.
	theirs := user(t, "crt-theirs")
	if r := m.try(theirs, "", "create", "theirs"); r.code != 0 {
		t.Fatal(r.err)
	}
	mark = m.mark(t)
	s := m.script(t, always(patchOf("workspace theirs", portDiff("app.conf"), "", "app.conf")), always(directly("done")))
	if r := m.try(alice, "", "ask", "--llm", "m1", "--on", "none", "change it"); strings.Contains(r.err, "plan 1") {
		t.Errorf("%+v", r)
	}
	for _, r := range m.since(t, mark) {
		if strings.Contains(r.raw, `"patch.plan"`) && r.Type != "denial" {
			t.Errorf("read for another: %s", r.raw)
		}
	}
	if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "invalid") {
		t.Errorf("the model was told %q", last(said))
	}
}

// made are the changes to files of the workspace demo that can be undone.
func (m *modeled) made(t *testing.T) (ids []string) {
	t.Helper()
	var all []struct{ ID, State string }
	if err := json.Unmarshal([]byte(m.carrel(t, "undo", "--on", "demo", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.State == "made" {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Whoever dies between the exchange of two files, all files are changed in the end, or none; and the change can be undone.
func TestAPatchThatIsKilled(t *testing.T) {
	m, alice, _ := newAsked(t)
	const files = 12
	script := `for i in $(seq 10 21); do
		{ echo "port = 80"; yes "name = a line of a file that is long enough" | head -c 2000000; } > f$i
	done`
	var diff strings.Builder
	var names []string
	for i := range files {
		name := fmt.Sprintf("f%d", i+10)
		names = append(names, name)
		fmt.Fprintf(&diff, "--- a/%[1]s\n+++ b/%[1]s\n@@ -1,1 +1,1 @@\n-port = 80\n+port = 8080\n", name)
	}
	for _, who := range []string{"program", "executor"} {
		m.look(t, "demo").sh(t, script)
		m.script(t, always(patchOf("workspace demo", diff.String(), "", names...)), always(directly("so it is")))
		x := m.answering(t, alice, "[f] choose among its files  [n] no: ", "")
		d := m.look(t, "demo")
		changes := watchHome(t, d)
		x.Type("y\n")
		changes.until(t, "a new file", func(mask uint32, name string) bool {
			return mask&unix.IN_CREATE != 0 && strings.HasPrefix(name, ".carrel-p-")
		})
		pid := d.archiver(t, "files")
		if who == "executor" {
			pid = d.ExecutorPID
		}
		changes.until(t, "an exchange", func(mask uint32, name string) bool {
			return mask&unix.IN_MOVED_TO != 0 && strings.HasPrefix(name, "f1")
		})
		kill(t, pid)
		x.Wait()
		if screen := x.Screen(); !strings.Contains(screen, "cannot finish") {
			t.Errorf("%s: %q", who, screen)
		} else if who == "program" && !strings.Contains(screen, "was finished") && !strings.Contains(screen, "was taken back") {
			t.Errorf("what was begun is not put right at once: %q", screen)
		}
		m.carrel(t, "undo", "--on", "demo") // what is left half done is put right by the next request at the latest
		d = m.look(t, "demo")
		all := d.sh(t, `head -qn1 f?? | sort | uniq -c | tr -s ' '; ls -A | grep -c carrel-p || true`)
		if all != "12 port = 8080\n0" && all != "12 port = 80\n0" {
			t.Errorf("%s: some files are changed and others are not: %q", who, all)
		}
		t.Logf("%s: %s", who, strings.ReplaceAll(all, "\n", ", "))
		if strings.Contains(all, "8080") {
			list := m.carrel(t, "undo", "--on", "demo", "-o", "json")
			var made []struct{ ID, State string }
			if err := json.Unmarshal([]byte(list), &made); err != nil {
				t.Fatal(err)
			}
			for _, c := range made {
				if c.State == "made" && m.try(alice, "", "undo", "--on", "demo", c.ID).code == 0 {
					break
				}
			}
			if all := d.sh(t, `head -qn1 f?? | sort | uniq -c | tr -s ' '`); all != "12 port = 80" {
				t.Errorf("%s: undone: %q", who, all)
			}
		}
	}
}

// homeWatch is what happens to the names in a workspace's home.
type homeWatch struct{ f *os.File }

func watchHome(t *testing.T, d *desk) *homeWatch {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w := &homeWatch{os.NewFile(uintptr(fd), "inotify")}
	if err := w.f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.f.Close() })
	if _, err := unix.InotifyAddWatch(fd, d.Home, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	return w
}

// until reads events up to one of which is says that it is meant.
func (w *homeWatch) until(t *testing.T, what string, is func(mask uint32, name string) bool) {
	t.Helper()
	buf := make([]byte, 4096)
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask, size := leUint32(b[4:]), int(leUint32(b[12:]))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00"))
			if is(mask, name) {
				return
			}
			b = b[unix.SizeofInotifyEvent+size:]
		}
	}
}

// last is the end of the last thing that a model was asked.
func last(said []string) string {
	if len(said) == 0 {
		return ""
	}
	s := said[len(said)-1]
	return s[max(len(s)-500, 0):]
}

func leUint32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// Step by step a person is asked about a change to several files by itself, and chooses from them by the same key; what the plan does
// behind it is asked about afterwards.
func TestSomeFilesStepByStep(t *testing.T) {
	m, alice, _ := newAsked(t)
	d := m.look(t, "demo")
	d.sh(t, `for f in a.conf b.conf; do printf 'port = 80\nname = a\n' > $f; done`)
	texts := func() string { return d.sh(t, "head -qn1 a.conf b.conf") }
	const look = "git push -q https://example.invalid/in x; cat a.conf" // which needs an answer
	plan := patchOf("workspace demo", portDiff("a.conf")+portDiff("b.conf"), "", "a.conf", "b.conf")
	plan = strings.Replace(plan, `"verification_commands":[]`, `"verification_commands":[`+string(stepJSON(t, planStep("workspace demo", look, false)))+`]`, 1)
	mark := m.mark(t)
	s := m.script(t, always(plan), always(directly("so it is")))
	x := m.answering(t, alice, "[s] step by step", "s\n")
	x.Expect("Run it?  [y] once  [f] choose among its files")
	if got := texts(); got != "port = 80\nport = 80" {
		t.Errorf("before an answer to the step: %q", got)
	}
	x.Type("f\n")
	for i, key := range []string{"n\n", "y\n"} {
		x.Expect(fmt.Sprintf("%d of 2: change %c.conf?", i+1, 'a'+i))
		x.Type(key)
	}
	x.ExpectAfter("left as they are: a.conf", "2. verification, workspace ")
	if got := texts(); got != "port = 80\nport = 8080" {
		t.Errorf("after an answer to the step: %q", got)
	}
	x.ExpectAfter("2. verification, workspace ", question)
	x.Type("n\nthat is enough\n")
	x.Expect("not approved")
	x.Wait()
	if said := s.said(); len(said) != 1 { // a denial ends the turn
		t.Errorf("the model was told %q", last(said))
	}
	m.recorded(t, mark, `"type":"approval"`, `"kind":"steps"`)
	m.recorded(t, mark, `"type":"approval"`, `"kind":"files"`, `"files":["b.conf"]`)
	m.recorded(t, mark, `"kind":"plan.run"`, `"from":1,"whole":2`, "change 1 of 2 files", " files by uid:")
	m.recorded(t, mark, `"kind":"patch.apply"`, `"files":["/home/work/b.conf"]`)
}

func stepJSON(t *testing.T, step map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(step)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A person lets some files of a change through, at the question or by its id: those alone are changed, the model is told which
// were left out, and the record has the smaller plan with its own digest.
func TestSomeFilesOfAPatch(t *testing.T) {
	m, alice, _ := newAsked(t)
	d := m.look(t, "demo")
	reset := func() { d.sh(t, `for f in a.conf b.conf c.conf; do printf 'port = 80\nname = a\n' > $f; done`) }
	texts := func() string { return d.sh(t, "head -qn1 a.conf b.conf c.conf") }
	plan := patchOf("workspace demo", portDiff("a.conf")+portDiff("b.conf")+portDiff("c.conf"), "cat a.conf", "a.conf", "b.conf", "c.conf")
	reset()
	mark := m.mark(t)
	s := m.script(t, always(plan), always(directly("so it is")))
	x := m.answering(t, alice, "[f] choose among its files", "f\n")
	for i, key := range []string{"y\n", "n\n", "y\n"} {
		x.Expect(fmt.Sprintf("%d of 3: change %c.conf?", i+1, 'a'+i))
		x.Type(key)
	}
	x.Expect("left as they are: b.conf")
	x.Expect("so it is")
	x.Wait()
	if got := texts(); got != "port = 8080\nport = 80\nport = 8080" {
		t.Errorf("%q", got)
	}
	if said := s.said(); len(said) != 2 || !strings.Contains(said[1], `\"left_out\":[\"b.conf\"]`) {
		t.Errorf("the model was told %q", last(said))
	}
	m.recorded(t, mark, `"type":"approval"`, `"kind":"files"`, `"files":["a.conf","c.conf"]`)
	m.recorded(t, mark, `"kind":"plan.run"`, "change 2 of 3 files", " files by uid:")
	m.recorded(t, mark, `"kind":"patch.apply"`, `"files":["/home/work/a.conf","/home/work/c.conf"]`)
	digestOf := func(texts ...string) string {
		for _, r := range m.since(t, mark) {
			if hit := regexp.MustCompile(`"action_digest":"(sha256:[0-9a-f]+)"`).FindStringSubmatch(r.raw); hit != nil && containsAll(r.raw, texts) {
				return hit[1]
			}
		}
		return ""
	}
	asked, answered := digestOf(`"type":"request"`), digestOf(`"type":"approval"`, `"kind":"files"`)
	run := digestOf(`"type":"intent"`, "2 of 3 files")
	if answered == "" || asked == answered || run != answered {
		t.Errorf("asked about %s, approved %s, and run %s", asked, answered, run)
	}
	// By its id, as an administrator: a file that is none of it changes nothing of the question.
	reset()
	s = m.script(t, always(plan), always(directly("so it is")))
	waits := m.follow(t, nil, "ask", "--llm", "m1", "--model", "house", "--on", "none", "--wait", "2m", "change it")
	var name string
	until(t, "the question is there", func() bool {
		name = regexp.MustCompile(`ap-[0-9a-f]{16}`).FindString(m.carrel(t, "approvals", "list"))
		return name != ""
	})
	r := m.try(nil, "", "approvals", "approve", "--yes", "--files", "a.conf,other", name)
	if r.code == 0 || !strings.Contains(r.err, "name some of a.conf") {
		t.Errorf("%+v", r)
	}
	if r := m.try(nil, "", "approvals", "approve", "--yes", "--files", "b.conf", name); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if err := waits.wait(); err != nil {
		t.Errorf("%v: %s", err, waits.errs.String())
	}
	if got := texts(); got != "port = 80\nport = 8080\nport = 80" {
		t.Errorf("%q", got)
	}
	if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "left_out") {
		t.Errorf("the model was told %q", last(said))
	}
}

func containsAll(s string, all []string) bool {
	for _, x := range all {
		if !strings.Contains(s, x) {
			return false
		}
	}
	return true
}
