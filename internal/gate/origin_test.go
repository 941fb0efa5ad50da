package gate_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/linux/lineage"
)

// What carrel runs for an agent answers nothing, in whatever session and terminal of its own it is, and whatever it calls itself.
func TestStepsAnswerNothing(t *testing.T) {
	for name, refused := range map[string]bool{"carrel-hostrun": true, "carrel-job": true, "bash-or-so": false} {
		sh, err := exec.LookPath("sh")
		if err != nil {
			t.Fatal(err)
		}
		above := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(sh, above); err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), above, "-c", "setsid sh -c 'echo carrel >/proc/$$/comm; echo $$; sleep 60 & wait' & wait")
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		who, err := gate.Answering(lineage.NewContext(t.Context(), lineage.Peer{PID: pid, Since: lineage.Now()}))
		if refused != errdefs.IsPermissionDenied(err) || !refused && !strings.Contains(who, `"bash-or-so"`) {
			t.Errorf("below %s: %q, %v", name, who, err)
		}
		if err := unix.Kill(-pid, unix.SIGKILL); err != nil { // a session of its own
			t.Error(err)
		}
		_ = c.Wait()
		// One that has ended may be any.
		gone := lineage.NewContext(t.Context(), lineage.Peer{PID: pid, Since: lineage.Now()})
		if _, err := gate.Answering(gone); !errdefs.IsPermissionDenied(err) {
			t.Errorf("one that has ended: %v", err)
		}
	}
	if who, err := gate.Answering(t.Context()); who != "" || err != nil {
		t.Error(who, err)
	}
}
