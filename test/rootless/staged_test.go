package rootless_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stagedIn runs a script in a staged copy of the project, and returns the run's name, "" if nothing was changed.
func (u *user) stagedIn(script string, flags ...string) (r result, run string) {
	u.t.Helper()
	r = u.run(append(append([]string{"--here=staged"}, flags...), "--", "bash", "-c", script)...)
	if _, name, ok := strings.Cut(r.err, "carrel diff "); ok {
		run, _, _ = strings.Cut(name, " ")
	} else if _, name, ok := strings.Cut(r.err, "carrel undo "); ok {
		run, _, _ = strings.Cut(name, " ")
	}
	return r, run
}

// carrel runs a command of carrel's in the project's directory.
func (u *user) cli(args ...string) result {
	u.t.Helper()
	return finish(u.command("project", filepath.Join(programs, "carrel"), args...), "")
}

// digest is all of the project: names, modes, owners, contents, times of change.
const digest = `cd ~/project && find . -printf '%p %y %m %U %n %C@ %l\n' | sort && find . -type f -exec sha256sum {} + | sort`

// Copies are kept until somebody removes them, and a run says when they are many.
func TestManyStagedCopies(t *testing.T) {
	u := newUser(t)
	u.sh("rm -rf project/.git")
	r, first := u.stagedIn("echo 1 > a")
	if r.code != 0 || strings.Contains(r.err, "are kept") {
		t.Fatalf("%+v", r)
	}
	for range 19 {
		r, _ = u.stagedIn("echo 1 > a")
	}
	if !strings.Contains(r.err, "carrel: 20 staged copies are kept, the oldest since 20") {
		t.Errorf("%+v", r)
	}
	if r := u.cli("discard", "--older", "1h"); r.code != 0 || r.out != "" {
		t.Errorf("%+v", r)
	}
	if r := u.cli("discard", "--older", "never"); r.code == 0 {
		t.Errorf("%+v", r)
	}
	record, err := filepath.Glob(u.home + "/.local/state/carrel/staged/" + first + "/*/copy.json")
	if err != nil || len(record) != 1 {
		t.Fatal(record, err)
	}
	u.sh(`sed -i 's/"made":"20[0-9]*-/"made":"2001-/' ` + record[0])
	if r := u.cli("discard", "--older", "7d"); r.code != 0 || !strings.HasPrefix(r.out, "discarded: what "+first) || strings.Count(r.out, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	if r := u.cli("changes", "-o", "json"); strings.Contains(r.out, first) || strings.Count(r.out, `"staged":`) != 19 {
		t.Errorf("%+v", r)
	}
}

// apply and undo are killed at any moment, as with a closed terminal. What is found then is all of it, or none.
func TestApplyIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it takes a while")
	}
	u := newUser(t)
	const files = 300
	u.sh(fmt.Sprintf("rm -rf project/.git; cd project; for i in $(seq %d); do echo old > f$i; done", files))
	r, run := u.stagedIn(fmt.Sprintf("for i in $(seq %d); do echo new > f$i; done", files))
	if r.code != 0 || run == "" {
		t.Fatalf("%+v", r)
	}
	whole := func(when string) (applied bool) {
		t.Helper()
		n := strings.TrimSpace(u.sh("cat project/f* | grep -c new").out)
		if n != "0" && n != strconv.Itoa(files) {
			t.Fatalf("%s: %s of %d files are new", when, n, files)
		}
		if left := u.sh("ls -A project | grep -v ^f").out; left != "" {
			t.Fatalf("%s: left are %q", when, left)
		}
		return n != "0"
	}
	stopped := map[string]int{}
	for i := range 24 {
		what := "apply"
		if whole("before") {
			what = "undo"
		}
		c := u.command("project", filepath.Join(programs, "carrel"), what, run)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		early := make(chan error, 1)
		go func() { early <- c.Wait() }()
		select {
		case <-early:
		case <-time.After(time.Duration(10+7*i) * time.Millisecond):
			_ = c.Process.Kill()
			<-early
			stopped[what]++
		}
		// Whoever comes next finishes it or takes it back: who looks, and another run.
		next := u.cli("diff", run)
		if i%2 == 0 {
			next = u.run("--here=direct", "--", "true")
		}
		if next.code != 0 {
			t.Fatalf("after %s was killed: %+v", what, next)
		}
		whole("after " + what)
	}
	if stopped["apply"]+stopped["undo"] < 6 {
		t.Errorf("hardly one was killed: %v", stopped)
	}
	// What would take it back does not go before it is taken back.
	if whole("at the end") {
		u.cli("undo", run)
	}
	for i := 0; ; i++ {
		c := u.command("project", filepath.Join(programs, "carrel"), "apply", run)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(10+5*i) * time.Millisecond)
		_ = c.Process.Kill()
		if c.Wait() == nil || u.sh("ls -A project | grep -c ^[.]").out != "0\n" {
			break
		}
	}
	if r := u.cli("discard", run); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	whole("discarded")
}

// Whatever a command does in a staged copy, nothing of it is in the directory, or in one that is linked with it, before it is applied.
func TestStagedHoldsEverything(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	u.sh(`cd project; git config user.email a@b; git config user.name a; mkdir -p src .vscode .githooks sub/pkg store .ai node_modules/x
		echo one > src/a.c; echo s > .vscode/settings.json; echo h > .githooks/pre-commit; git config core.hooksPath .githooks
		echo n > .npmrc; ln -s .ai .claude; echo x > .ai/CLAUDE.md; git init -q sub/pkg/nested; git add src .vscode .npmrc; git commit -qm one
		mkdir ~/uv-store; echo shared > ~/uv-store/m.py; ln ~/uv-store/m.py node_modules/x/m.py`)
	before := u.sh(digest).out
	shared := u.sh("cat uv-store/m.py; stat -c '%C@ %h' uv-store/m.py").out
	r, run := u.stagedIn(`set -e
		echo evil > .npmrc; echo evil > .vscode/settings.json; rm -rf .githooks; mkdir .githooks; printf '#!/bin/sh\necho evil' > .githooks/pre-commit
		chmod 755 .githooks/pre-commit; echo evil > .ai/CLAUDE.md; rm .claude; ln -s /etc .claude; echo evil > node_modules/x/m.py
		echo '[core] fsmonitor = evil' >> sub/pkg/nested/.git/config; rm -rf src; ln -s / src; mkfifo pipe; mkdir -p .git/hooks2 .cargo .husky/_ .Git
		echo evil > .cargo/config.toml; echo evil > .envrc; touch new; mv store Store; mkdir -p a/b/c; echo 1 > a/b/c/d; chmod 700 a
		setfattr -n user.x -v y new 2>/dev/null || true; git init -q fresh; git config --file .git/config alias.x '!evil' || true; ls -A | wc -l`)
	if r.code != 0 || run == "" {
		t.Fatalf("%+v", r)
	}
	if after := u.sh(digest).out; after != before {
		t.Errorf("the directory was changed:\n%s\nbefore:\n%s", after, before)
	}
	if after := u.sh("cat uv-store/m.py; stat -c '%C@ %h' uv-store/m.py").out; after != shared {
		t.Errorf("a file with another name outside was changed: %q", after)
	}
	for _, want := range []string{"on which programs of the host act", "that lead out of it", "that cannot be applied"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("it does not say %q: %s", want, r.err)
		}
	}
	// Applied is source alone.
	if r := u.cli("apply", run); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	got := u.sh(`cd project; cat .npmrc .vscode/settings.json .githooks/pre-commit .ai/CLAUDE.md a/b/c/d; readlink .claude; ls -d .cargo .envrc .husky pipe fresh/.git .Git 2>/dev/null
		grep -c evil sub/pkg/nested/.git/config; grep -c evil .git/config; stat -c %a a`).out
	if got != "n\ns\nh\nx\n1\n.ai\n0\n0\n700\n" {
		t.Errorf("after apply: %q", got)
	}
	if shared != u.sh("cat uv-store/m.py; stat -c '%C@ %h' uv-store/m.py").out {
		t.Error("apply wrote to a file with another name outside")
	}
	if r := u.cli("discard", run); r.code != 0 || u.sh("ls -A .local/state/carrel/staged").out != "" {
		t.Errorf("%+v", r)
	}
}

// A person looks at a copy, applies it with its commits, takes it back, applies it again, in part, and discards it.
func TestStagedFromRunToUndo(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	u.sh("cd project; " + as + "git checkout -q -b main; echo one > a; echo 'out/' > .gitignore; seq 20 > many; chmod 600 many; git add .; git commit -qm one")
	begun := u.sh("cd project; git rev-parse HEAD; cat .git/index | sha256sum; cat a; ls -A").out
	r, run := u.stagedIn(as + `echo two > a; printf '%s\n' b$'\n'c > "new
line"; mkdir out; echo o > out/o; sed -i 's/^3$/three/' many; git add a many; git commit -qm two; echo .env > .env; chmod 755 a; rm -f none; echo $PWD`)
	if r.code != 0 || run == "" || !strings.Contains(r.err, "in git main") || strings.TrimSpace(r.out) != filepath.Join(u.home, "project") {
		t.Fatalf("%+v", r)
	}
	if now := u.sh("cd project; git rev-parse HEAD; cat .git/index | sha256sum; cat a; ls -A").out; now != begun {
		t.Fatalf("before apply: %q, not %q", now, begun)
	}
	diff := u.cli("diff")
	for _, want := range []string{"-one\n+two\n", "old mode 100644\nnew mode 100755\n", `b/"`, "# out: 2 changes that git ignores", "# changed in git: main"} {
		if want == `b/"` {
			want = `"b/new\nline"`
		}
		if !strings.Contains(diff.out, want) {
			t.Errorf("the diff has no %q:\n%s", want, diff.out)
		}
	}
	list := u.cli("changes", "-o", "json", run)
	var items []struct{ Path, Class, Kind string }
	if err := json.Unmarshal([]byte(list.out), &items); err != nil || len(items) < 6 {
		t.Errorf("%v: %+v", err, list)
	}
	// What the host does meanwhile is merged.
	u.sh("cd project; sed -i 's/^18$/eighteen/' many")
	if r := u.cli("apply", run); r.code != 0 || !strings.Contains(r.out, "merged with what was changed here (many)") ||
		!strings.Contains(r.out, "main moved from ") || !strings.Contains(r.out, "not applied: out") {
		t.Fatalf("%+v", r)
	}
	const state = "cd project; git log --format=%s; git status --short; cat a; grep -n '[a-z]' many; stat -c %a many a; ls -A out 2>/dev/null"
	applied := u.sh(state).out
	if applied != "two\none\n M a\n M many\n?? \"new\\nline\"\ntwo\n3:three\n18:eighteen\n600\n755\n" {
		t.Errorf("after apply: %q", applied)
	}
	if r := u.cli("undo", run); r.code != 0 || !strings.Contains(r.out, "main is back where it was") {
		t.Fatalf("%+v", r)
	}
	if now := u.sh(state).out; now != "one\n M many\none\n18:eighteen\n600\n644\n" {
		t.Errorf("after undo: %q", now)
	}
	if r := u.cli("undo", run); r.code == 0 {
		t.Errorf("a second undo: %+v", r)
	}
	// Where the two do not fit, nothing is done.
	u.sh("cd project; echo mine > a")
	before := u.sh(digest).out
	if r := u.cli("apply", run); r.code == 0 || !strings.Contains(r.err, "a: ") || u.sh(digest).out != before {
		t.Errorf("a conflict: %+v", r)
	}
	if r := u.cli("apply", run, "out", "many"); r.code != 0 || u.sh("cd project; cat out/o; cat a").out != "o\nmine\n" {
		t.Errorf("in part: %+v", r)
	}
	if r := u.cli("discard"); r.code != 0 || u.cli("changes", "-o", "json").out != "[]\n" {
		t.Errorf("%+v", r)
	}
}

// An empty directory takes a repository, and everything that is made for one.
func TestStagedEmptyDirectory(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	u.sh("rm -rf project; mkdir project; git init -q --bare src.git; git -c init.defaultBranch=main init -q w; cd w; " +
		"git -c user.email=a@b -c user.name=a commit -q --allow-empty -m one; git push -q ../src.git HEAD:main")
	const as = "git config --global user.email a@b; git config --global user.name a; git config --global init.defaultBranch trunk; "
	r, run := u.stagedIn(as + "git init -q . && echo f > f && git add f && git commit -qm one && git tag v1 && git config core.fsmonitor evil && " +
		"git remote add origin https://example.org/a/b.git && git remote add evil '--upload-pack=x' && mkdir -p .git/hooks && echo evil > .git/hooks/post-checkout; ls -A")
	if r.code != 0 || r.out != ".git\nf\n" || run == "" || !strings.Contains(r.err, "in git a new repository") {
		t.Fatalf("%+v", r)
	}
	r = u.cli("apply", run)
	if r.code != 0 || !strings.Contains(r.out, "a repository was made here") || !strings.Contains(r.out, "git remote add origin https://example.org/a/b.git takes") ||
		strings.Contains(r.out, "upload-pack") {
		t.Errorf("%+v", r)
	}
	const state = "cd project; ls -A; git log --format=%s; git status --short; git branch --show-current; grep -c evil .git/config; ls .git/hooks 2>/dev/null; git for-each-ref --format='%(refname)' | sed 's,run-[0-9a-f]*,RUN,'"
	if got := u.sh(state).out; got != ".git\nf\none\ntrunk\n0\nrefs/carrel/RUN/tags/v1\nrefs/heads/trunk\n" {
		t.Errorf("after apply: %q", got)
	}
	if r := u.cli("undo", run); r.code != 0 || u.sh("cd project; ls -A; git branch").out != ".git\n" {
		t.Errorf("%+v", r)
	}
	// A clone, of a part of the history.
	u.sh("rm -rf project; mkdir project; cd w; git -c user.email=a@b -c user.name=a commit -q --allow-empty -m two; git push -q ../src.git HEAD:main; git -C ../src.git symbolic-ref HEAD refs/heads/main")
	r, run = u.stagedIn("git clone -q --depth 1 file:///mnt/src .; git log --format=%s", "-v", filepath.Join(u.home, "src.git")+":/mnt/src:ro")
	if r.code != 0 || run == "" {
		t.Fatalf("%+v", r)
	}
	if r := u.cli("apply", run); r.code != 0 || u.sh("cd project; git log --format=%s; git fsck 2>&1").out != "two\n" {
		t.Errorf("%+v, %q", r, u.sh("cd project; git log --format=%s; git fsck 2>&1").out)
	}
}

// What changes nothing leaves nothing, a run that lives is left alone, and the copy of one that was killed stays.
func TestStagedEnds(t *testing.T) {
	u := newUser(t)
	u.sh("cd project; echo one > a; mkdir d; echo x > d/x")
	if r, run := u.stagedIn("cat a; touch /tmp/x; echo x > d/y; rm d/y"); r.code != 0 || run != "" || r.err != "" || u.sh("ls .local/state/carrel/staged").out != "" {
		t.Errorf("nothing was changed: %+v, %q", r, run)
	}
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--here=staged", "--", "bash", "-c", "echo two > a; echo ready; sleep 60")
	_, lines := piped(t, c)
	ready := make([]byte, 6)
	if _, err := lines.Read(ready); err != nil {
		t.Fatal(err)
	}
	run := strings.TrimSpace(u.sh("ls .local/state/carrel/staged").out)
	for _, what := range []string{"apply", "discard", "undo"} {
		if r := u.cli(what, run); r.code == 0 || !strings.Contains(r.err, "still runs") {
			t.Errorf("%s: %+v", what, r)
		}
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if got := u.sh("cat project/a").out; got != "one\n" {
		t.Errorf("the directory has %q", got)
	}
	if r := u.run("--", "true"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := u.cli("apply", run); r.code != 0 || u.sh("cat project/a").out != "two\n" {
		t.Errorf("%+v", r)
	}
	// With --apply it is applied at once.
	if r, run := u.stagedIn("echo three > a; echo evil > .npmrc", "--apply"); r.code != 0 || run == "" || u.sh("cat project/a; ls project/.npmrc 2>/dev/null").out != "three\n" {
		t.Errorf("%+v", r)
	}
	// An agent has a copy, and says so.
	u.sh("mkdir bin; printf '#!/bin/sh\\necho four > a\\n' > bin/claude; chmod 755 bin/claude")
	r := u.run("--here", "-v", filepath.Join(u.home, "bin")+":/mnt/bin:ro", "--", "/mnt/bin/claude")
	if r.code != 0 || !strings.Contains(r.err, "carrel apply run-") || u.sh("cat project/a").out != "three\n" {
		t.Errorf("an agent: %+v", r)
	}
	if r := u.run("--here=direct", "-v", filepath.Join(u.home, "bin")+":/mnt/bin:ro", "--", "/mnt/bin/claude"); r.code != 0 || u.sh("cat project/a").out != "four\n" {
		t.Errorf("an agent in the directory itself: %+v", r)
	}
}

// A copy is kept at checkpoints, made what it was at one, and gone on with.
func TestStagedCheckpoints(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	u.sh("cd project; git checkout -q -b main; mkdir d; echo one > a; echo x > d/x; git add .; git -c user.email=a@b -c user.name=a commit -qm one")
	r, run := u.stagedIn("echo two > a; rm -r d; mkdir d; echo y > d/y; git config user.email a@b; git config user.name a; git commit -qam two")
	if r.code != 0 || run == "" {
		t.Fatalf("%+v", r)
	}
	if r := u.cli("checkpoint", run, "good"); r.code != 0 || !strings.Contains(r.out, "good") {
		t.Fatalf("%+v", r)
	}
	goOn := func(script, want string) {
		t.Helper()
		if r := u.run("--continue", run, "--", "bash", "-c", script); r.code != 0 || r.out != want {
			t.Errorf("%s: %+v, want %q", script, r, want)
		}
	}
	goOn("cat a; ls d; git log --format=%s; echo three > a; rm d/y; echo z > d/z; mkdir -p e/f", "two\ny\ntwo\none\n")
	goOn("cat a; ls d; ls", "three\nz\na\nd\ne\n")
	for _, bad := range [][]string{{"checkpoint", run, "good"}, {"checkpoint", run, "../x"}, {"restore", run, "bad"}, {"restore", run, ".."}, {"checkpoint", "run-00000000"}} {
		if r := u.cli(bad...); r.code == 0 || r.err == "" {
			t.Errorf("%q: %+v", bad, r)
		}
	}
	if r := u.cli("checkpoint", run); r.code != 0 || !strings.Contains(u.cli("checkpoint", "--list", run).out, " 2 ") {
		t.Errorf("%+v", r)
	}
	if r := u.cli("restore", run, "good"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	goOn("cat a; ls d; ls", "two\ny\na\nd\n")
	if r := u.cli("apply", run); r.code != 0 || u.sh("cd project; cat a; ls d; git log --format=%s; git status --short").out != "two\ny\ntwo\none\n?? d/\n" {
		t.Errorf("%+v, %q", r, u.sh("cd project; cat a; ls d; git log --format=%s; git status --short").out)
	}
	// What was applied is what it goes on from, and what is taken over next.
	goOn("git status --short; echo four > a; git -c user.email=a@b -c user.name=a commit -qam four", "?? d/\n")
	if r := u.cli("apply", run); r.code != 0 || u.sh("cd project; cat a; git log --format=%s").out != "four\nfour\ntwo\none\n" {
		t.Errorf("%+v, %q", r, u.sh("cd project; cat a; git log --format=%s").out)
	}
	if r := u.run("--continue", run, "--here", "--", "true"); r.code == 0 {
		t.Errorf("%+v", r)
	}
	if r := u.cli("discard", run); r.code != 0 || u.sh("ls .local/state/carrel/staged").out != "" {
		t.Errorf("%+v", r)
	}
}

// With --sync the directory follows the source of the copy while the command runs.
func TestStagedSync(t *testing.T) {
	u := newUser(t)
	u.sh("cd project; echo one > a; echo x > b")
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--here=staged", "--sync", "-v", filepath.Join(u.home, "tmp")+":/mnt/host:ro", "--",
		"bash", "-c", `echo two > a; echo evil > .npmrc; until [ -e /mnt/host/1 ]; do sleep 0.05; done; echo new > c; rm b
			until [ -e /mnt/host/2 ]; do sleep 0.05; done; rm c; echo three > a; until [ -e /mnt/host/3 ]; do sleep 0.05; done; echo last > d`)
	var said strings.Builder
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	until := func(what string) {
		t.Helper()
		if r := u.sh("cd project; for i in $(seq 200); do " + what + " && exit 0; sleep 0.05; done; exit 1"); r.code != 0 {
			t.Errorf("never: %s", what)
		}
	}
	until("grep -q two a")
	u.sh("touch tmp/1")
	until("test -e c -a ! -e b")
	u.sh("touch tmp/2")
	until("grep -q three a && test ! -e c")
	u.sh("echo mine > project/z; touch tmp/3")
	err := c.Wait()
	if got := u.sh("cd project; cat a d; ls -A").out; err != nil || got != "three\nlast\n.git\na\nd\nz\n" {
		t.Errorf("%v: %q, %s", err, got, said.String())
	}
	if !strings.Contains(said.String(), "carrel undo run-") {
		t.Errorf("it says %q", said.String())
	}
}

// Applying a copy opens what is applied, and files .gitignore, and starts nothing that lies in the tree.
func TestPathsOfApply(t *testing.T) {
	if !has("strace") || !has("git") {
		t.Skip("skipped: needs strace and git: apt-get install strace git")
	}
	u := newUser(t)
	u.sh("cd project; git checkout -q -b main; printf '#!/bin/sh\ncat' > clean; chmod +x clean; git config filter.x.clean ./clean; echo 'f filter=x' > .gitattributes; " +
		"echo 1 > f; echo o > other; echo 'out/' > .gitignore; git add -A; git -c user.name=a -c user.email=a@b commit -qm one; mkdir ../tr")
	r, run := u.stagedIn("echo 2 > f; git -c user.name=a -c user.email=a@b commit -qam two; echo x > .npmrc; mkdir out; echo y > out/y; cp /bin/true git; chmod 755 git; mkfifo wait; ln -s f l")
	if r.code != 0 || run == "" {
		t.Fatalf("%+v", r)
	}
	for _, what := range []string{"diff", "apply", "undo"} {
		r := finish(u.command("project", "strace", "-f", "-y", "-o", u.home+"/tr/"+what, "-e", "trace=open,openat,openat2,creat,execve,execveat",
			filepath.Join(programs, "carrel"), what, run), "")
		if r.code != 0 {
			t.Fatalf("%s: %+v", what, r)
		}
		b, err := os.ReadFile(u.home + "/tr/" + what)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, rel := range opensIn(b, u.home+"/project") {
			name := filepath.Base(rel)
			if rel == ".git" || strings.HasPrefix(rel, ".git/") {
				continue
			}
			seen++
			if !slices.Contains([]string{"f", "l", "git", ".npmrc"}, rel) && name != ".gitignore" && !strings.HasPrefix(name, ".carrel-") {
				t.Errorf("%s opens %s", what, rel)
			}
		}
		if seen == 0 {
			t.Errorf("%s opens nothing that is seen", what)
		}
	}
}
