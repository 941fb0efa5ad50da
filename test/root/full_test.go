package root_test

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newSmallHost is a carrel whose data is on a small file system of its own. It is not up yet. Root has no
// blocks of its own there, as on most file systems but ext4 with its defaults.
func newSmallHost(t *testing.T) *host {
	t.Helper()
	h := newHostWith(t, func(string) string { return "idle_timeout: 0s\npolicy:\n  path: " + base + "/policy.yaml\n" })
	if err := os.Mkdir(h.data, 0o711); err != nil {
		t.Fatal(err)
	}
	mountSmall(t, h.data, "0711")
	t.Cleanup(func() {
		if err := h.down(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(h.data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return h
}

// mountSmall mounts a small file system on a directory, which the caller unmounts.
func mountSmall(t *testing.T, dir, mode string) {
	t.Helper()
	image := filepath.Join(base, "carrel-test-small-disk-"+rand.Text()+".img")
	for _, args := range [][]string{
		{"truncate", "-s", "160M", image},
		{"mkfs.ext4", "-q", "-F", "-m", "0", image},
		{"mount", "-o", "loop,nosuid,nodev", image, dir},
		{"rm", image}, // it lives as long as it is mounted
		{"chmod", mode, dir},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
}

// endWith has the executor of a workspace, and what it has written, end with the test: it might fill the disk of
// which the test is made to no end.
func (d *desk) endWith(t *testing.T) {
	t.Helper()
	executor, err := unix.PidfdOpen(d.ExecutorPID, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if unix.PidfdSendSignal(executor, unix.SIGKILL, nil, 0) == nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(executor), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		}
		_ = unix.Close(executor)
		_ = os.Remove(filepath.Join(d.Home, "f")) // or it has been destroyed
	})
}

// fills is a command that takes each block of the disk that becomes free.
var fills = []string{"/bin/sh", "-c", "while :; do cat /dev/zero >> f; done 2> /dev/null"}

// isFull waits until nothing of a file system is free.
func isFull(t *testing.T, dir string) {
	t.Helper()
	until(t, "the end of what is free", func() bool {
		var st unix.Statfs_t
		return unix.Statfs(dir, &st) == nil && st.Bavail == 0
	})
}

// A workspace without a disk limit fills the disk that holds the record, and takes each block that becomes
// free. Whoever works beside it is told why that is refused; the daemon stays, root sees what there is and
// ends it, with a record of each, and everything goes on without a restart.
func TestAWorkspaceFillsTheDisk(t *testing.T) {
	h := newSmallHost(t)
	spare := filepath.Join(h.data, "spare")
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spare, make([]byte, 20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	culprit, tenant := h.desk(t), h.desk(t)
	tenant.sh(t, "echo mine > file")
	daemon := h.part(t, "daemon")
	culprit.endWith(t)
	culprit.detach(t, fills...)

	full := func(args ...string) {
		t.Helper()
		r := h.try(nil, "", args...)
		if r.code == 0 || !strings.Contains(r.err, "Until there is room") || !strings.Contains(r.err, "carrel destroy --purge") {
			t.Errorf("carrel %q on a full disk: exit code %d: %s", args, r.code, r.err)
		}
	}
	refused := func() bool {
		r := tenant.try("true")
		return r.code != 0 && strings.Contains(r.err, "Until there is room")
	}
	until(t, "the refusal of a command on a full disk", refused)
	// What root frees is taken too.
	if err := os.Remove(spare); err != nil {
		t.Fatal(err)
	}
	isFull(t, h.data)
	until(t, "the refusal of a command on a full disk", refused)
	full("create", "crt one more")
	full("exec", tenant.Key, "--", "true")
	full("archive", "create", tenant.Key)
	full("token", "create", "--role", "agent")
	recorded := func(kind, workspace string) {
		t.Helper()
		if !slices.ContainsFunc(h.since(t, 0), func(r record) bool {
			return r.Type == "intent" && strings.Contains(r.raw, `"kind":"`+kind+`"`) && strings.Contains(r.raw, workspace)
		}) {
			t.Errorf("there is no record of %s of %s", kind, workspace)
		}
	}
	look := func() {
		t.Helper()
		if out := h.carrel(t, "ls"); !strings.Contains(out, culprit.Key) || !strings.Contains(out, tenant.Key) {
			t.Errorf("ls shows\n%s", out)
		}
		h.carrel(t, "inspect", culprit.Key)
		if out := h.carrel(t, "version"); !strings.Contains(out, "Until there is room") {
			t.Errorf("version says %q", out)
		}
		if out := h.try(nil, "", append([]string{"doctor", "-o", "json"}, h.flags()...)...).out; !strings.Contains(out, "disk_room") ||
			!strings.Contains(out, "Until there is room") {
			t.Errorf("doctor says\n%s", out)
		}
		h.carrel(t, "approvals")
	}
	look()
	if now := h.part(t, "daemon"); now != daemon {
		t.Errorf("the daemon was replaced: pid %d, now %d", daemon, now)
	}
	// Nor do a crash or an orderly end of either part need room.
	for _, end := range []func(){
		func() { kill(t, h.part(t, "daemon")) },
		func() { end(t, h.part(t, "daemon"), unix.SIGTERM) },
		func() { kill(t, h.part(t, "daemon")); kill(t, h.part(t, "broker")) },
	} {
		end()
		if err := h.up(); err != nil {
			t.Fatalf("on a full disk: %v", err)
		}
		look()
		full("create", "crt one more")
	}
	daemon = h.part(t, "daemon")
	h.carrel(t, "stop", tenant.Key)
	h.carrel(t, "destroy", "--purge", culprit.Key)
	recorded("workspace.stop", tenant.Name)
	recorded("workspace.destroy", culprit.Name)

	until(t, "room for another workspace", func() bool { return h.try(nil, "", "create", "crt one more").code == 0 })
	if now := h.part(t, "daemon"); now != daemon {
		t.Errorf("the daemon was replaced: pid %d, now %d", daemon, now)
	}
	if out := tenant.sh(t, "cat file"); out != "mine" {
		t.Errorf("the tenant's file holds %q", out)
	}
	if out := h.carrel(t, "audit", "verify"); !strings.Contains(out, "record") {
		t.Errorf("verify says %q", out)
	}
	h.settled(t)
	if strings.Contains(string(first(h.readRecord())), "is signed without the broker") {
		t.Error("the broker did not countersign on a full disk")
	}
}

func first(b []byte, _ error) []byte { return b }

// With the record on a file system of its own, as the documentation says, a workspace that fills the disk of the
// homes keeps nobody from running commands.
func TestTheRecordOnADiskOfItsOwn(t *testing.T) {
	h := newSmallHost(t)
	record := filepath.Join(h.data, "daemon")
	if err := os.Mkdir(record, 0o700); err != nil {
		t.Fatal(err)
	}
	mountSmall(t, record, "0700")
	t.Cleanup(func() { // before the rest is taken down, which enters no mount
		if names := strings.Fields(h.try(nil, "", "ls", "-q").out); len(names) > 0 {
			h.try(nil, "", append([]string{"destroy", "--purge"}, names...)...)
		}
		if r := h.try(nil, "", append([]string{"down"}, h.flags()...)...); r.code != 0 {
			t.Error(r.err)
		}
		if err := unix.Unmount(record, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	culprit, tenant := h.desk(t), h.desk(t)
	culprit.endWith(t)
	culprit.detach(t, fills...)
	isFull(t, h.data)
	for range 20 {
		tenant.sh(t, "true")
	}
	h.carrel(t, "destroy", "--purge", culprit.Key)
	h.carrel(t, "create", "crt one more")
	h.carrel(t, "audit", "verify")
}
