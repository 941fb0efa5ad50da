package rootless_test

import (
	"bufio"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a command leaves that a program of the host would act on is moved out of the project and said; it can be put back.
func TestHeldBack(t *testing.T) {
	u := newUser(t)
	u.sh("mkdir -p project/sub project/pkg; echo old > project/pkg/.eslintrc.js; echo old > project/pkg/.npmrc; mkdir -p project/deep/er/.vscode; echo s > project/deep/er/.vscode/tasks.json; git -C project/pkg init -q old")
	r := u.inside(`echo a > .npmrc; mkdir -p .yarn/plugins; echo b > .yarn/plugins/x.cjs; echo c > sub/.eslintrc.js; echo new > pkg/.eslintrc.js; (echo evil > pkg/.npmrc; rm -f pkg/.npmrc; mv pkg p; mv deep d; rm -rf deep/er/.vscode; echo evil > deep/er/.vscode/tasks.json; cp pkg/.npmrc x) 2>/dev/null; cmp x pkg/.npmrc; git init -q sub/repo;
		ln -s /etc/passwd .pryrc; echo src > main.go; mkdir -p node_modules/x/.bin; echo d > node_modules/x/.npmrc; mkdir -p sub/.Claude; echo e > sub/.Claude/settings.json`)
	if r.code != 0 || !strings.Contains(r.err, "held back, as programs of the host act on it: ") || !strings.Contains(r.err, ".npmrc (npm") {
		t.Fatalf("%+v", r)
	}
	if lines := strings.Count(r.err, "\n"); lines > 10 {
		t.Errorf("%d lines: %s", lines, r.err)
	}
	if got := u.sh("cd project; ls -A .npmrc .yarn/plugins sub/.eslintrc.js sub/repo/.git .pryrc sub/.Claude 2>/dev/null | grep -v :; cat main.go pkg/.eslintrc.js node_modules/x/.npmrc pkg/.npmrc deep/er/.vscode/tasks.json").out; got != "src\nnew\nd\nold\ns\n" {
		t.Errorf("left: %q", got)
	}
	// What was there already is not moved, and is said.
	if !strings.Contains(r.err, "pkg/.eslintrc.js is acted on by ") {
		t.Errorf("it does not say that pkg/.eslintrc.js was changed: %s", r.err)
	}
	run := strings.Fields(u.sh("ls .local/state/carrel/back").out)
	list := finish(u.command("", filepath.Join(programs, "carrel"), "changes"), "")
	if len(run) != 1 || !strings.Contains(list.out, run[0]) || !strings.Contains(list.out, "sub/.eslintrc.js") {
		t.Fatalf("%q, %+v", run, list)
	}
	carrel := func(args ...string) result {
		return finish(u.command("", filepath.Join(programs, "carrel"), append([]string{"changes"}, args...)...), "")
	}
	u.sh("echo mine > project/.npmrc")
	if r := carrel("--restore", run[0], ".npmrc"); r.code == 0 || u.sh("cat project/.npmrc").out != "mine\n" {
		t.Errorf("a file of the person's is replaced: %+v", r)
	}
	if r := carrel("--restore", run[0], "sub/.eslintrc.js", ".pryrc"); r.code != 0 || u.sh("cat project/sub/.eslintrc.js; readlink project/.pryrc").out != "c\n/etc/passwd\n" {
		t.Errorf("%+v", r)
	}
	// A way to it that has become a link is not followed.
	u.sh("mkdir -p away; rm -rf project/.yarn; ln -s ../away project/.yarn")
	if r := carrel("--restore", run[0], ".yarn/plugins"); r.code == 0 || u.sh("ls -A away").out != "" {
		t.Errorf("a link is followed: %+v", r)
	}
	for _, bad := range [][]string{{"--restore", "../x"}, {"--restore", "run-00000000"}, {"--restore", run[0], "none"}, {"x"}, {"--restore", "a", "--discard", "b"}} {
		if r := carrel(bad...); r.code == 0 || r.err == "" {
			t.Errorf("%q: %+v", bad, r)
		}
	}
	if r := carrel("--discard", run[0]); r.code != 0 || u.sh("ls -A .local/state/carrel/back").out != "" {
		t.Errorf("%+v", r)
	}
	if r := carrel("-o", "json"); r.out != "[]\n" {
		t.Errorf("%+v", r)
	}
}

// A name that gets what an earlier run has written, among installed packages, or beside very many others, is found all the same.
func TestHiddenNames(t *testing.T) {
	u := newUser(t)
	u.sh("mkdir -p project/sub")
	if r := u.inside("mkdir -p stage/x; echo evil > stage/x/settings.json; git init -q stage/repo; echo a > stage/rc"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	time.Sleep(50 * time.Millisecond) //nolint:forbidigo // there is no event for a tick of the kernel's clock
	r := u.inside(`mv stage/x sub/.qwen; mv stage/rc sub/.exrc; mkdir -p venv/lib; git init -q venv/lib/repo;
		mkdir -p sub/.github/hooks; echo h > sub/.github/hooks/h.json; mkdir many; cd many; for i in $(seq 300); do : > $i; done`)
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := u.sh("cd project; ls -Ad sub/.qwen sub/.exrc venv/lib/repo/.git sub/.github/hooks 2>/dev/null").out; got != "" {
		t.Errorf("left: %q; %s", got, r.err)
	}
}

// What a run makes that still works is not taken away by the end of another.
func TestTwoAtWork(t *testing.T) {
	u := newUser(t)
	long := u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "-i", "--", "sh", "-c",
		"echo a > .npmrc; echo made; read x; cat .npmrc")
	in, err := long.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := long.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "made" {
		t.Fatalf("it says %q", lines.Text())
	}
	if r := u.inside("echo b > .yarnrc"); r.code != 0 || !strings.Contains(r.err, "another run is at work in it") || !strings.Contains(r.err, ".yarnrc is acted on") {
		t.Errorf("%+v", r)
	}
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != "a" {
		t.Errorf("its file is gone: %q", lines.Text())
	}
	if err := long.Wait(); err != nil {
		t.Error(err)
	}
	if got := u.sh("cd project; ls -A .npmrc .yarnrc 2>/dev/null").out; got != "" {
		t.Errorf("the last one left %q", got)
	}
}

// What else a person should look at is said in few lines, and source is not.
func TestWhatChanged(t *testing.T) {
	u := newUser(t)
	u.sh("mkdir -p project/store; echo s > store; ln store project/linked; echo f > project/f")
	if r := u.inside("echo x > f; mkdir -p src; echo y > src/new.go"); r.code != 0 || r.err != "" {
		t.Errorf("of source it says: %+v", r)
	}
	if r := u.inside("true"); r.err != "" {
		t.Errorf("of nothing it says: %+v", r)
	}
	var list []struct{ Project, Path, Kind, Reader string }
	r := u.run("--here", "--changes", "../changes.json", "--", "sh", "-c", "echo y > src/new.go; echo c > CLAUDE.md")
	if err := json.Unmarshal([]byte(u.sh("cat changes.json").out), &list); err != nil || r.code != 0 || len(list) != 2 || list[0].Path != "CLAUDE.md" ||
		list[0].Kind != "acted" || list[0].Reader == "" || list[1].Kind != "source" || list[1].Project != filepath.Join(u.home, "project") {
		t.Errorf("%+v, %v, %+v", r, err, list)
	}
	r = u.inside(`echo z > linked; mkfifo wait; ln -s ~/.ssh out; ln -s ../../.. up; mkdir -p node_modules/.bin .venv/bin; echo a > node_modules/.bin/tsc; chmod +x node_modules/.bin/tsc
		echo b > AGENTS.md; printf 'n\n' > "$(printf 'a\033[2Jb.code-workspace')"; mkdir closed; touch closed/x; chmod 0 closed`)
	for _, want := range []string{
		"AGENTS.md is acted on by", "links that lead out of the directory: out, up", "that a program that reads them may wait for ever: wait",
		"with other names, which were changed with them: linked", "programs that git may not show: node_modules/.bin/tsc", "1 files or directories were not looked at",
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("it does not say %q:\n%s", want, r.err)
		}
	}
	if strings.Contains(r.err, "\033") || strings.Count(r.err, "\n") > 10 {
		t.Errorf("it says\n%s", r.err)
	}
	u.sh("chmod 700 project/closed")
}

// A report that a run is asked for goes through no link, and waits for nobody.
func TestReportFollowsNothing(t *testing.T) {
	u := newUser(t)
	u.sh("cd project; ln -s ../.bashrc proof.json; mkfifo fifo; ln -s .. up")
	for _, path := range []string{"proof.json", "fifo"} {
		began := time.Now()
		if r := u.run("--here", "--report", path, "--", "true"); r.code != 0 || time.Since(began) > time.Minute {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if r := u.run("--here", "--report", "up/.bashrc", "--", "true"); r.code == 0 {
		t.Errorf("through a directory: %+v", r)
	}
	if got := u.sh("cat .bashrc; cd project; stat -c %F proof.json fifo").out; got != "rc\nregular file\nregular file\n" {
		t.Errorf("%q", got)
	}
}

// Of two writable mounts neither contains the other.
func TestMountsApart(t *testing.T) {
	u := newUser(t)
	u.sh("mkdir -p project/inner beside")
	at := u.home + "/project"
	for _, mounts := range [][]string{{at, at + "/inner"}, {at + "/inner", at}, {at, at}} {
		if r := u.run("-v", mounts[0]+":/mnt/a", "-v", mounts[1]+":/mnt/b", "--", "true"); r.code != 125 || !strings.Contains(r.err, "one contains the other") {
			t.Errorf("%q: %+v", mounts, r)
		}
	}
	for _, mounts := range [][]string{{at, u.home + "/beside"}, {at, at + "/inner:/mnt/b:ro"}} {
		second := mounts[1]
		if !strings.Contains(second, ":") {
			second += ":/mnt/b"
		}
		if r := u.run("-v", mounts[0]+":/mnt/a", "-v", second, "--", "true"); r.code != 0 {
			t.Errorf("%q: %+v", mounts, r)
		}
	}
}

// The run after one that was killed says what was changed since that one began.
func TestKilledRunIsSaid(t *testing.T) {
	u := newUser(t)
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "--", "sh", "-c", "echo x > .yarnrc; echo y > source; echo made; sleep 60")
	_, out := piped(t, c)
	if lines := bufio.NewScanner(out); !lines.Scan() || lines.Text() != "made" {
		t.Fatalf("it says %q", lines.Text())
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if r := u.run("--", "true"); r.code != 0 || !strings.Contains(r.err, "which was killed, began: .yarnrc is acted on") || strings.Contains(r.err, "source") {
		t.Errorf("%+v", r)
	}
	if r := u.run("--", "true"); r.code != 0 || r.err != "" || u.sh("ls project/.yarnrc").code != 0 {
		t.Errorf("%+v", r)
	}
}
