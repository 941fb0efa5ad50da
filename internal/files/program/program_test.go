package program_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/program"
	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a root with a home, as a workspace sees it.
type tree struct{ root, home string }

const home = "/home/work"

func newTree(t testing.TB) tree {
	x := tree{root: t.TempDir()}
	x.home = x.root + home
	must(t, os.MkdirAll(x.home, 0o700))
	must(t, os.MkdirAll(x.root+"/etc", 0o755))
	must(t, os.WriteFile(x.root+"/etc/secret", []byte("outside"), 0o600))
	return x
}

func (x tree) put(t testing.TB, name, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(x.home+"/"+name), 0o755))
	must(t, os.WriteFile(x.home+"/"+name, []byte(text), 0o644))
}

func (x tree) text(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(x.home + "/" + name)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// answer is all that the program says.
type answer struct {
	fileapi.Result

	data    []byte
	entries []fileapi.Entry
}

func (a *answer) paths() string {
	var list []string
	for _, e := range a.entries {
		list = append(list, string(e.Path))
	}
	return strings.Join(list, " ")
}

// request is one as the daemon sends it: the data, and End if it is whole.
func request(t testing.TB, r fileapi.Request, data []byte, whole bool) *bytes.Buffer {
	t.Helper()
	var in bytes.Buffer
	w := &fileapi.Writer{W: &in}
	r.Home = home
	must(t, w.JSON(fileapi.Asked, r))
	_, err := w.Write(data)
	must(t, err)
	if whole {
		must(t, w.Send(fileapi.End, nil))
	}
	return &in
}

func (x tree) ask(t testing.TB, r fileapi.Request, data ...string) answer {
	t.Helper()
	return serve(t, x.root, request(t, r, []byte(strings.Join(data, "")), true))
}

func serve(t testing.TB, root string, in io.Reader) (a answer) {
	t.Helper()
	var out bytes.Buffer
	if code := program.Serve(t.Context(), root, in, &out, nil); code != 0 {
		t.Fatalf("it ended with %d", code)
	}
	frames := &fileapi.Reader{R: &out}
	for {
		k, b, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return a
		}
		must(t, err)
		switch k {
		case fileapi.Data:
			a.data = append(a.data, b...)
		case fileapi.Entries:
			var list []fileapi.Entry
			must(t, json.Unmarshal(b, &list))
			a.entries = append(a.entries, list...)
		case fileapi.Finished:
			must(t, json.Unmarshal(b, &a.Result))
		default:
		}
	}
}

func op(o fileapi.Op, path string) fileapi.Request {
	return fileapi.Request{Op: o, Path: []byte(path)}
}

func TestFilesAreReadAndWritten(t *testing.T) {
	x := newTree(t)
	mode := uint32(0o640)
	w := op(fileapi.Write, "dir/file")
	w.Parents, w.Mode = true, &mode
	if a := x.ask(t, w, "0123456789"); a.Error != "" || a.Bytes != 10 || a.File.Mode != 0o640 {
		t.Fatalf("%+v", a)
	}
	w.Mode = nil
	if a := x.ask(t, w, "again56789"); a.Error != "" || a.File.Mode != 0o640 {
		t.Errorf("the mode of what is there is not kept: %+v", a)
	}
	for path, want := range map[string]string{
		"dir/file": "again56789", "~/dir/file": "again56789", home + "/dir/file": "again56789", "/etc/secret": "outside",
	} {
		if a := x.ask(t, op(fileapi.Read, path)); string(a.data) != want || a.Error != "" {
			t.Errorf("%s is %q: %s", path, a.data, a.Error)
		}
	}
	r := op(fileapi.Read, "dir/file")
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{2, 3, "ain"}, {8, 0, "89"}, {8, 100, "89"}, {10, 0, ""}, {1 << 62, 1 << 62, ""}} {
		if r.Offset, r.Length = c.offset, c.length; string(x.ask(t, r).data) != c.want {
			t.Errorf("%d bytes from %d: %q", c.length, c.offset, x.ask(t, r).data)
		}
	}
	w.Keep = true
	if a := x.ask(t, w, "never"); a.Kind != "already_exists" || x.text(t, "dir/file") != "again56789" {
		t.Errorf("%+v, %q", a, x.text(t, "dir/file"))
	}
}

// A stream that is cut at any byte leaves what was there, and nothing beside it.
func TestACutWriteLeavesTheOldFile(t *testing.T) {
	x := newTree(t)
	x.put(t, "file", "old")
	whole := request(t, op(fileapi.Write, "file"), []byte("new text"), true).Bytes()
	for n := range len(whole) {
		a := serve(t, x.root, bytes.NewReader(whole[:n]))
		if a.Error == "" || x.text(t, "file") != "old" {
			t.Fatalf("cut at %d of %d: %+v, the file is %q", n, len(whole), a, x.text(t, "file"))
		}
	}
	if a := serve(t, x.root, bytes.NewReader(whole)); a.Error != "" || x.text(t, "file") != "new text" {
		t.Errorf("%+v", a)
	}
	if left, err := os.ReadDir(x.home); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// The same of a tree: what was done is whole, and nothing is in part.
func TestACutStreamLeavesWholeFiles(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"a", "d/b", "d/c"} {
		must(t, w.WriteHeader(&tar.Header{Name: name, Size: 700, Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := w.Write(bytes.Repeat([]byte(name[len(name)-1:]), 700))
		must(t, err)
	}
	must(t, w.Close())
	x := newTree(t)
	for n := 0; n < b.Len(); n += 97 {
		must(t, os.RemoveAll(x.home))
		must(t, os.MkdirAll(x.home, 0o700))
		a := serve(t, x.root, request(t, op(fileapi.Unpack, ""), b.Bytes()[:n], false))
		if a.Error == "" {
			t.Fatalf("cut at %d: it is said to be whole", n)
		}
		must(t, filepath.WalkDir(x.home, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				if text, _ := os.ReadFile(path); !bytes.Equal(text, bytes.Repeat([]byte(e.Name()), 700)) {
					t.Fatalf("cut at %d: %s has %d bytes", n, path, len(text))
				}
			}
			return err
		}))
	}
}

// No path and no link leads out of the home, and what is no regular file is neither read nor written.
func TestWhatLeadsOutIsRefused(t *testing.T) {
	x := newTree(t)
	x.put(t, "in", "inside")
	for name, target := range map[string]string{
		"abs": "/etc/secret", "up": "../../etc/secret", "dir": "/etc", "updir": "../../etc", "good": "in", "circle": "circle",
	} {
		must(t, os.Symlink(target, x.home+"/"+name))
	}
	must(t, unix.Mkfifo(x.home+"/fifo", 0o600))
	for path, kind := range map[string]string{
		"abs": "permission_denied", "up": "permission_denied", "dir/secret": "permission_denied", "updir/secret": "permission_denied",
		"../../etc/secret": "invalid_argument", "~/../../etc/secret": "invalid_argument", "circle": "failed_precondition",
		"fifo": "failed_precondition", "": "failed_precondition", "none": "not_found", "in/x": "failed_precondition",
		"/proc/self/mem": "permission_denied", "/etc/../proc/self/mem": "permission_denied", "/dev/null": "permission_denied",
		"a\x00b": "invalid_argument", strings.Repeat("a", 300): "invalid_argument", strings.Repeat("a/", 2048): "invalid_argument",
	} {
		if a := x.ask(t, op(fileapi.Read, path)); a.Kind != kind || len(a.data) > 0 || !strings.Contains(a.Error, "cannot") {
			t.Errorf("read %.40q: %q, %q, %s", path, a.data, a.Kind, a.Error)
		}
	}
	if a := x.ask(t, op(fileapi.Read, "good")); string(a.data) != "inside" {
		t.Errorf("%+v", a)
	}
	for _, path := range []string{"dir/secret", "updir/secret", "dir/new", "../../etc/new", "fifo", "~"} {
		w := op(fileapi.Write, path)
		w.Parents = true
		if a := x.ask(t, w, "taken"); a.Error == "" {
			t.Errorf("wrote %s", path)
		}
		for _, o := range []fileapi.Op{fileapi.Mkdir, fileapi.Remove, fileapi.Unpack} {
			r := op(o, path)
			r.Parents, r.Recursive = o == fileapi.Mkdir && path != "~", true
			if path == "fifo" && o == fileapi.Remove || path == "~" && o == fileapi.Unpack {
				continue
			}
			if a := x.ask(t, r); a.Error == "" {
				t.Errorf("%s %s", o, path)
			}
		}
		m := op(fileapi.Move, "in")
		m.To, m.Parents = []byte(path), true
		if path == "fifo" {
			m.Keep = true
		}
		if a := x.ask(t, m); a.Error == "" {
			t.Errorf("moved to %s", path)
		}
	}
	// A link is replaced itself.
	if a := x.ask(t, op(fileapi.Write, "abs"), "mine"); a.Error != "" || x.text(t, "abs") != "mine" {
		t.Errorf("%+v", a)
	}
	if b, err := os.ReadFile(x.root + "/etc/secret"); err != nil || string(b) != "outside" {
		t.Errorf("outside is %q", b)
	}
	if left, _ := os.ReadDir(x.root + "/etc"); len(left) != 1 {
		t.Errorf("outside are %v", left)
	}
}

// A link that leads into /proc by a way that stays below the root shows nothing of the process that looks.
func TestProcIsNotServed(t *testing.T) {
	dir := t.TempDir()
	depth := strings.Count(dir, "/")
	must(t, os.Symlink(strings.Repeat("../", depth)+"proc/self", dir+"/self"))
	must(t, os.Symlink(strings.Repeat("../", depth)+"proc/self/environ", dir+"/environ"))
	if _, err := os.ReadFile(dir + "/environ"); err != nil {
		t.Fatal("the link leads nowhere, so this tries nothing: ", err)
	}
	for _, r := range []fileapi.Request{
		op(fileapi.Read, dir+"/environ"), op(fileapi.Read, dir+"/self/status"), op(fileapi.List, dir+"/self"), op(fileapi.Write, dir+"/self/mem"),
		op(fileapi.Pack, dir+"/self/fd"), op(fileapi.Search, dir+"/self"), op(fileapi.Watch, dir+"/self"),
		op(fileapi.Unpack, dir+"/self"), op(fileapi.Stat, dir+"/self/exe"),
	} {
		if a := serve(t, "/", request(t, r, nil, true)); a.Kind != "permission_denied" || len(a.data)+len(a.entries) > 0 {
			t.Errorf("%s %s: %q %v %+v", r.Op, r.Path, a.data, a.entries, a.Result)
		}
	}
}

// Names change between a file and a link that leads out while they are read, written and packed: nothing of what is
// outside is ever seen or changed.
func TestRacesWithLinks(t *testing.T) {
	x := newTree(t)
	x.put(t, "d/secret", "inside")
	must(t, os.Symlink("/etc", x.home+"/out"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, x.home+"/d", unix.AT_FDCWD, x.home+"/out", unix.RENAME_EXCHANGE)
			}
		}
	}()
	refused, read := 0, 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, o := range []fileapi.Op{fileapi.Read, fileapi.Write, fileapi.Pack, fileapi.Remove} {
			r := op(o, "d/secret")
			if o == fileapi.Remove {
				r.Path = []byte("d/none")
			}
			a := x.ask(t, r, "inside")
			if bytes.Contains(a.data, []byte("outside")) {
				t.Fatalf("%s showed what is outside", o)
			}
			if a.Error == "" {
				read++
			} else {
				refused++
			}
		}
	}
	close(stop)
	<-stopped
	if refused == 0 || read == 0 {
		t.Errorf("%d were refused and %d not, so that there was no race", refused, read)
	}
	if b, err := os.ReadFile(x.root + "/etc/secret"); err != nil || string(b) != "outside" {
		t.Errorf("outside is %q", b)
	}
	if left, _ := os.ReadDir(x.root + "/etc"); len(left) != 1 {
		t.Errorf("outside are %v", left)
	}
}

// A file that grows without end is read as far as it was long.
func TestAFileThatGrows(t *testing.T) {
	x := newTree(t)
	x.put(t, "log", "begin\n")
	f, err := os.OpenFile(x.home+"/log", os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer f.Close()
		for range 2000 {
			select {
			case <-stop:
				return
			default:
				_, _ = f.Write(bytes.Repeat([]byte("x"), 64<<10))
			}
		}
	}()
	for _, o := range []fileapi.Op{fileapi.Read, fileapi.Pack} {
		if a := x.ask(t, op(o, "log")); a.Error != "" || a.Bytes == 0 {
			t.Errorf("%s: %+v", o, a.Result)
		}
	}
	close(stop)
	<-stopped
}

func TestListingIsBoundedAndGoesOn(t *testing.T) {
	x := newTree(t)
	const many = 12_000
	must(t, os.Mkdir(x.home+"/many", 0o755))
	for n := range many {
		must(t, os.WriteFile(fmt.Sprintf("%s/many/%05d", x.home, n), nil, 0o600))
	}
	must(t, os.MkdirAll(x.home+"/many/00001d/"+strings.Repeat("e/", 80), 0o755))
	r, seen, last := op(fileapi.List, ""), 0, ""
	r.Depth = 64
	for {
		a := x.ask(t, r)
		if a.Error != "" || len(a.entries) > fileapi.MaxEntries {
			t.Fatalf("%+v", a.Result)
		}
		for _, e := range a.entries {
			if p := strings.ReplaceAll(string(e.Path), "/", "\x00"); p <= last {
				t.Fatalf("%q came after %q", p, last)
			} else {
				last = p
			}
		}
		if seen += len(a.entries); !a.Truncated {
			break
		}
		r.After = a.entries[len(a.entries)-1].Path
	}
	if want := 1 + many + 63; seen != want { // many, its files, and the deep ones to level 64
		t.Errorf("%d entries were listed instead of %d", seen, want)
	}
}

// Names are bytes: with newlines, without UTF-8.
func TestNamesAreBytes(t *testing.T) {
	x := newTree(t)
	name := "a\n\xff\x1b[31m"
	if a := x.ask(t, op(fileapi.Write, name), "odd"); a.Error != "" {
		t.Fatal(a.Error)
	}
	if a := x.ask(t, op(fileapi.List, "")); a.paths() != name {
		t.Errorf("%q", a.paths())
	}
	if a := x.ask(t, op(fileapi.Read, name)); string(a.data) != "odd" {
		t.Errorf("%+v", a)
	}
	if a := x.ask(t, op(fileapi.Read, name+"2")); strings.ContainsAny(a.Error, "\n\x1b") {
		t.Errorf("a terminal would obey %q", a.Error)
	}
	packed := x.ask(t, op(fileapi.Pack, name))
	y := newTree(t)
	if a := y.ask(t, op(fileapi.Unpack, ""), string(packed.data)); a.Error != "" || y.text(t, name) != "odd" {
		t.Errorf("%+v, %q", a.Result, y.text(t, name))
	}
}

// A full disk leaves what was there, and says what to do.
func TestAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to mount a small file system")
	}
	x := newTree(t)
	must(t, unix.Mount("small", x.home, "tmpfs", 0, "size=64k"))
	defer func() { _ = unix.Unmount(x.home, unix.MNT_DETACH) }()
	x.put(t, "file", "old")
	a := x.ask(t, op(fileapi.Write, "file"), strings.Repeat("x", 1<<20))
	if a.Kind != "resource_exhausted" || !strings.Contains(a.Error, "remove files") || x.text(t, "file") != "old" {
		t.Errorf("%+v, %q", a.Result, x.text(t, "file"))
	}
	if left, _ := os.ReadDir(x.home); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// What a writer that was killed left with a name is removed by the next one, and what one that lives has is not.
func TestLeftoversAreSwept(t *testing.T) {
	x := newTree(t)
	x.put(t, filetree.Part+"0123456789abcdef", "left")
	live, err := os.Create(x.home + "/" + filetree.Part + "fedcba9876543210")
	must(t, err)
	defer live.Close()
	must(t, unix.Flock(int(live.Fd()), unix.LOCK_EX))
	if a := x.ask(t, op(fileapi.Write, "file"), "new"); a.Error != "" {
		t.Fatal(a.Error)
	}
	if a := x.ask(t, op(fileapi.List, "")); a.paths() != filetree.Part+"fedcba9876543210 file" {
		t.Errorf("%s", a.paths())
	}
}
