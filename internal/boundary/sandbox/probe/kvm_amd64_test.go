package probe_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// A guest that does not come to its HLT is no yes, and is not waited for.
func TestKVM(t *testing.T) {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("skipped: /dev/kvm cannot be opened: %v", err)
	}
	defer unix.Close(fd)
	if err := probe.RunCode(fd, []byte{0xf4}); err != nil {
		t.Skipf("skipped: no guest runs here: %v", err)
	}
	for name, c := range map[string]struct {
		code []byte
		want string
	}{
		"endless": {[]byte{0xeb, 0xfe}, "no answer within"},
		"output":  {[]byte{0xe6, 0x10}, "reason 2"}, // KVM_EXIT_IO
	} {
		began := time.Now()
		if err := probe.RunCode(fd, c.code); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

// Who may not open the device is told how to get the right, and not to load a module.
func TestMayOpen(t *testing.T) {
	file := t.TempDir() + "/device"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := probe.MayOpen(file); strings.Contains(got, "modprobe") || !strings.Contains(got, "as root") {
		t.Errorf("a device of root's alone: %s", got)
	}
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to give a file to another group")
	}
	if err := os.Chown(file, 0, 20); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o660); err != nil {
		t.Fatal(err)
	}
	if got := probe.MayOpen(file); !strings.Contains(got, "usermod -aG dialout") {
		t.Errorf("a device of a group: %s", got)
	}
}
