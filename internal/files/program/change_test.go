package program_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

func TestMovingAndRemoving(t *testing.T) {
	x := newTree(t)
	x.put(t, "a", "A")
	x.put(t, "b", "B")
	x.put(t, "d/e/f", "deep")
	m := op(fileapi.Move, "a")
	m.To, m.Keep = []byte("b"), true
	if a := x.ask(t, m); a.Kind != "already_exists" || x.text(t, "b") != "B" {
		t.Errorf("%+v", a.Result)
	}
	m.Keep = false
	if a := x.ask(t, m); a.Error != "" || x.text(t, "b") != "A" {
		t.Errorf("%+v", a.Result)
	}
	if a := x.ask(t, op(fileapi.Remove, "d")); a.Kind != "failed_precondition" {
		t.Errorf("%+v", a.Result)
	}
	r := op(fileapi.Remove, "d")
	r.Recursive = true
	must(t, os.Symlink("/etc", x.home+"/d/e/out"))
	if a := x.ask(t, r); a.Error != "" {
		t.Errorf("%+v", a.Result)
	}
	if _, err := os.Stat(x.root + "/etc/secret"); err != nil {
		t.Errorf("what a link leads to was removed: %v", err)
	}
	// A tree that is deeper than any path can say.
	at := x.home
	for range 10 {
		at += "/deep"
	}
	must(t, os.MkdirAll(at, 0o755))
	for range 300 {
		must(t, os.Rename(x.home+"/deep", x.home+"/top"))
		must(t, os.MkdirAll(at, 0o755))
		must(t, os.Rename(x.home+"/top", at+"/below"))
	}
	r.Path = []byte("deep")
	if a := x.ask(t, op(fileapi.Pack, "deep")); a.Kind != "resource_exhausted" {
		t.Errorf("%+v", a.Result)
	}
	if a := x.ask(t, r); a.Error != "" {
		t.Errorf("%+v", a.Result)
	}
	if left, _ := os.ReadDir(x.home); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
	for _, top := range []string{"", "~", ".", home, "/", home + "/."} {
		if r.Path = []byte(top); x.ask(t, r).Kind != "invalid_argument" {
			t.Errorf("removed %q", top)
		}
	}
}

func TestSearch(t *testing.T) {
	x := newTree(t)
	x.put(t, "src/a.go", "package a\n// TODO one\n")
	x.put(t, "src/b.go", "\x00TODO binary\n")
	x.put(t, "src/c.txt", "TODO two"+strings.Repeat("x", 200<<10)+"\nTODO three\n")
	must(t, os.Symlink("/etc/secret", x.home+"/src/link"))
	must(t, unix.Mkfifo(x.home+"/src/fifo", 0o600))
	r := op(fileapi.Search, "")
	r.Name = "*.go"
	if a := x.ask(t, r); a.paths() != "src/a.go src/b.go" {
		t.Errorf("%s, %+v", a.paths(), a.Result)
	}
	r.Name, r.Text = "", "TODO|outside"
	a := x.ask(t, r)
	if a.paths() != "src/a.go src/c.txt src/c.txt" ||
		a.entries[0].Line != 2 || string(a.entries[0].Text) != "// TODO one" || a.entries[2].Line != 2 {
		t.Errorf("%s, %+v", a.paths(), a.entries)
	}
	if r.Limit = 2; !x.ask(t, r).Truncated {
		t.Error("it does not say that it ended early")
	}
	for _, bad := range []fileapi.Request{{Text: "("}, {Name: "["}, {Text: "(?:(?:a{1000}){1000}){1000}"}} {
		bad.Op = fileapi.Search
		if a := x.ask(t, bad); a.Kind != "invalid_argument" {
			t.Errorf("%+v: %+v", bad, a.Result)
		}
	}
}

func (x *tree) ctime(t *testing.T, name string) time.Time {
	var st unix.Stat_t
	must(t, unix.Lstat(x.home+"/"+name, &st))
	return time.Unix(st.Ctim.Unix())
}

func TestChanges(t *testing.T) {
	x := newTree(t)
	x.put(t, "old.txt", "before")
	since := x.ctime(t, "old.txt").Add(1)
	for x.put(t, "tick", "x"); x.ctime(t, "tick").Before(since); x.put(t, "tick", "x") { // the kernel's clock of files goes in steps
	}
	must(t, os.Remove(x.home+"/tick"))
	for name, text := range map[string]string{
		"p/.npmrc": "x", "p/src/a.go": "package a", "p/node_modules/.bin/tsc": "x", "p/node_modules/x/.npmrc": "x", "p/a\nb": "x",
	} {
		x.put(t, name, text)
	}
	must(t, os.Chmod(x.home+"/p/node_modules/.bin/tsc", 0o755))
	must(t, os.Symlink("/etc/secret", x.home+"/p/link"))
	must(t, unix.Mkfifo(x.home+"/p/fifo", 0o600))
	r := op(fileapi.Changes, "")
	r.SinceNS = since.UnixNano()
	var got []string
	a := x.ask(t, r)
	for _, e := range a.entries {
		got = append(got, e.Kind+" "+e.Type+" "+string(e.Path))
	}
	want := []string{
		"acted file p/.npmrc", "leads link p/link", "special fifo p/fifo", "runs file p/node_modules/.bin/tsc",
		"built file p/node_modules/x/.npmrc", "source file p/a\nb", "source file p/src/a.go",
	}
	if !slices.Equal(got, want) || a.Error != "" || a.Truncated || a.Skipped != 0 {
		t.Errorf("%q, %+v", got, a.Result)
	}
	if e := a.entries[0]; e.Reader == "" || e.Trigger == "" {
		t.Errorf("%+v", e)
	}
	if r.Limit = 2; len(x.ask(t, r).entries) != 2 || !x.ask(t, r).Truncated {
		t.Error("it does not say that there are more")
	}
	// A moment of the file's own choosing hides nothing.
	x.put(t, "p/late", "x")
	must(t, os.Chtimes(x.home+"/p/late", since.Add(-time.Hour), since.Add(-time.Hour)))
	r.Limit = 0
	if a = x.ask(t, r); !strings.Contains(a.paths(), "p/late") {
		t.Error("a file with an old time is not listed")
	}
	if r.Path = []byte("none"); x.ask(t, r).Kind != "not_found" {
		t.Errorf("%+v", x.ask(t, r).Result)
	}
}

func FuzzRequest(f *testing.F) {
	for _, r := range []fileapi.Request{op(fileapi.Read, "a"), op(fileapi.Write, "b/../c"), op(fileapi.List, ""), op(fileapi.Unpack, ".")} {
		f.Add(request(f, r, []byte("data"), true).Bytes())
	}
	f.Add([]byte("r\xff\xff\xff\xff"))
	f.Add([]byte{})
	x := newTree(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(b, []byte("watch")) {
			return // it has no end
		}
		if a := serve(t, x.root, bytes.NewReader(b)); a.Error != "" && a.Kind == "" {
			t.Fatalf("%+v", a.Result)
		}
	})
}

// A directory that is missing is said to be, and how to have it made; an error of the system is said once.
func TestWhereNothingCanBeWritten(t *testing.T) {
	x := newTree(t)
	for _, o := range []fileapi.Op{fileapi.Write, fileapi.Mkdir, fileapi.Unpack} {
		if a := x.ask(t, op(o, "none/new"), "text"); a.Kind != "not_found" || !strings.Contains(a.Error, "is not there: make it first") {
			t.Errorf("%s: %s, %s", o, a.Kind, a.Error)
		}
	}
	must(t, os.Mkdir(x.home+"/dir", 0o755))
	if a := x.ask(t, op(fileapi.Write, "dir"), "text"); strings.Count(a.Error, "is a directory") != 1 {
		t.Error(a.Error)
	}
}
