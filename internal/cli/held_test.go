package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
)

// Who holds the user database is named: by a lock file, as long as that process lives, and nobody if
// there is none.
func TestHeldBy(t *testing.T) {
	etc := t.TempDir()
	if by := cli.HeldBy(etc); by != "" {
		t.Errorf("held by %s", by)
	}
	lock := filepath.Join(etc, "passwd.lock")
	if err := os.WriteFile(lock, fmt.Appendf(nil, "%d\x00", os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if by := cli.HeldBy(etc); !strings.HasPrefix(by, fmt.Sprintf("process %d (", os.Getpid())) {
		t.Errorf("held by %q", by)
	}
	c := exec.Command("/bin/true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, fmt.Append(nil, c.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if by := cli.HeldBy(etc); by != "" {
		t.Errorf("held by %s, which has ended", by)
	}
}
