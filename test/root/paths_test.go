package root_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What programs with root act on by a path is what docs/security.md lists, and who can write where it lies is who
// the list says. What they do with the ids of others, or inside of a workspace's namespaces, does not count.
func TestPathsOfRoot(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	h := newHostWith(t, func(string) string { return "" })
	traces, err := os.MkdirTemp(base, "traces")
	if err != nil {
		t.Fatal(err)
	}
	traced := func(name string, program string, args ...string) *exec.Cmd {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		t.Cleanup(cancel)
		flags := []string{"-ff", "-qq", "-y", "-s", "4096", "-e", "trace=%file,bind,%process,%creds", "-o", filepath.Join(traces, name), filepath.Join(bin, program)}
		c := exec.CommandContext(ctx, "strace", append(flags, args...)...)
		c.Env = append(os.Environ(), "CARREL_HOST=unix://"+h.run+"/carrel.sock")
		return c
	}
	run := func(name, program string, args ...string) {
		t.Helper()
		if out, err := traced(name, program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
	}
	up := traced("up", "carrel", append([]string{"up", "--detach", "--prefix", "crt", "--config", h.config}, h.flags()...)...)
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- up.Wait() }() // it ends with the daemon and the broker
	until(t, "the daemon to serve", func() bool { return h.try(nil, "", "ls").code == 0 })

	const key = "crt traced"
	h.carrel(t, "create", key)
	d := h.look(t, key)
	d.sh(t, "echo text > file; mkdir -p a/b; ln -s /etc/shadow link")
	h.carrel(t, "stop", d.Key)
	h.carrel(t, "start", d.Key)
	h.carrel(t, "archive", "create", d.Key)
	h.carrel(t, "audit", "verify")
	run("doctor", "carrel", append([]string{"doctor"}, h.flags()...)...)
	run("verify", "carreld", "--verify-audit", "--data-dir", h.data)
	listed := rootsPaths(t)
	written := map[string]string{}
	note := func() {
		for _, p := range h.touched(t, traces) {
			if w := writersAbove(t, p); w != "" || written[p] == "" {
				written[p] = w
			}
		}
	}
	note()
	h.carrel(t, "destroy", d.Key)
	note() // while the home is kept
	h.carrel(t, "revive", d.Key)
	h.carrel(t, "archive", "create", "--destroy", d.Key)
	h.carrel(t, "restore", d.Key)
	note()
	h.carrel(t, "destroy", "--purge", d.Key)
	run("down", "carrel", append([]string{"down"}, h.flags()...)...)
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("the daemon and the broker do not end")
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	run("purge", "carrel", append([]string{"down", "--purge"}, h.flags()...)...)
	used := map[int]bool{}
	all := h.touched(t, traces)
	for _, p := range all {
		name := h.generic(p)
		i := slices.IndexFunc(listed, func(l listedPath) bool { return l.matches(name) })
		if i < 0 {
			t.Errorf("not listed: %s", name)
			continue
		}
		used[i] = true
		if w := written[p]; w != "" && !strings.Contains(listed[i].writers, w) {
			t.Errorf("%s: where it lies %s can write, and the list says %s", name, w, listed[i].writers)
		}
	}
	for i, l := range listed {
		if !used[i] {
			t.Logf("listed, and not touched here: %s", l.pattern)
		}
	}
	if !slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(h.generic(p), "DATA/retained/") }) {
		files, _ := filepath.Glob(traces + "/*")
		t.Errorf("no kept home was touched: %d paths in %d traces", len(all), len(files))
	}
	if len(all) < 100 {
		t.Errorf("only %d paths were seen", len(all))
	}
}

// listedPath is one row of the list in docs/security.md.
type listedPath struct{ pattern, writers string }

// rootsPaths reads the list. A pattern is a path in which * is any name, and ** at its end all that is below.
func rootsPaths(t *testing.T) (all []listedPath) {
	t.Helper()
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "## Paths that root's programs act on")
	if !ok {
		t.Fatal("there is no list")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			all = append(all, listedPath{m[1], cells[2]})
		}
	}
	return all
}

func (l listedPath) matches(path string) bool {
	if below, ok := strings.CutSuffix(l.pattern, "/**"); ok {
		parts := strings.Count(below, "/") + 1
		head := strings.Join(slices.Concat(strings.Split(path, "/"), make([]string, parts))[:parts], "/")
		path, l.pattern = head, below
	}
	ok, _ := filepath.Match(l.pattern, path)
	return ok
}

var numbers = regexp.MustCompile(`^/proc/[0-9]+`)

// generic names a path as the list does.
func (h *host) generic(p string) string {
	for _, x := range [][2]string{{h.data, "DATA"}, {h.run, "RUN"}, {bin, "BIN"}, {h.config, "CONFIG"}} {
		if p == x[0] || strings.HasPrefix(p, x[0]+"/") {
			return x[1] + p[len(x[0]):]
		}
	}
	return numbers.ReplaceAllString(p, "/proc/PID")
}

// writersAbove says who besides root can make, remove or rename what lies on the way to a path: "" for nobody.
func writersAbove(t *testing.T, p string) string {
	t.Helper()
	found := ""
	for dir := filepath.Dir(p); dir != "/"; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if strings.HasPrefix(dir, "/proc") || unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		switch sticky := st.Mode&unix.S_ISVTX != 0; {
		case st.Uid == 0 && (st.Mode&0o022 == 0 || sticky):
		case st.Uid >= 1<<20:
			found = "workspace"
		default:
			found = "carrel"
		}
	}
	return found
}

var (
	// traceLine is one of strace: the call, its arguments, its result.
	traceLine = regexp.MustCompile(`^(\w+)\((.*)\)\s+= (-?\d+|\?)`)
	// traceArg is a path, behind the directory that it is relative to if that is given.
	traceArg = regexp.MustCompile(`(?:(?:\w+)<([^>]*)>, )?(?:\{sa_family=AF_UNIX, sun_path=)?"((?:[^"\\]|\\.)*)"`)
)

// touched reads which paths carrel's programs acted on as root. Each thread has a file of its own.
func (h *host) touched(t *testing.T, traces string) []string {
	t.Helper()
	files, err := filepath.Glob(traces + "/*")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	children := map[string]bool{}
	var follow func(name string, s state)
	follow = func(name string, s state) {
		if children[name] {
			return
		}
		children[name] = true
		f, err := os.Open(name)
		if err != nil {
			return // of a process that ended before its first call
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			m := traceLine.FindStringSubmatch(lines.Text())
			if m == nil {
				continue
			}
			call, args, result := m[1], m[2], m[3]
			paths := traceArg.FindAllStringSubmatch(args, -1)
			switch {
			case strings.HasPrefix(call, "set") && strings.Contains(call, "uid"):
				if id := strings.Split(args, ", "); result == "0" || call == "setfsuid" {
					effective := id[len(id)-1]
					if call == "setresuid" || call == "setreuid" {
						effective = id[1]
					}
					if effective != "-1" {
						s.root = effective == "0"
					}
				}
			case strings.HasPrefix(call, "clone"), call == "vfork", call == "fork":
				child := s
				child.inside = s.inside || strings.Contains(args, "CLONE_NEWNS") || strings.Contains(args, "CLONE_NEWUSER")
				if n, _ := strconv.Atoi(result); n > 0 {
					follow(strings.TrimSuffix(name, filepath.Ext(name))+"."+result, child)
				}
			case call == "unshare", call == "setns":
				s.inside = s.inside || strings.Contains(args, "CLONE_NEW")
			case call == "execve" && result == "0" && len(paths) > 0:
				p := paths[0][2]
				s.others = !strings.HasPrefix(p, bin+"/") && !strings.HasPrefix(p, "/proc/self/fd/") && !strings.HasPrefix(p, "/dev/fd/")
			}
			if !s.root || s.inside || s.others || len(paths) == 0 {
				continue
			}
			switch {
			case strings.HasPrefix(call, "rename"), strings.HasPrefix(call, "link"):
			case strings.HasPrefix(call, "symlink"):
				paths = paths[1:]
			default:
				paths = paths[:1]
			}
			for _, a := range paths {
				at, err := strconv.Unquote(`"` + a[2] + `"`)
				if err != nil || at == "" {
					continue // of the descriptor itself
				}
				if !filepath.IsAbs(at) {
					at = filepath.Join(a[1], at)
				}
				if at = filepath.Clean(at); filepath.IsAbs(at) && at != "/" {
					seen[at] = true
				}
			}
		}
	}
	firsts := firstOfRuns(t, files, bin)
	for _, f := range firsts {
		follow(f, state{root: true})
	}
	var all []string
	for p := range seen {
		all = append(all, p)
	}
	slices.Sort(all)
	return all
}

// state is what a thread acts as.
type state struct{ root, inside, others bool }

// firstOfRuns are the traces of the programs that were started: those that begin with one of carrel's, which lie in dir, and are nobody's
// child. What an executor starts begins with another: its parent knows it by another number, of the workspace. The lowest number of
// a run need not be its first: the kernel begins again with low ones when it has given the highest away.
func firstOfRuns(t *testing.T, files []string, dir string) (firsts []string) {
	t.Helper()
	child := map[string]bool{}
	begins := map[string]bool{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		begins[name] = strings.HasPrefix(string(b), `execve("`+dir+"/")
		for line := range strings.Lines(string(b)) {
			m := traceLine.FindStringSubmatch(line)
			if m != nil && (strings.HasPrefix(m[1], "clone") || m[1] == "vfork" || m[1] == "fork") {
				child[strings.TrimSuffix(name, filepath.Ext(name))+"."+m[3]] = true
			}
		}
	}
	runs := map[string]int{}
	for _, name := range files {
		run := strings.TrimSuffix(name, filepath.Ext(name))
		runs[run] += 0
		if begins[name] && !child[name] {
			firsts = append(firsts, name)
			runs[run]++
		}
	}
	for run, n := range runs {
		if n != 1 {
			t.Errorf("%s has %d first traces", filepath.Base(run), n)
		}
	}
	return firsts
}

// The first of a run is found when the numbers of processes begin again in its middle.
func TestFirstOfRuns(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for name, text := range map[string]string{
		"up.32760": "execve(\"/bin/carrel\", [], 0x1) = 0\nclone3({flags=0}, 88) = 32767\nclone3({flags=0}, 88) = 301\n",
		"up.32767": "openat(AT_FDCWD</>, \"/x\", O_RDONLY) = 3\n",
		"up.301":   "execve(\"/bin/carrel-broker\", [], 0x1) = 0\nclone3({flags=0}, 88) = 302\n",
		"up.302":   "openat(AT_FDCWD</>, \"/y\", O_RDONLY) = 3\n",
		"down.303": "execve(\"/bin/carrel\", [], 0x1) = 0\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	firsts := firstOfRuns(t, files, "/bin")
	slices.Sort(firsts)
	if want := []string{filepath.Join(dir, "down.303"), filepath.Join(dir, "up.32760")}; !slices.Equal(firsts, want) {
		t.Errorf("got %v, want %v", firsts, want)
	}
}
