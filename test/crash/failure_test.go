package crash_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// system runs a program of the host, which must succeed.
func system(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// disk mounts a small file system of its own at path.
func (h *host) disk(t testing.TB, path string, flags ...string) {
	t.Helper()
	image := h.dir + "/disk"
	system(t, "truncate", "-s", "24M", image)
	system(t, append(append([]string{"mkfs.ext4", "-q", "-F", "-m", "0"}, flags...), image)...)
	must(t, os.MkdirAll(path, 0o755))
	system(t, "mount", "-o", "loop", image, path)
	t.Cleanup(func() { // before the host's own, which removes the directory
		if path != h.data {
			_ = h.tryUp()
			for k := range strings.FieldsSeq(h.try("ls", "-q").out) {
				_ = h.try("destroy", "--purge", k)
			}
		} else if err := h.purge(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill takes all the room of the file system at dir; the returned function gives it back.
func fill(t testing.TB, dir string) (free func()) {
	t.Helper()
	f, err := os.Create(dir + "/filling")
	must(t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return func() { must(t, os.Remove(dir+"/filling")) }
}

// fillInodes makes files until there can be no more.
func fillInodes(t testing.TB, dir string) (free func()) {
	t.Helper()
	must(t, os.Mkdir(dir+"/filling", 0o700))
	for n := 0; ; n++ {
		if os.WriteFile(fmt.Sprint(dir, "/filling/", n), nil, 0o600) != nil {
			break
		}
	}
	return func() { must(t, os.RemoveAll(dir+"/filling")) }
}

// refused sees that an operation fails and says all of the texts.
func (h *host) refused(t *testing.T, texts []string, args ...string) {
	t.Helper()
	r := h.try(args...)
	t.Logf("carrel %q says: %s", args, strings.TrimSpace(r.err))
	if r.code == 0 {
		t.Errorf("carrel %q succeeds", args)
	}
	for _, text := range texts {
		if !strings.Contains(r.err, text) {
			t.Errorf("carrel %q does not say %q", args, text)
		}
	}
}

// after sees that everything works again and that nothing was left.
func (h *host) after(t *testing.T, key string, but ...check.Kind) {
	t.Helper()
	h.up(t)
	h.carrel(t, "create", key)
	h.carrel(t, "exec", key, "--", "true")
	h.settled(t)
	h.look(t, check.Expect{Any: true}, but...)
	for k := range strings.FieldsSeq(h.carrel(t, "ls", "-q")) {
		h.carrel(t, "destroy", "--purge", k)
	}
	h.settled(t)
	h.look(t, check.Expect{}, but...)
}

func TestDiskFull(t *testing.T) {
	h := newHost(t)
	h.disk(t, h.data)
	h.up(t)
	h.carrel(t, "create", "crk stays")
	h.carrel(t, "exec", "crk stays", "--", "/bin/sh", "-c", "echo kept > file")
	free := fill(t, h.data)
	daemon, err := h.part("daemon")
	must(t, err)
	// The first attempts may come before the daemon has seen it.
	until(t, "the refusal of what takes room", func() bool {
		r := h.try("create", "crk other")
		if r.code == 0 {
			t.Errorf("create without room on the disk: %v", r)
		}
		return strings.Contains(r.err, "Until there is room")
	})
	h.refused(t, []string{"Until there is room", "carrel destroy --purge"}, "exec", "crk stays", "--", "true")
	h.carrel(t, "ls")
	if now, err := h.part("daemon"); err != nil || now != daemon {
		t.Errorf("the daemon was %d and is %d, %v", daemon, now, err)
	}
	must(t, kill(daemon))
	h.up(t)
	h.refused(t, []string{"Until there is room"}, "create", "crk other")
	h.carrel(t, "stop", "crk stays")
	free()
	until(t, "room for commands", func() bool { return h.try("exec", "crk stays", "--", "true").code == 0 })
	if out := h.carrel(t, "exec", "crk stays", "--", "cat", "file"); out != "kept\n" {
		t.Errorf("the file holds %q", out)
	}
	h.after(t, "crk other")
}

func TestInodesFull(t *testing.T) {
	h := newHost(t)
	h.disk(t, h.data, "-N", "128")
	h.up(t)
	h.carrel(t, "create", "--no-start", "crk stays")
	free := fillInodes(t, h.data)
	h.refused(t, []string{"no space left", "df -i"}, "create", "crk other")
	free()
	h.after(t, "crk other")
}

func TestHomesReadOnly(t *testing.T) {
	h := newHost(t)
	must(t, os.MkdirAll(h.data, 0o711))
	h.disk(t, h.data+"/homes")
	must(t, os.RemoveAll(h.data+"/homes/lost+found"))
	h.up(t)
	h.carrel(t, "create", "--no-start", "crk stays")
	system(t, "mount", "-o", "remount,ro", h.data+"/homes")
	h.refused(t, []string{"read-only file system", "remount"}, "create", "crk other")
	system(t, "mount", "-o", "remount,rw", h.data+"/homes")
	h.after(t, "crk other", check.Mount)
}

// set changes a setting of the broker and starts it again.
func (h *host) set(t *testing.T, name string, value int) {
	t.Helper()
	path := h.data + "/broker.json"
	b, err := os.ReadFile(path)
	must(t, err)
	all := map[string]any{}
	must(t, json.Unmarshal(b, &all))
	all[name] = value
	b, err = json.Marshal(all)
	must(t, err)
	must(t, os.WriteFile(path, b, 0o600))
	broker, err := h.part("broker")
	must(t, err)
	must(t, kill(broker))
	h.up(t)
}

func TestIDsExhausted(t *testing.T) {
	h := newHostUp(t)
	h.set(t, "uid_count", 7) // three each, and one for carrel-egress
	h.carrel(t, "create", "--no-start", "crk one")
	h.carrel(t, "create", "--no-start", "crk two")
	h.refused(t, []string{"every id from", "raise uid_count"}, "create", "crk three")
	h.carrel(t, "destroy", "--purge", "crk one") // ids do not come back
	h.refused(t, []string{"every id from", "raise uid_count"}, "create", "crk three")
	h.settled(t)
	h.look(t, check.Expect{Any: true})
	h.set(t, "uid_count", 30)
	h.after(t, "crk three")
}

func TestHomeReplacedByALink(t *testing.T) {
	h := newHostUp(t)
	target := h.dir + "/precious"
	must(t, os.Mkdir(target, 0o755))
	must(t, os.WriteFile(target+"/file", []byte("precious"), 0o644))
	for _, purge := range [][]string{nil, {"--purge"}} {
		h.carrel(t, "create", "--no-start", "crk linked")
		home := h.data + "/homes/" + h.name(t, "crk linked")
		must(t, os.Rename(home, h.dir+"/aside"))
		must(t, os.Symlink(target, home))
		h.refused(t, []string{"move away what stands there"}, "start", "crk linked")
		h.refused(t, []string{"neither follows nor removes", "move it away"}, append(append([]string{"destroy"}, purge...), "crk linked")...)
		if b, err := os.ReadFile(target + "/file"); err != nil || string(b) != "precious" {
			t.Errorf("behind the link: %q, %v", b, err)
		}
		must(t, os.Remove(home))
		must(t, os.Rename(h.dir+"/aside", home))
		h.carrel(t, append(append([]string{"destroy"}, purge...), "crk linked")...)
	}
	h.settled(t)
	h.look(t, check.Expect{})
}

func TestImmutableFile(t *testing.T) {
	h := newHostUp(t)
	h.carrel(t, "create", "crk immutable")
	h.carrel(t, "exec", "crk immutable", "--", "/bin/sh", "-c", "mkdir deep; echo x > deep/file; echo x > /tmp/file")
	name := h.name(t, "crk immutable")
	for _, path := range []string{h.data + "/homes/" + name + "/deep/file", h.data + "/tmp/" + name + "/tmp/file"} {
		if out, err := exec.Command("chattr", "+i", path).CombinedOutput(); err != nil {
			t.Skipf("skipped: this file system has no immutable files: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command("chattr", "-i", path).Run() })
	}
	h.refused(t, []string{"immutable", "chattr -R -ia"}, "destroy", "--purge", "crk immutable")
	system(t, "chattr", "-i", h.data+"/homes/"+name+"/deep/file")
	h.refused(t, []string{"immutable", "chattr -R -ia"}, "destroy", "--purge", "crk immutable")
	// A restart tries again, and does not fail for it.
	for _, part := range []string{"daemon", "broker"} {
		pid, err := h.part(part)
		must(t, err)
		must(t, kill(pid))
	}
	h.up(t)
	system(t, "chattr", "-i", h.data+"/tmp/"+name+"/tmp/file")
	h.carrel(t, "destroy", "--purge", "crk immutable")
	h.settled(t)
	h.look(t, check.Expect{})
}

// A host whose control groups are not to be written is told so before anything is made.
func TestControlGroupsReadOnly(t *testing.T) {
	h := newHost(t)
	const script = `for m in $(awk '$9 ~ /^cgroup/ || $10 ~ /^cgroup/ {print $5}' /proc/self/mountinfo); do mount -o remount,bind,ro "$m"; done
exec "$@"`
	args := append(
		[]string{"--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh", bin + "/carrel", "up", "--detach"}, h.flags()...,
	)
	c := exec.CommandContext(t.Context(), "unshare", args...)
	c.Env = h.command(t.Context()).Env
	out, err := c.CombinedOutput()
	t.Logf("up says: %s", out)
	if err == nil || !strings.Contains(string(out), "cannot hold workspaces") || !strings.Contains(string(out), "remedy") {
		t.Errorf("up: %v", err)
	}
	h.isGone(t, h.instance())
}
