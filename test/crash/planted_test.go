package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
	"github.com/carrel-dev/carrel/test/userdb"
)

// plant puts something out of place and returns how to take it away again.
type plant func(t *testing.T, h *host, in check.Instance, name string) (undo func())

// file plants a file with some text.
func file(path func(h *host, name string) string, text string) plant {
	return func(t *testing.T, h *host, _ check.Instance, name string) func() {
		p := path(h, name)
		must(t, os.WriteFile(p, []byte(text), 0o600))
		return func() { must(t, os.Remove(p)) }
	}
}

// accountLock plants the lock that all carrels of a host share. One that comes up meanwhile takes it away.
func accountLock(t *testing.T, h *host, _ check.Instance, _ string) func() {
	const p = "/run/carrel-account.lock"
	must(t, os.WriteFile(p, nil, 0o600))
	return func() {
		f, err := os.Open(p)
		if h.taken = errors.Is(err, os.ErrNotExist); h.taken {
			return
		}
		must(t, err)
		defer f.Close()
		// Another instance that holds it also removes it.
		if h.taken = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; !h.taken {
			must(t, os.Remove(p))
		}
	}
}

// directory plants a directory.
func directory(path func(h *host, name string) string) plant {
	return func(t *testing.T, h *host, _ check.Instance, name string) func() {
		p := path(h, name)
		must(t, os.Mkdir(p, 0o700))
		return func() { must(t, os.Remove(p)) }
	}
}

// tool plants by one of the host's programs and takes away by another.
func tool(there, back func(h *host, in check.Instance) []string) plant {
	return func(t *testing.T, h *host, in check.Instance, _ string) func() {
		do := func(args []string) {
			must(t, userdb.Run(context.WithoutCancel(t.Context()), args[0], args[1:]...))
		}
		do(there(h, in))
		return func() { do(back(h, in)) }
	}
}

// attached plants a loop device on a file of the instance.
func attached(removed bool) plant {
	return func(t *testing.T, h *host, _ check.Instance, _ string) func() {
		p := h.data + "/retained.img"
		must(t, os.WriteFile(p, make([]byte, 1<<20), 0o600))
		out, err := exec.Command("losetup", "--find", "--show", p).Output()
		if err != nil {
			t.Fatalf("losetup: %v", err)
		}
		if removed {
			must(t, os.Remove(p))
		}
		return func() {
			system(t, "losetup", "-d", strings.TrimSpace(string(out)))
			if !removed {
				must(t, os.Remove(p))
			}
		}
	}
}

// sleeper plants a process.
func sleeper(attr func(in check.Instance) *syscall.SysProcAttr) plant {
	return func(t *testing.T, _ *host, in check.Instance, _ string) func() {
		c := exec.Command("/bin/sleep", "1000")
		c.Dir, c.SysProcAttr = "/", attr(in)
		must(t, c.Start())
		return func() { _ = c.Process.Kill(); _ = c.Wait() }
	}
}

// changed plants another text in a file that is there.
func changed(path func(h *host, name string) string, change func([]byte) []byte) plant {
	return func(t *testing.T, h *host, _ check.Instance, name string) func() {
		p := path(h, name)
		b, err := os.ReadFile(p)
		must(t, err)
		write := func(b []byte) {
			f, err := os.OpenFile(p, os.O_WRONLY|os.O_TRUNC, 0)
			must(t, err)
			defer f.Close()
			_, err = f.Write(b)
			must(t, err)
		}
		write(change(slices.Clone(b)))
		return func() { write(b) }
	}
}

// moved plants an absence.
func moved(path func(h *host, name string) string) plant {
	return func(t *testing.T, h *host, _ check.Instance, name string) func() {
		p := path(h, name)
		must(t, os.Rename(p, h.dir+"/aside"))
		return func() { must(t, os.Rename(h.dir+"/aside", p)) }
	}
}

func in(format string) func(h *host, name string) string {
	return func(h *host, name string) string {
		return strings.NewReplacer("DATA", h.data, "RUN", h.run, "NAME", name, "PREFIX", h.prefix).Replace(format)
	}
}

func ledger(state string) plant {
	return changed(in("DATA/broker/ledger.jsonl"), func(b []byte) []byte {
		last := b[bytes.LastIndexByte(b[:len(b)-1], '\n')+1:]
		return append(b, bytes.Replace(last, []byte(`"running"`), []byte(state), 1)...)
	})
}

// A pid above any that the kernel gives.
const noPID = "4194999"

var plants = []struct {
	what  string
	kind  check.Kind
	plant plant
}{
	{"a user", check.User, tool(
		func(h *host, _ check.Instance) []string {
			return []string{"/usr/sbin/useradd", "-M", "-U", "-d", "/nonexistent", h.prefix + "-0badf00d"}
		},
		func(h *host, _ check.Instance) []string { return []string{"/usr/sbin/userdel", h.prefix + "-0badf00d"} })},
	{"a user with an id of the range", check.User, tool(
		func(h *host, in check.Instance) []string {
			return []string{"/usr/sbin/useradd", "-M", "-g", "nogroup", "-u", fmt.Sprint(in.First + 4000), "-d", "/nonexistent", "x" + h.prefix}
		},
		func(h *host, _ check.Instance) []string { return []string{"/usr/sbin/userdel", "x" + h.prefix} })},
	{"a group", check.Group, tool(
		func(h *host, _ check.Instance) []string {
			return []string{"/usr/sbin/groupadd", h.prefix + "-0badf00d"}
		},
		func(h *host, _ check.Instance) []string {
			return []string{"/usr/sbin/groupdel", h.prefix + "-0badf00d"}
		})},
	{"a lock of a process that has ended", check.Lock, file(in("/etc/subgid."+noPID), noPID)},
	{"a lock of the account that nobody holds", check.Account, accountLock},
	{"a home", check.Home, directory(in("DATA/homes/PREFIX-0badf00d"))},
	{"a link in the place of a home", check.Home, func(t *testing.T, h *host, _ check.Instance, _ string) func() {
		p := h.data + "/homes/" + h.prefix + "-0badf00d"
		must(t, os.Symlink("/", p))
		return func() { must(t, os.Remove(p)) }
	}},
	{"a retained home", check.Retained, directory(in("DATA/retained/PREFIX-0badf00d.1879048192"))},
	{"temporary directories", check.Tmp, directory(in("DATA/tmp/PREFIX-0badf00d"))},
	{"an image", check.Image, file(in("DATA/images/PREFIX-0badf00d.img"), "")},
	{"an image of what has no disk limit", check.Image, file(in("DATA/images/NAME.img"), "")},
	{"an image, half-made", check.Temporary, file(in("DATA/images/NAME.new"), "")},
	{"an image that has gone", check.Lost, func(t *testing.T, h *host, _ check.Instance, _ string) func() {
		all, err := filepath.Glob(h.data + "/images/*.img")
		must(t, err)
		if len(all) != 1 {
			t.Skipf("skipped: there are the images %q", all)
		}
		must(t, os.Rename(all[0], h.dir+"/aside"))
		return func() { must(t, os.Rename(h.dir+"/aside", all[0])) }
	}},
	{"a loop device", check.Device, attached(false)},
	{"a loop device on a file that was removed", check.Device, attached(true)},
	{"a control group", check.Cgroup, func(t *testing.T, h *host, in check.Instance, _ string) func() {
		all, err := filepath.Glob("/sys/fs/cgroup/*/" + in.Cgroup)
		must(t, err)
		all = append(all, "/sys/fs/cgroup/"+in.Cgroup)
		for _, dir := range all {
			if _, err := os.Stat(dir); err == nil {
				must(t, os.Mkdir(dir+"/"+h.prefix+"-0badf00d", 0o755))
				return func() { must(t, os.Remove(dir+"/"+h.prefix+"-0badf00d")) }
			}
		}
		t.Fatal("there is no control group of the instance")
		return nil
	}},
	{"a mount", check.Mount, func(t *testing.T, h *host, _ check.Instance, name string) func() {
		p := h.data + "/tmp/" + name
		must(t, unix.Mount("carrel-crash", p, "tmpfs", 0, "size=4k"))
		return func() { must(t, unix.Unmount(p, 0)) }
	}},
	{"a process", check.Process, sleeper(func(in check.Instance) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: in.First + 3001, Gid: 61998}}
	})},
	{"a process with a group of the range", check.Process, sleeper(func(in check.Instance) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61998, Gid: 61998, Groups: []uint32{in.First + 3001}}}
	})},
	{"a user namespace", check.Namespace, sleeper(func(in check.Instance) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: int(in.First) + 3000, Size: 2}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		}
	})},
	{"a socket", check.Socket, func(t *testing.T, h *host, _ check.Instance, _ string) func() {
		p := h.run + "/x/" + h.prefix + "-0badf00d.sock"
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p, Net: "unix"})
		must(t, err)
		l.SetUnlinkOnClose(false)
		return func() { must(t, l.Close()); must(t, os.Remove(p)) }
	}},
	{"a file of up's, half-written", check.Temporary, file(in("DATA/.new-123"), "{")},
	{"a pid file, half-written", check.Temporary, file(in("RUN/.new-123"), "{")},
	{"a ledger, half-written", check.Temporary, file(in("DATA/broker/ledger.new"), "{")},
	{"a report, half-written", check.Temporary, file(in("DATA/broker/reports/NAME.new"), "{")},
	{"a report of what does not run", check.Temporary, file(in("DATA/broker/reports/PREFIX-0badf00d"), "{}")},
	{"a home that has gone", check.Lost, moved(in("DATA/homes/NAME"))},
	{"temporary directories that have gone", check.Lost, moved(in("DATA/tmp/NAME"))},
	{"a socket that has gone", check.Lost, moved(in("RUN/x/NAME.sock"))},
	{"a database that has gone", check.Lost, moved(in("DATA/daemon/carrel.db"))},
	{"a ledger that has gone", check.Lost, moved(in("DATA/broker/ledger.jsonl"))},
	{"a ledger that says it does not run", check.Process, ledger(`"stopped"`)},
	{"a ledger that says it is not there", check.Lost, ledger(`"destroyed"`)},
	{"a home of another", check.Lost, func(t *testing.T, h *host, _ check.Instance, name string) func() {
		p := h.data + "/homes/" + name
		st, err := os.Stat(p)
		must(t, err)
		own := st.Sys().(*syscall.Stat_t)
		must(t, os.Chown(p, 0, 0))
		return func() { must(t, os.Chown(p, int(own.Uid), int(own.Gid))) }
	}},
	{"a changed record", check.Audit, changed(in("DATA/daemon/audit/audit.jsonl"), func(b []byte) []byte {
		return bytes.Replace(b, []byte("daemon.started"), []byte("daemon.starteD"), 1)
	})},
	{"a record without its end", check.Audit, changed(in("DATA/daemon/audit/audit.jsonl"), func(b []byte) []byte {
		return b[:bytes.LastIndexByte(bytes.TrimRight(b, "\n\x00"), '\n')+1]
	})},
	{"a command that ran twice", check.Twice, changed(in("DATA/homes/NAME/tokens"), func(b []byte) []byte { return append(b, b...) })},
}

// Each kind of thing that can be left or lost is planted, and the checker sees it.
func TestCheckerSeesWhatIsPlanted(t *testing.T) {
	h := newHostUp(t)
	h.carrel(t, "create", "--idle-timeout", "never", "crk planted")
	h.carrel(t, "exec", "crk planted", "--", "/bin/sh", "-c", "echo one > tokens")
	needImages(t)
	h.carrel(t, "create", "--idle-timeout", "never", "--disk", "64MiB", "crk with a disk")
	h.carrel(t, "stop", "crk planted")
	h.carrel(t, "start", "crk planted") // the last line of the ledger
	h.settled(t)
	name := h.name(t, "crk planted")
	where, err := check.Read(h.data, h.prefix)
	must(t, err)
	where.Settle = time.Millisecond
	where.Before = before
	want := check.Expect{Live: []string{name, h.name(t, "crk with a disk")}, Tokens: []string{h.data + "/homes/" + name + "/tokens"}}
	look := func(want check.Expect) []check.Left {
		left, err := where.Look(t.Context(), want)
		must(t, err)
		return left
	}
	kinds := map[check.Kind]bool{}
	for _, p := range plants {
		if left := look(want); len(left) > 0 {
			t.Fatalf("before %s: %v", p.what, left)
		}
		for tries := 0; ; tries++ {
			h.taken = false
			undo := p.plant(t, h, where, name)
			left := look(want)
			undo()
			if slices.ContainsFunc(left, func(l check.Left) bool { return l.Kind == p.kind }) {
				break
			}
			if !h.taken || tries == 20 {
				t.Errorf("%s: not seen, but %v", p.what, left)
				break
			}
		}
		kinds[p.kind] = true
	}
	// The whole of an instance where none should be.
	for _, l := range look(check.Expect{Gone: true}) {
		kinds[l.Kind] = true
	}
	for _, k := range check.Kinds {
		if !kinds[k] {
			t.Errorf("nothing of kind %s was planted", k)
		}
	}
	where.Settle = 0
	if left := look(want); len(left) > 0 {
		t.Errorf("after all: %v", left)
	}
	h.gone(t)
}
