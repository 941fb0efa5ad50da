package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

func TestSharedNumbers(t *testing.T) {
	for _, c := range []struct {
		pids, terminals, files string
		state                  probe.State
		remedy                 string
	}{
		{"4194304", "16384", "9223372036854775807", probe.Yes, ""},
		{"32768", "4096", "9223372036854775807", probe.Yes, ""},
		{"8192", "4096", "9223372036854775807", probe.Partly, "sysctl -w kernel.pid_max="},
		{"32768", "3000", "9223372036854775807", probe.Partly, "sysctl -w kernel.pty.max="},
		{"32768", "100", "9223372036854775807", probe.Partly, "sysctl -w kernel.pty.max="},
		{"32768", "4096", "2466186", probe.Partly, "sysctl -w fs.file-max="},
		{"32768", "4096", "", probe.Partly, "sysctl fs.file-max"},
	} {
		dir := t.TempDir()
		for name, value := range map[string]string{
			"kernel/pid_max": c.pids, "kernel/pty/max": c.terminals, "kernel/pty/reserve": "1024", "fs/file-max": c.files,
		} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if value == "" {
				continue
			}
			if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		state, found, remedy := probe.SharedNumbers(dir)
		if state != c.state || !strings.Contains(remedy, c.remedy) || (remedy == "") != (state == probe.Yes) || found == "" {
			t.Errorf("%+v: %s, %s, %s", c, state, found, remedy)
		}
	}
}
