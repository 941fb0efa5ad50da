package vitals_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/vitals"
)

// machine is a machine of two processors, with what the files of its /proc say.
func machine(t *testing.T, files map[string]string) vitals.Source {
	t.Helper()
	dir := t.TempDir()
	all := map[string]string{
		"loadavg": "9.00 1.00 0.10 1/100 200\n", "stat": "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 5\n",
		"meminfo":        "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n",
		"self/mountinfo": "1 0 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n",
	}
	maps.Copy(all, files)
	for name, text := range all {
		if text == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return vitals.Source{
		Proc: dir,
		Statfs: func(_ string, fs *unix.Statfs_t) error {
			*fs = unix.Statfs_t{Blocks: 100, Bfree: 60, Bavail: 40, Files: 1000, Ffree: 900}
			return nil
		},
		Failed: func(context.Context) (int, error) { return 0, nil },
	}
}

func measured(t *testing.T, s vitals.Source, limits vitals.Thresholds) (text map[string]string, over []string) {
	t.Helper()
	text = map[string]string{}
	all := vitals.Measure(t.Context(), s, limits)
	for _, r := range all {
		text[r.Name] = r.String()
	}
	return text, vitals.Over(all)
}

// Each figure is held against its own threshold, and what is at the threshold is not over it.
func TestMeasure(t *testing.T) {
	text, over := measured(t, machine(t, nil), vitals.Default())
	for name, want := range map[string]string{
		"load_per_processor": "ok: 0.50, at most 2", "memory_available": "ok: 50.0%, at least 10%", "disk_used": "ok: 50.0% of /, at most 90%",
		"inodes_used": "ok: 10.0% of /, at most 90%", "failed_services": "ok: 0, at most 0",
	} {
		if text[name] != want {
			t.Errorf("%s: %q", name, text[name])
		}
	}
	if len(over) > 0 {
		t.Errorf("%q", over)
	}
	at := vitals.Thresholds{LoadPerProcessor: 0.5, MemoryAvailable: 50, DiskUsed: 50, InodesUsed: 10}
	if _, over = measured(t, machine(t, nil), at); len(over) > 0 {
		t.Errorf("%q", over)
	}
	s := machine(t, nil)
	s.Failed = func(context.Context) (int, error) { return 3, nil }
	_, over = measured(t, s, vitals.Thresholds{LoadPerProcessor: 0.4, MemoryAvailable: 51, DiskUsed: 49, InodesUsed: 9, FailedServices: 2})
	if want := []string{
		"load_per_processor is 0.50, at most 0.4", "memory_available is 50.0%, at least 51%", "disk_used is 50.0% of /, at most 49%",
		"inodes_used is 10.0% of /, at most 9%", "failed_services is 3, at most 2",
	}; !slices.Equal(over, want) {
		t.Errorf("%q", over)
	}
}

// What is not known is said to be missing, and is never over or well.
func TestMissing(t *testing.T) {
	s := machine(t, map[string]string{"loadavg": "x\n", "meminfo": "MemTotal: 5 kB\n", "self/mountinfo": ""})
	s.Failed = func(context.Context) (int, error) { return 9, errors.New("there is no systemd here") }
	text, over := measured(t, s, vitals.Thresholds{})
	for name, got := range text {
		if !strings.HasPrefix(got, "not measured: ") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if len(over) > 0 || len(text) != 5 {
		t.Errorf("%q, %q", over, text)
	}
}

// File systems of this machine that can be written are looked at once each; servers, memory and what is read-only are not.
func TestFileSystems(t *testing.T) {
	s := machine(t, map[string]string{"self/mountinfo": `1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
2 1 8:2 / /var rw - xfs /dev/sda2 rw
3 1 8:2 /log /var/log rw - xfs /dev/sda2 rw
4 1 8:3 / /media/run\040rm\040-rf rw - vfat /dev/sdb rw
5 1 8:4 / /snap ro - squashfs /dev/loop1 ro
6 1 8:5 / /old ro - ext4 /dev/sda5 rw
7 1 0:9 / /net rw - nfs4 server:/x rw
8 1 0:10 / /run rw - tmpfs tmpfs rw
broken
`})
	var asked []string
	s.Statfs = func(path string, fs *unix.Statfs_t) error {
		asked = append(asked, path)
		*fs = unix.Statfs_t{Blocks: 100, Bfree: 5, Bavail: 5}
		if path == "/" {
			fs.Bfree, fs.Bavail = 99, 1 // what root alone may use is not free
		}
		return nil
	}
	text, _ := measured(t, s, vitals.Default())
	if want := []string{"/", "/var", "/media/run rm -rf"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	if got := text["disk_used"]; got != "over: 95.0% of a file system with an unusual name and 95.0% of /var, at most 90%" {
		t.Errorf("%q", got)
	}
}

// A file system that does not answer holds up nobody, and holds no more than a few threads.
func TestDoesNotWait(t *testing.T) {
	s := machine(t, nil)
	release := make(chan struct{})
	defer close(release)
	asked := make(chan struct{}, 100)
	s.Statfs = func(string, *unix.Statfs_t) error {
		asked <- struct{}{}
		<-release
		return nil
	}
	for i := range 6 {
		limit := time.Hour
		if i >= 4 { // nothing is asked, so nothing says that it may end
			limit = 100 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if i < 4 {
			go func() {
				<-asked
				cancel()
			}()
		}
		began := time.Now()
		all := vitals.Measure(ctx, s, vitals.Default())
		if got := all[2].String(); !strings.HasPrefix(got, "not measured: ") || time.Since(began) > 30*time.Second {
			t.Errorf("%q", got)
		}
	}
	if n := len(asked); n > 0 {
		t.Errorf("%d questions more were asked", n)
	}
}
