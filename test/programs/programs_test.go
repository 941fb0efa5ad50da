//go:build linux

package programs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

const install = `"scripts/prerequisites programs", as root, installs what these tests use`

// path is that of the commands: a Go that was unpacked where its instructions say is in
// /usr/local/go.
const path = "PATH=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin"

// program is one thing to do with a program.
type program struct {
	name string
	// needs are programs of the host, by the Debian package that has each.
	needs map[string]string
	// flags are those of carrel run; readOnly mounts the directory so, and runs in the home.
	flags    []string
	readOnly bool
	// script runs in bash, in a directory that is mounted with --here, and ends well.
	script string
	// want is what it has on its stdout.
	want []string
	// fetch names a package to be seen at /mnt/fetched.
	fetch string
	// cache is a directory that the programs of this name share, at /mnt/cache: both
	// callers' compile the same.
	cache string
	// prepare is a script that prepares the directory on the host.
	prepare string
}

func (p *program) check(t *testing.T) {
	t.Helper()
	for name, pkg := range p.needs {
		if filepath.IsAbs(name) {
			if _, err := os.Stat(name); err == nil {
				continue
			}
		} else if _, err := exec.LookPath(name); err == nil {
			continue
		}
		t.Skipf("skipped: no %s on this host; apt-get install --no-install-recommends %s; %s", name, pkg, install)
	}
}

// nixBuild begins a build without a network and without anything of the host's nix.
const nixBuild = `export NIX_STORE_DIR=$PWD/nix/store NIX_STATE_DIR=$PWD/nix/var NIX_LOG_DIR=$PWD/nix/log NIX_CONF_DIR=$PWD/nix/etc
	what='derivation { name = "x"; builder = "/bin/sh"; args = [ "-c" "echo built > $out" ]; system = builtins.currentSystem; }'
	nix-build --option substitute false`

var programs = []program{
	{
		name: "git", needs: map[string]string{"git": "git"},
		script: `mkdir r && cd r && git init -q -b main . && git config user.email a@example.com && git config user.name A
			echo one > f && git add f && git commit -qm one && git checkout -qb other && echo two > f && git commit -qam two
			git checkout -q main && git merge -q other && git log --format=%s && git branch --format='%(refname:short)' && git status --short &&
				cat f`,
		want: []string{"two\none\nmain\nother\ntwo\n"},
	},
	{
		name: "gcc and make", needs: map[string]string{"gcc": "gcc", "make": "make", "/usr/include/stdio.h": "libc6-dev"},
		script: `printf '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n' > a.c
			printf 'all: a b\na b: %%: a.c\n\tgcc -O2 -o $@ $<\n' > Makefile
			make -j2 >/dev/null && ./a && ./b`,
		want: []string{"compiled\ncompiled\n"},
	},
	{
		// Where there is no .git, an empty one is held, and the go command takes it for a repository that it cannot ask.
		name: "go build and test", needs: map[string]string{"go": "golang-go"}, cache: "go", prepare: "git init -q",
		script: `export GOCACHE=/mnt/cache GOFLAGS=-count=1 GOTOOLCHAIN=local
			go mod init example.com/m 2>/dev/null
			printf 'package main\nfunc main() { println("built") }\n' > m.go
			printf 'package main\nimport "testing"\nfunc TestIt(t *testing.T) { t.Log("tested") }\n' > m_test.go
			go build -o m . && ./m 2>&1 && go test -v .`,
		want: []string{"built\n", "tested\n", "\nok  \texample.com/m"},
	},
	{
		name: "go build where .git is held", needs: map[string]string{"go": "golang-go"}, cache: "go",
		script: `export GOCACHE=/mnt/cache GOTOOLCHAIN=local
			go mod init example.com/m 2>/dev/null && printf 'package main\nfunc main() { println("built") }\n' > m.go
			go build . 2>&1; go build -buildvcs=false -o m . && ./m 2>&1`,
		want: []string{"Use -buildvcs=false", "built\n"},
	},
	{
		name: "npm install offline", needs: map[string]string{"node": "nodejs", "npm": "npm"},
		script: `mkdir dep app && cd dep && echo '{"name":"dep","version":"1.0.0"}' > package.json &&
			echo 'module.exports = "installed"' > index.js
			npm pack --silent && cd ../app && echo '{"name":"app","version":"1.0.0"}' > package.json
			npm install --offline --no-audit --no-fund --silent ../dep/dep-1.0.0.tgz && node -e 'console.log(require("dep"))'`,
		want: []string{"dep-1.0.0.tgz\n", "installed\n"},
	},
	{
		name: "node limits", needs: map[string]string{"node": "nodejs"},
		script: `node -e 'const os = require("os"); if (os.cpus().length < 1 || os.totalmem() <= 0) process.exit(1); new (require("worker_threads").Worker)("console.log(\"worker\")", {eval: true})'`,
		want:   []string{"worker\n"},
	},
	{
		name: "node with io_uring", needs: map[string]string{"node": "nodejs"}, flags: []string{"--env", "UV_USE_IO_URING=1"},
		// It asks for the ring, is told that there is none, and uses threads.
		script: `echo content > f && node -e 'require("fs").readFile("f", (e, d) => { if (e) throw e; console.log(String(d)) })'`,
		want:   []string{"content\n"},
	},
	{
		name: "python venv and pytest", needs: map[string]string{"/usr/bin/python3": "python3", "/usr/share/doc/python3-venv": "python3-venv"},
		fetch: "pytest-9.2.0",
		script: `/usr/bin/python3 -m venv v && v/bin/pip install -q --no-index --find-links /mnt/fetched/wheels pytest
			printf 'def test_it(tmp_path):\n    (tmp_path / "f").write_text("x")\n    assert (tmp_path / "f").read_text() == "x"\n' > test_it.py
			v/bin/pytest -q`,
		want: []string{"1 passed"},
	},
	{
		name: "gdb", needs: map[string]string{"gdb": "gdb", "gcc": "gcc", "/usr/include/stdio.h": "libc6-dev"},
		script: `printf 'int f(int x) { return x + 1; }\nint main(void) { return f(41) != 42; }\n' > a.c && gcc -g -o a a.c
			gdb -nx -batch -ex 'break f' -ex run -ex bt -ex 'print x' -ex finish ./a 2>&1`,
		want: []string{"f (x=41)", "in main ()", "$1 = 41", "Value returned is $2 = 42"},
	},
	{
		name: "gdb attached", needs: map[string]string{"gdb": "gdb"},
		script: `sleep 100 & gdb -nx -batch -p $! -ex 'info inferiors' 2>&1; kill $!`,
		want:   []string{"process "},
	},
	{
		name: "strace", needs: map[string]string{"strace": "strace"},
		script: `strace -f -e trace=execve sh -c '/bin/echo traced; true' 2>&1`,
		want:   []string{`execve("/bin/echo", ["/bin/echo", "traced"]`, "traced\n", "+++ exited with 0 +++"},
	},
	{
		name: "java", needs: map[string]string{"java": "default-jdk-headless", "javac": "default-jdk-headless"},
		script: `java -version 2>&1
			printf 'class H { public static void main(String[] a) { var r = Runtime.getRuntime(); System.out.println("cpus " + (r.availableProcessors() > 0) + " heap " + (r.maxMemory() > 1<<20)); } }' > H.java
			java H.java && javac H.java && java -cp . H`,
		want: []string{"cpus true heap true\ncpus true heap true\n"},
	},
	{
		name: "tmux", needs: map[string]string{"tmux": "tmux"},
		script: `tmux -f /dev/null new-session -d -s s -x 80 -y 24 'bash --norc' &&
			tmux send-keys -t s 'echo typed-$((40+2)); tmux wait-for -S typed' Enter && tmux wait-for typed
			tmux capture-pane -p -t s && tmux kill-server`,
		want: []string{"\ntyped-42\n"},
	},
	{
		name: "sqlite", needs: map[string]string{"sqlite3": "sqlite3"},
		script: `sqlite3 x.db 'pragma journal_mode=wal; create table t(a); insert into t values(42); select a from t;' && (cd &&
			sqlite3 y.db 'create table t(a); insert into t values(43); select a from t;')`,
		want: []string{"wal\n42\n43\n"},
	},
	{
		name: "apt-get download", needs: map[string]string{"apt-get": "apt", "dpkg-deb": "dpkg"}, prepare: localRepository,
		// A workspace has no /etc/apt: the command line names the sources.
		script: `mkdir -p apt/lists/partial apt/archives/partial && echo "deb [trusted=yes] file:$PWD/repo ./" > apt/sources.list
			o="-o Dir::Etc::SourceList=$PWD/apt/sources.list -o Dir::State::Lists=$PWD/apt/lists \
			-o Dir::Cache=$PWD/apt -o Dir::Cache::Archives=$PWD/apt/archives -o Debug::NoLocking=1"
			apt-get $o -qq update 2>&1 && apt-get $o -qq download carrel-tested 2>&1; dpkg-deb -f carrel-tested_1.0_all.deb Package`,
		want: []string{"carrel-tested\n"},
	},
	{
		name:   "own score for the OOM killer", // Chromium, systemd and others set it
		script: `echo 300 > /proc/self/oom_score_adj && cat /proc/self/oom_score_adj && echo worker > /proc/self/comm && cat /proc/$$/comm`,
		want:   []string{"300\n"},
	},
	{
		name: "chromium without its sandbox", needs: map[string]string{"chromium": "chromium"},
		script: `echo '<script>document.write(6*7)</script>' > x.html
			chromium --headless --no-sandbox --disable-gpu --disable-background-networking --dump-dom "file://$PWD/x.html" 2>err || cat err`,
		want: []string{"<body>42\n"},
	},
	{
		// It does not start without a sandbox of its own unless it is told to, as the next one shows.
		name: "chromium with its sandbox", needs: map[string]string{"chromium": "chromium"}, flags: []string{"--allow", "userns"},
		script: `echo '<script>document.write(6*7)</script>' > x.html
			chromium --headless --disable-gpu --disable-background-networking --dump-dom "file://$PWD/x.html" 2>err || cat err`,
		want: []string{"<body>42\n"},
	},
	{
		name: "chromium's sandbox is not to be had", needs: map[string]string{"chromium": "chromium"},
		script: `chromium --headless --disable-gpu --disable-background-networking --dump-dom about:blank 2>&1; [ $? -ne 0 ]`,
		want:   []string{"No usable sandbox"},
	},
	{
		name: "bubblewrap", needs: map[string]string{"bwrap": "bubblewrap"}, flags: []string{"--allow", "userns", "--allow", "mounts"},
		readOnly: true,
		script: `bwrap --unshare-all --ro-bind / / --dev /dev --tmpfs /tmp --bind "$HOME" /srv sh -c 'echo in-$$; echo kept > /srv/f; echo x > /usr/f' 2>&1; cat f
			bwrap --unshare-all --ro-bind / / --proc /proc true 2>&1 || true`,
		want: []string{"in-2\n", "/usr/f: Read-only file system", "kept\n", "Can't mount proc"},
	},
	{
		name: "bubblewrap is not to be had", needs: map[string]string{"bwrap": "bubblewrap"}, flags: []string{"--allow", "userns"},
		script: `bwrap --unshare-all --ro-bind / / true 2>&1; [ $? -ne 0 ]`,
		want:   []string{"bwrap: "},
	},
	{
		name: "nix", needs: map[string]string{"nix-build": "nix-bin"},
		script: nixBuild + ` --option sandbox false -E "$what" 2>&1; cat result`,
		want:   []string{"building '/", "built\n"},
	},
	{
		// Its own sandbox mounts a /proc, which the kernel refuses where the one around it is masked.
		name: "nix's sandbox is not to be had", needs: map[string]string{"nix-build": "nix-bin"},
		flags: []string{"--allow", "userns", "--allow", "mounts"}, readOnly: true,
		script: nixBuild + ` --option sandbox true --store "$HOME/n" -E "$what" 2>&1; [ $? -ne 0 ]`,
		want:   []string{"mounting /proc: Operation not permitted"},
	},
	{
		name: "a ring of io_uring", needs: map[string]string{"gcc": "gcc", "/usr/include/linux/io_uring.h": "linux-libc-dev"},
		flags: []string{"--allow", "io_uring"}, readOnly: true,
		prepare: "cp \"$TESTDATA\"/ring.c .",
		script:  `gcc -o ring /mnt/here/ring.c && echo content > f && ./ring f`,
		want:    []string{"read: 8 content\n", "vsock: "},
	},
	{
		name: "no ring of io_uring", needs: map[string]string{"gcc": "gcc", "/usr/include/linux/io_uring.h": "linux-libc-dev"},
		prepare: "cp \"$TESTDATA\"/ring.c .",
		script:  `gcc -o ring ring.c && ./ring ring.c`,
		want:    []string{"io_uring_setup: Function not implemented\n"},
	},
	{
		name: "node with a ring of io_uring", needs: map[string]string{"node": "nodejs", "strace": "strace"}, readOnly: true,
		flags:  []string{"--allow", "io_uring", "--env", "UV_USE_IO_URING=1"},
		script: `echo content > f && strace -f -qq -e trace=io_uring_setup,io_uring_enter -o t node -e 'require("fs").readFile("f", (e, d) => { if (e) throw e; console.log(String(d)) })' && cat t`,
		want:   []string{"content\n", "io_uring_enter("},
	},
}

// localRepository makes a repository with one package in it.
const localRepository = `mkdir -p repo p/DEBIAN
	printf 'Package: carrel-tested\nVersion: 1.0\nArchitecture: all\nMaintainer: A <a@example.com>\nDescription: nothing\n' > p/DEBIAN/control
	dpkg-deb -b --root-owner-group p repo/carrel-tested_1.0_all.deb >/dev/null
	{ cat p/DEBIAN/control; echo Filename: ./carrel-tested_1.0_all.deb
	  echo Size: $(stat -c %s repo/carrel-tested_1.0_all.deb)
	  echo SHA256: $(sha256sum repo/carrel-tested_1.0_all.deb | cut -d' ' -f1); } > repo/Packages`

func TestPrograms(t *testing.T) {
	owner := ordinary()
	for _, by := range callers(t) {
		for _, p := range programs {
			t.Run(by.name+"/"+p.name, func(t *testing.T) {
				p.check(t)
				dir := by.project(t, p.name)
				if p.prepare != "" {
					c := owner.command(t, dir, "/bin/sh", "-ec", p.prepare)
					c.Env = append(c.Env, "TESTDATA="+testdata(t))
					if out, err := c.CombinedOutput(); err != nil {
						t.Fatalf("cannot prepare %s: %v: %s", p.name, err, out)
					}
				}
				args := append([]string{"--here", "--env", path}, p.flags...)
				if p.readOnly {
					args[0] = "-v=" + dir + ":/mnt/here:ro"
				}
				if p.fetch != "" {
					args = append(args, "-v", fetch(t, p.fetch)+":/mnt/fetched:ro")
				}
				if p.cache != "" {
					args = append(args, "-v", shared(t, p.cache)+":/mnt/cache")
				}
				r := by.run(t, dir, append(args, "--", "bash", "-c", p.script)...)
				if r.code != 0 {
					t.Errorf("exit code %d", r.code)
				}
				if strings.Contains(r.out, "REACHED") {
					t.Error("what must be kept was reached")
				}
				for _, w := range p.want {
					if !strings.Contains(r.out, w) {
						t.Errorf("no %q", w)
					}
				}
				if t.Failed() {
					t.Logf("stdout:\n%s\nstderr:\n%s", r.out, r.err)
				}
			})
		}
	}
}

// shared makes a directory that both callers may mount for writing.
func shared(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(base, "shared-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, dir)
	return dir
}

// A coding agent starts and shows its first screen.
func TestAgent(t *testing.T) {
	for _, by := range callers(t) {
		t.Run(by.name, func(t *testing.T) {
			(&program{needs: map[string]string{"node": "nodejs", "npm": "npm"}}).check(t)
			dir, agent := by.project(t, "agent"), fetch(t, "codex-0.169.0")
			args := []string{"--here", "-v", agent + ":/mnt/agent:ro"}
			const program = "/mnt/agent/node_modules/.bin/codex"
			r := by.run(t, dir, append(args, "--", program, "--version")...)
			if r.code != 0 || r.out != "codex-cli 0.169.0\n" {
				t.Fatalf("%+v", r)
			}
			c := by.command(t, dir, base+"/bin/carrel", append(append([]string{"run", "-i", "-t"}, args...), "--", program)...)
			x := ptytest.Start(t, c, 30, 100, true)
			x.Expect("Sign in")
			x.Expect("Press")
			x.HangUp() // the window is closed
			if code := x.Wait(); code == 0 {
				t.Errorf("it ended well at a hang-up: %q", x.Screen())
			}
		})
	}
}

// testdata is a copy that every user can read: the checkout may lie where none may enter.
func testdata(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(base, "testdata")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return dir
}
