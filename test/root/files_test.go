package root_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The program that works on files has no id of root's, no capability, the commands' id for files, and is out of
// their reach; what it makes is theirs.
func TestFilesAreWorkedOnWithoutRights(t *testing.T) {
	d := shared.desk(t)
	w := shared.follow(t, nil, "files", "write", d.Key, "file")
	_, err := io.WriteString(w.stdin, "half ")
	if err != nil {
		t.Fatal(err)
	}
	pid := d.archiver(t, "files")
	var status []byte
	until(t, "it gives up its capabilities", func() bool {
		if status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(status), "CapEff:\t0000000000000000")
	})
	fields := map[string][]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.Fields(value)
	}
	x, work := strconv.Itoa(int(d.ExecutorUID)), strconv.Itoa(int(d.UID))
	for _, name := range []string{"Uid", "Gid"} {
		if got := strings.Join(fields[name], " "); got != strings.Join([]string{x, x, x, work}, " ") {
			t.Errorf("%s is %q; the executor's id is %s and the commands' %s", name, got, x, work)
		}
	}
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if n, err := strconv.ParseUint(fields[name][0], 16, 64); err != nil || n != 0 && name != "CapBnd" {
			t.Errorf("%s is %v", name, fields[name])
		}
	}
	if r := d.try("sh", "-c", `for p in /proc/[0-9]*; do read -r n < $p/comm; [ "$n" = carrel-archive ] || [ "$n" = "memfd:carrel-ar" ] && kill -9 ${p#/proc/}; done; true`); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if _, err := io.WriteString(w.stdin, "whole"); err != nil {
		t.Fatal(err)
	}
	_ = w.stdin.Close()
	if err := w.wait(); err != nil {
		t.Fatalf("%v: %s", err, w.errs.String())
	}
	if out := d.sh(t, `cat file; stat -c " %u %a" file; id -u`); out != "half whole "+work+" 644\n"+work {
		t.Errorf("%q", out)
	}
}

// Whoever dies in the middle of a write, the old file is there and nothing beside it: the client, the program, the
// executor, the daemon.
func TestAWriteThatIsKilled(t *testing.T) {
	h := newHostFor(t)
	d, other := h.desk(t), h.desk(t)
	kills := map[string]func(client *following){
		"client":   func(c *following) { _ = c.kill() },
		"program":  func(*following) { kill(t, d.archiver(t, "files")) },
		"executor": func(*following) { kill(t, h.look(t, d.Key).ExecutorPID) },
		"daemon":   func(*following) { kill(t, h.part(t, "daemon")) },
	}
	for _, who := range []string{"client", "program", "executor", "daemon"} {
		d.put(t, "file", []byte("old"), "600")
		*d = *h.look(t, d.Key)
		w := h.follow(t, nil, "files", "write", d.Key, "file")
		if _, err := w.stdin.Write([]byte(strings.Repeat("new ", 100_000))); err != nil {
			t.Fatal(err)
		}
		d.archiver(t, "files")
		kills[who](w)
		_ = w.stdin.Close()
		if err := w.wait(); err == nil || who != "client" && !strings.Contains(w.errs.String(), "carrel: cannot") {
			t.Errorf("%s: %v, %s", who, err, w.errs.String())
		}
		if who == "daemon" {
			if err := h.up(); err != nil {
				t.Fatal(err)
			}
		}
		if out := d.sh(t, "cat file; ls -A"); !strings.HasPrefix(out, "old") || strings.Contains(out, ".carrel") {
			t.Errorf("%s: the home has %q", who, out)
		}
		other.well(t)
	}
	if r := h.try(nil, "", "audit", "verify"); r.code != 0 {
		t.Errorf("%+v", r)
	}
}

// On the daemon's host the bytes of files do not go through the daemon, and its record says how many there were.
func TestFilesGoBySocket(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	daemon := h.part(t, "daemon")
	read := func() (n int64) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", daemon))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(b), "rchar: %d", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const size = 32 << 20
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("0123456789abcdef"), size/16), 0o644); err != nil {
		t.Fatal(err)
	}
	mark := h.mark(t)
	before := read()
	h.carrel(t, "cp", large, d.Key+":large")
	h.carrel(t, "cp", d.Key+":large", large+".back")
	if r := h.try(nil, "", "files", "cat", d.Key, "large"); r.code != 0 || len(r.out) != size {
		t.Errorf("%d bytes, %d", len(r.out), r.code)
	}
	if n := read() - before; n > size/4 { // it reads the program for files once, 4 MB
		t.Errorf("the daemon has read %d bytes", n)
	}
	if a, b := fileSum(t, large), fileSum(t, large+".back"); a != b {
		t.Errorf("they differ: %s, %s", a, b)
	}
	h.recorded(t, mark, `"kind":"file.write"`, `"tree":true`)
	h.recorded(t, mark, fmt.Sprintf(`"bytes":%d`, size))
}

func fileSum(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// What is done is recorded, with paths and numbers and without bytes; changes before they happen.
func TestFilesAreRecorded(t *testing.T) {
	d := shared.desk(t)
	mark := shared.mark(t)
	if r := shared.try(nil, "very-secret-text", "files", "write", d.Key, "notes.txt"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	shared.carrel(t, "files", "cat", d.Key, "notes.txt")
	shared.carrel(t, "files", "ls", d.Key)
	shared.carrel(t, "files", "mv", d.Key, "notes.txt", "kept\n\x1b.txt")
	shared.carrel(t, "files", "rm", d.Key, "kept\n\x1b.txt")
	shared.recorded(t, mark, `"kind":"file.write"`, `"path":"notes.txt"`, `"replace":true`)
	shared.recorded(t, mark, `"bytes":16`)
	shared.recorded(t, mark, `"kind":"file.read"`, `"path":"notes.txt"`)
	shared.recorded(t, mark, `"kind":"file.list"`)
	shared.recorded(t, mark, `"kind":"file.move"`, `"to":"kept\n\u001b.txt"`)
	shared.recorded(t, mark, `"kind":"file.remove"`)
	for _, r := range shared.since(t, mark) {
		if strings.Contains(r.raw, "very-secret-text") {
			t.Errorf("the record has the bytes: %s", r.raw)
		}
	}
}

// A watch sees what commands do, ends when its workspace stops, and is bounded; so are those who only hold requests.
func TestFilesAreWatched(t *testing.T) {
	d, other := shared.desk(t), shared.desk(t)
	var all []*following
	for range 4 {
		all = append(all, shared.follow(t, nil, "files", "watch", "-o", "json", d.Key))
	}
	made := false
	until(t, "all watch", func() bool {
		if r := shared.try(nil, "", "files", "ls", d.Key); r.code != 0 { // while they do
			t.Fatalf("%+v", r)
		}
		n := 0
		for _, f := range processes(t, d) {
			if links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", f)); len(links) > 0 {
				for _, l := range links {
					if to, _ := os.Readlink(l); to == "anon_inode:inotify" {
						info, _ := os.ReadFile(strings.Replace(l, "/fd/", "/fdinfo/", 1))
						if strings.Contains(string(info), "inotify wd:") {
							n++
						}
					}
				}
			}
		}
		return n == 4
	})
	if r := shared.try(nil, "", "files", "watch", d.Key); r.code == 0 || !strings.Contains(r.err, "4 watches are open") {
		t.Errorf("%+v", r)
	}
	d.sh(t, "mkdir -p new/deep && echo x > new/deep/file && mv new/deep/file new/deep/moved")
	for _, f := range all {
		for made = false; !made; {
			var e struct{ Path, What string }
			if err := json.Unmarshal([]byte(f.line(t)), &e); err != nil {
				t.Fatal(err)
			}
			made = e.Path == "new/deep/moved" && e.What == "create"
		}
	}
	shared.carrel(t, "stop", d.Key)
	for _, f := range all {
		if err := f.wait(); err == nil || !strings.Contains(f.errs.String(), "stopped") {
			t.Errorf("%v: %q", err, f.errs.String())
		}
	}
	other.well(t)
}

// processes are those that the executor has started.
func processes(t *testing.T, d *desk) (list []int) {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.ExecutorPID))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		b, _ := os.ReadFile(file) // a thread may be gone
		for word := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil {
				list = append(list, pid)
			}
		}
	}
	return list
}

// A paused workspace is not worked on, and says what to do. One that is stopped is started. A disk limit that is
// used up is told, what was there stays, and files can be removed.
func TestFilesOfWorkspacesInAnyState(t *testing.T) {
	d := shared.desk(t)
	d.put(t, "file", []byte("old"), "600")
	shared.carrel(t, "pause", d.Key)
	for _, args := range [][]string{{"cat", d.Key, "file"}, {"rm", d.Key, "file"}, {"ls", d.Key}} {
		if r := shared.try(nil, "", append([]string{"files"}, args...)...); r.code == 0 || !strings.Contains(r.err, "carrel resume") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	shared.carrel(t, "resume", d.Key)
	small := shared.desk(t, "--disk", "64MiB")
	small.put(t, "file", []byte("old"), "600")
	for _, args := range [][]string{{"files", "write", small.Key, "file"}, {"files", "write", small.Key, "new"}} {
		r := shared.try(nil, strings.Repeat("x", 80<<20), args...)
		if r.code == 0 || !strings.Contains(r.err, "remove files") {
			t.Errorf("%v: %d %s", args, r.code, r.err)
		}
	}
	if out := small.sh(t, "cat file; ls -A"); out != "oldfile" {
		t.Errorf("%q", out)
	}
	shared.carrel(t, "stop", d.Key)
	if out := shared.carrel(t, "files", "cat", d.Key, "file"); out != "old" {
		t.Errorf("%q", out)
	}
}

// A workspace that changes names while files are copied out of it, and sends what it likes, changes nothing of the
// host but what was named.
func TestCopyingFromAHostileWorkspace(t *testing.T) {
	d := shared.desk(t)
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/beside", 0o700); err != nil {
		t.Fatal(err)
	}
	d.sh(t, `mkdir -p tree/d; echo in > tree/d/file; ln -s ../../beside tree/up; ln -s /etc tree/abs; mkfifo tree/fifo
		printf x > $'tree/\n\xff'; chmod 4755 tree/d/file; mkdir tree/closed; chmod 0 tree/closed`)
	bg := d.detach(t, "bash", "-c", `mkdir -p swap other; echo s > swap/x; ln -sfn /etc link
		while :; do mv -T swap tree/d2 && mv -T tree/d2 swap; mv -T link tree/d2 && mv -T tree/d2 link; done 2>/dev/null`)
	r := shared.try(nil, "", "cp", d.Key+":tree", dir+"/got")
	if r.code != 1 || !strings.Contains(r.err, "left out") {
		t.Errorf("%+v", r)
	}
	shared.carrel(t, "kill", d.Key, bg)
	if b, err := os.ReadFile(dir + "/got/d/file"); err != nil || string(b) != "in\n" {
		t.Errorf("%q, %v", b, err)
	}
	if i, err := os.Stat(dir + "/got/d/file"); err != nil || i.Mode() != 0o755 {
		t.Errorf("%v, %v", i, err)
	}
	if to, err := os.Readlink(dir + "/got/abs"); err != nil || to != "/etc" {
		t.Errorf("%q, %v", to, err)
	}
	// Over it again: the links that are there now are not followed.
	d.sh(t, `rm -rf tree/up tree/abs; mkdir tree/up tree/abs; echo taken > tree/up/file; echo taken > tree/abs/passwd`)
	if r := shared.try(nil, "", "cp", d.Key+":tree/.", dir+"/got"); r.code != 1 || !strings.Contains(r.err, "is not followed") {
		t.Errorf("%+v", r)
	}
	// Other tests make users meanwhile.
	if after, err := os.ReadFile("/etc/passwd"); err != nil || strings.Contains(string(after), "taken") {
		t.Fatalf("/etc/passwd was written: %v", err)
	}
	if left, err := os.ReadDir(dir + "/beside"); err != nil || len(left) != 0 {
		t.Errorf("beside are %v", left)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("%v", all)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir+"/got/fifo", &st); err == nil {
		t.Error("a FIFO was made")
	}
}

// What is written into a project of the caller's has the caller's owner on the host, and what is read-only there for
// commands is for clients too.
func TestFilesInAProject(t *testing.T) {
	needRoot(t)
	const uid = 61993
	project := filepath.Join(base, "project-of-files")
	if err := os.MkdirAll(filepath.Join(project, ".git/hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(project) })
	if err := os.WriteFile(filepath.Join(project, "code"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/shadow", filepath.Join(project, "out")); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(project, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	}); err != nil {
		t.Fatal(err)
	}
	user := &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{}}
	key := "project of files"
	as := func(stdin string, args ...string) result { return shared.try(user, stdin, args...) }
	if r := as("", "create", "-v", project+":/workspace", key); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	t.Cleanup(func() { as("", "destroy", "--purge", key) })
	for path, mode := range map[string]os.FileMode{"code": 0o600, "new": 0o644} {
		if r := as("new text", "files", "write", key, "/workspace/"+path); r.code != 0 {
			t.Errorf("%s: %+v", path, r)
		}
		i, err := os.Lstat(filepath.Join(project, path))
		if err != nil || i.Sys().(*syscall.Stat_t).Uid != uid || i.Mode() != mode {
			t.Errorf("%s: %v, %v", path, i, err)
		}
		if b, err := os.ReadFile(filepath.Join(project, path)); string(b) != "new text" {
			t.Errorf("%s has %q, %v", path, b, err)
		}
	}
	if r := as("", "files", "cat", key, "/workspace/code"); r.out != "new text" {
		t.Errorf("%+v", r)
	}
	for _, path := range []string{"/workspace/.git/hooks/pre-commit", "/workspace/.git/config"} {
		if r := as("#!/bin/sh\n", "files", "write", key, path); r.code == 0 || !strings.Contains(r.err, "read-only") {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if r := as("", "files", "cat", key, "/workspace/out"); r.code == 0 || r.out != "" {
		t.Errorf("a link to a file of the host's: %+v", r)
	}
	if r := as("", "files", "rm", "-r", key, "/workspace/.git"); r.code == 0 {
		t.Errorf("the repository is removed: %+v", r)
	}
}
