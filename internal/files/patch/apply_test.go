package patch_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// A change of every kind: text, mode, new directories, deletion, move.
const everyKind = `--- a/one
+++ b/one
@@ -1 +1 @@
-1
+I
diff --git a/two b/two
old mode 100644
new mode 100755
--- a/two
+++ b/two
@@ -1 +1,2 @@
 2
+II
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/new/dir/file b/new/dir/file
new file mode 100755
--- /dev/null
+++ b/new/dir/file
@@ -0,0 +1 @@
+new
diff --git a/from b/to/here
rename from from
rename to to/here
--- a/from
+++ b/to/here
@@ -1,2 +1,2 @@
 a
-b
+B
diff --git a/mode b/mode
old mode 100644
new mode 100755
`

func everyBefore() map[string]string {
	return map[string]string{"one": "1\n", "two": "2\n", "gone": "x\n", "from": "a\nb\n", "mode": "m\n", "other": "o\n"}
}

func everyAfter() map[string]string {
	return map[string]string{
		"one": "I\n", "two -rwxr-xr-x": "2\nII\n", "new/dir/file -rwxr-xr-x": "new\n", "to/here": "a\nB\n",
		"mode -rwxr-xr-x": "m\n", "other": "o\n",
	}
}

// private is a directory for journals.
func private(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "journals")
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

func same(t testing.TB, what, dir string, want map[string]string) {
	t.Helper()
	if got := tree(t, dir); !maps.Equal(got, want) {
		t.Errorf("%s:\n%q\nwant\n%q", what, got, want)
	}
}

func dirs(t testing.TB, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	must(t, err)
	return all
}

func TestApplyAndUndo(t *testing.T) {
	dir, journals := lay(t, everyBefore()), private(t)
	p, err := read(t, dir, everyKind)
	must(t, err)
	id, err := p.Apply(t.Context(), journals)
	must(t, err)
	same(t, "applied", dir, everyAfter())
	undo, err := patch.Undo(t.Context(), journals, id)
	must(t, err)
	same(t, "undone", dir, everyBefore())
	if d := dirs(t, dir); len(d) > 0 {
		t.Errorf("left: %q", d)
	}
	if _, err := patch.Undo(t.Context(), journals, id); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "undone before") {
		t.Errorf("undone twice: %v", err)
	}
	redo, err := patch.Undo(t.Context(), journals, undo)
	must(t, err)
	same(t, "redone", dir, everyAfter())
	all, err := patch.Records(journals)
	must(t, err)
	kinds := map[string]bool{}
	for _, r := range all {
		names := strings.NewReplacer(id, "first", undo, "undo", redo, "redo").Replace(r.ID + " " + r.Undoes)
		kinds[fmt.Sprintf("%t %t %s %d", r.Undone, r.Conflict, names, len(r.Places))] = true
	}
	if !maps.Equal(kinds, map[string]bool{"true false first  7": true, "true false undo first 7": true, "false false redo undo 7": true}) {
		t.Errorf("%v", kinds)
	}
	// It cannot be applied again, because the files are not as they were.
	if _, err := p.Apply(t.Context(), journals); !errdefs.IsFailedPrecondition(err) && !errdefs.IsAlreadyExists(err) {
		t.Errorf("applied twice: %v", err)
	}
	same(t, "refused", dir, everyAfter())
	must(t, patch.Forget(journals, redo))
	if _, err := patch.Undo(t.Context(), journals, redo); !errdefs.IsNotFound(err) {
		t.Errorf("undone after it was forgotten: %v", err)
	}
	for _, id := range []string{"", "..", "p-0123456789abcdef", redo} {
		if err := patch.Forget(journals, id); err == nil {
			t.Errorf("%q is forgotten", id)
		}
	}
}

// What was not chosen stays.
func TestOnly(t *testing.T) {
	dir, journals := lay(t, everyBefore()), private(t)
	p, err := read(t, dir, everyKind)
	must(t, err)
	some, err := p.Only("gone", "from")
	must(t, err)
	_, err = some.Apply(t.Context(), journals)
	must(t, err)
	want := everyBefore()
	delete(want, "gone")
	delete(want, "from")
	want["to/here"] = "a\nB\n"
	same(t, "chosen", dir, want)
	rest, err := p.Only("one", "two", "new/dir/file", "mode")
	must(t, err)
	_, err = rest.Apply(t.Context(), journals)
	must(t, err)
	same(t, "the rest", dir, everyAfter())
}

// The umask is taken off what a patch says of a new file, and not off what the caller says.
func TestNewFiles(t *testing.T) {
	dir, journals := lay(t, nil), private(t)
	p, err := patch.Parse([]byte("diff --git a/run b/run\nnew file mode 100755\ndiff --git a/plain b/plain\nnew file mode 100644\n" +
		"diff --git a/said b/said\nnew file mode 100755\n"))
	must(t, err)
	got, err := patch.Read(t.Context(), patch.Roots{Dir: dir, Modes: map[string]fs.FileMode{"said": 0o764}}, p)
	must(t, err)
	before := unix.Umask(0o027)
	_, err = got.Apply(t.Context(), journals)
	unix.Umask(before)
	must(t, err)
	same(t, "made", dir, map[string]string{"run -rwxr-x---": "", "plain -rw-r-----": "", "said -rwxrw-r--": ""})
}

// Undo refuses when a file changed since, and then changes none.
func TestUndoRefuses(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"content": func(dir string) error { return os.WriteFile(filepath.Join(dir, "one"), []byte("else\n"), 0o644) },
		"mode":    func(dir string) error { return os.Chmod(filepath.Join(dir, "two"), 0o700) },
		"deleted": func(dir string) error { return os.Remove(filepath.Join(dir, "to/here")) },
		"made":    func(dir string) error { return os.WriteFile(filepath.Join(dir, "gone"), []byte("x\n"), 0o644) },
		"replaced": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "one")), os.Symlink("two", filepath.Join(dir, "one")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, journals := lay(t, everyBefore()), private(t)
			p, err := read(t, dir, everyKind)
			must(t, err)
			id, err := p.Apply(t.Context(), journals)
			must(t, err)
			must(t, change(dir))
			now := tree(t, dir)
			if _, err := patch.Undo(t.Context(), journals, id); err == nil {
				t.Error("it is undone")
			}
			same(t, "refused", dir, now)
		})
	}
	// A damaged backup is no backup.
	dir, journals := lay(t, everyBefore()), private(t)
	p, err := read(t, dir, everyKind)
	must(t, err)
	id, err := p.Apply(t.Context(), journals)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(journals, id, "0"), []byte("?"), 0o600))
	if _, err := patch.Undo(t.Context(), journals, id); !errdefs.IsDataLoss(err) {
		t.Error(err)
	}
	same(t, "damaged", dir, everyAfter())
}

// What a file has beside its content stays, and comes back.
func TestMetadataStays(t *testing.T) {
	dir, journals := lay(t, map[string]string{"f": "a\n", "without": "a\n"}), private(t)
	f := filepath.Join(dir, "f")
	must(t, unix.Setxattr(f, "user.note", []byte("\x00keep"), 0))
	must(t, os.Chmod(f, 0o640))
	acl := accessList(t, f)
	root := os.Geteuid() == 0
	if root {
		must(t, os.Chown(f, 1234, 2345))
	} else {
		t.Log("not root: the owner is not changed")
	}
	// What is made in the directory has an access list that the file has not.
	defaults := defaultList(t, dir)
	old := time.Unix(1_000_000, 5000)
	must(t, os.Chtimes(f, old, old))
	state := func() string {
		var st unix.Stat_t
		must(t, unix.Lstat(f, &st))
		b := make([]byte, 1024)
		n, err := unix.Getxattr(f, "user.note", b)
		must(t, err)
		return fmt.Sprintf("%o %d %d %q %q", st.Mode, st.Uid, st.Gid, b[:n], xattr(f, "system.posix_acl_access"))
	}
	before := state()
	p, err := read(t, dir, "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n")
	must(t, err)
	id, err := p.Apply(t.Context(), journals)
	must(t, err)
	if now := state(); now != before {
		t.Errorf("applied: %s\nbefore: %s", now, before)
	}
	st, err := os.Stat(f)
	must(t, err)
	if st.ModTime().Equal(old) {
		t.Error("the time of a file that changed is the old one")
	}
	_, err = patch.Undo(t.Context(), journals, id)
	must(t, err)
	st, err = os.Stat(f)
	must(t, err)
	if now := state(); now != before || !st.ModTime().Equal(old) {
		t.Errorf("undone: %s %v\nbefore: %s %v", now, st.ModTime(), before, old)
	}
	t.Logf("access lists: %t, of directories: %t, owners: %t", acl, defaults, root)
	// A file without a list does not get that of its directory.
	p, err = read(t, dir, "--- without\n+++ without\n@@ -1 +1 @@\n-a\n+b\n")
	must(t, err)
	_, err = p.Apply(t.Context(), journals)
	must(t, err)
	if list := xattr(filepath.Join(dir, "without"), "system.posix_acl_access"); list != nil {
		t.Errorf("it has the list %q now", list)
	}
	// A program with capabilities is not changed.
	if root {
		caps := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		must(t, unix.Setxattr(f, "security.capability", caps, 0))
		if _, err := read(t, dir, "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n"); !errdefs.IsPermissionDenied(err) {
			t.Errorf("capabilities: %v", err)
		}
	}
}

func xattr(path, name string) []byte {
	b := make([]byte, 1024)
	n, err := unix.Getxattr(path, name, b)
	if err != nil {
		return nil
	}
	return b[:n]
}

// aclText is the binary form of an access list (linux/posix_acl_xattr.h): version 2, then tag, permissions and id each.
func aclText(entries ...[3]uint32) []byte {
	b := []byte{2, 0, 0, 0}
	for _, e := range entries {
		b = append(b, byte(e[0]), byte(e[0]>>8), byte(e[1]), byte(e[1]>>8), byte(e[2]), byte(e[2]>>8), byte(e[2]>>16), byte(e[2]>>24))
	}
	return b
}

const none = 0xffffffff

func accessList(t testing.TB, path string) bool {
	err := unix.Setxattr(path, "system.posix_acl_access",
		aclText([3]uint32{1, 6, none}, [3]uint32{2, 4, 4321}, [3]uint32{4, 4, none}, [3]uint32{16, 4, none}, [3]uint32{32, 0, none}), 0)
	if err != nil {
		t.Logf("no access lists here: %v", err)
	}
	return err == nil
}

func defaultList(t testing.TB, path string) bool {
	err := unix.Setxattr(path, "system.posix_acl_default",
		aclText([3]uint32{1, 7, none}, [3]uint32{2, 7, 5432}, [3]uint32{4, 5, none}, [3]uint32{16, 7, none}, [3]uint32{32, 5, none}), 0)
	if err != nil {
		t.Logf("no default access lists here: %v", err)
	}
	return err == nil
}

// A failure of any operation changes no file and leaves nothing behind.
func TestFailureAtEveryStep(t *testing.T) {
	errPlanted := errors.New("planted")
	for n := 1; ; n++ {
		dir, journals := lay(t, everyBefore()), private(t)
		p, err := read(t, dir, everyKind)
		must(t, err)
		i, at := 0, ""
		undo := patch.OnStep(func(op string) error {
			if i++; i == n {
				at = op
				return errPlanted
			}
			return nil
		})
		id, err := p.Apply(t.Context(), journals)
		undo()
		if at == "" {
			must(t, err)
			if n < 60 {
				t.Errorf("only %d steps", n)
			}
			return
		}
		if !errors.Is(err, errPlanted) {
			t.Errorf("step %d, %s: %v", n, at, err)
		}
		if id != "" {
			same(t, at+" after the change", dir, afterAndTemps(t, dir))
			_, err := patch.Recover(t.Context(), journals)
			must(t, err)
			same(t, at+" after the change, recovered", dir, everyAfter())
			continue
		}
		same(t, fmt.Sprintf("step %d, %s", n, at), dir, everyBefore())
		if left, err := os.ReadDir(journals); err != nil || len(left) > 0 || len(dirs(t, dir)) > 0 {
			t.Errorf("step %d, %s: left %v %v", n, at, left, dirs(t, dir))
		}
	}
}

// afterAndTemps is the tree after a change, with what is there beside it for the moment.
func afterAndTemps(t testing.TB, dir string) map[string]string {
	want := everyAfter()
	for name, text := range tree(t, dir) {
		if strings.Contains(name, ".carrel-p-") {
			want[name] = text
		}
	}
	return want
}
