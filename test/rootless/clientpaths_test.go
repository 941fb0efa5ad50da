package rootless_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var openCall = regexp.MustCompile(`(?m)^(?:\d+ +)?(?:open|openat|openat2|creat|execve|execveat)\((?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"([^"]*)"(.*)$`)

// opensIn lists what a trace of strace's opened below a directory to read, write or run it: neither directories nor descriptors that
// read nothing. Random parts of names are $, as is a new file that has no name yet, and what is run begins with "run ".
func opensIn(trace []byte, dir string) (all []string) {
	random := regexp.MustCompile(`^(\..*\.)\d{5,}$`)
	for _, m := range openCall.FindAllStringSubmatch(string(trace), -1) {
		path := m[2]
		if !filepath.IsAbs(path) {
			path = filepath.Join(m[1], path)
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." || strings.HasPrefix(rel, "..") || strings.Contains(m[3], "O_PATH") || strings.Contains(m[3], "O_DIRECTORY") {
			continue
		}
		in, name := filepath.Split(rel)
		if rel = in + random.ReplaceAllString(name, "$1$$"); strings.Contains(m[0][:strings.IndexByte(m[0], '(')], "exec") {
			rel = "run " + rel
		}
		if strings.Contains(m[3], "O_TMPFILE") {
			rel += "/$"
		}
		all = append(all, rel)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A command planted links, FIFOs, programs and settings in a directory. Of those, carrel's clients open what their caller named, and
// nothing makes them wait.
func TestPathsOfClients(t *testing.T) {
	if !has("strace") {
		t.Skip("skipped: needs strace: apt-get install strace")
	}
	u := newOwner(t)
	u.sh(`mkdir tr; echo secret > victim; chmod 600 victim; cd project; rm -rf .git; mkdir -p dir/sub to .git/hooks; echo 1 > f; echo 2 > dir/sub/g; mkfifo wait dir/wait
		ln -s ../victim out; ln -s ../../victim dir/out; ln -s /etc dir/etc; ln -s ../../victim to/g; ln -s ../victim x.tar.zst; mkfifo y.tar.zst; printf '#!/bin/sh\ntouch ../ran' > sh
		chmod +x sh; cp sh git; cp sh zstd; cp sh tar; echo 'x' > .carrelrc; echo '[core]
	fsmonitor = ./sh' > .git/config`)
	u.must("create", "demo")
	u.must("exec", "demo", "--", "sh", "-c", "mkdir -p tree/sub; echo 3 > tree/sub/h; echo 4 > g; ln -s /etc/passwd tree/l; mkfifo tree/wait; (sleep 60 | nc -l 127.0.0.1 8088 || true) >/dev/null 2>&1 &")
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"a file in", []string{"cp", "f", "demo:f"}, 0, []string{"f"}},
		{"a directory in", []string{"cp", "dir", "demo:dir"}, 1, []string{"dir/sub/g"}},
		{"a FIFO in", []string{"cp", "wait", "demo:wait"}, 1, nil},
		{"a file out, over a link", []string{"cp", "demo:g", "to/g"}, 0, []string{"to", "to/$"}},
		{"a directory out", []string{"cp", "demo:tree", "to"}, 1, []string{"to/tree", "to/tree/sub/$"}},
		{"an archive, over a link", []string{"archive", "create", "--live", "--file", "x.tar.zst", "demo"}, 0, []string{".x.tar.zst.$"}},
		{"an archive, over a FIFO", []string{"archive", "create", "--live", "--file", "y.tar.zst", "demo"}, 0, []string{".y.tar.zst.$"}},
		{"a restore from an archive", []string{"restore", "--file", "x.tar.zst", "--key", "copy"}, 0, []string{"x.tar.zst"}},
		{"a restore from a FIFO", []string{"restore", "--file", "wait", "--key", "never"}, 1, []string{"wait"}},
		{"files", []string{"files", "ls", "demo"}, 0, nil},
		{"changes", []string{"changes", "demo"}, 0, nil},
		{"a command", []string{"exec", "demo", "true"}, 0, nil},
	} {
		trace := filepath.Join(u.home, "tr", strings.ReplaceAll(c.name, " ", "-"))
		r := finish(u.command("project", "strace", append([]string{
			"-f", "-y", "-o", trace, "-e", "trace=open,openat,openat2,creat,execve,execveat", filepath.Join(programs, "carrel"), "--rootless",
		}, c.args...)...), "")
		b, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		if got := opensIn(b, u.home+"/project"); r.code != c.code || !slices.Equal(got, c.want) {
			t.Errorf("%s: it opens %q, and not %q: %+v\n%s", c.name, got, c.want, r, b)
		}
	}
	if r := u.sh("cat victim; ls ran 2>/dev/null; test -L project/to/g && echo followed"); r.out != "secret\n" {
		t.Errorf("outside is %+v", r)
	}
}
