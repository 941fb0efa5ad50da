package lineage_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/lineage"
)

// A process in a session of its own still comes from its parents, and one that took the number of another is told from it.
func TestOf(t *testing.T) {
	c := exec.CommandContext(t.Context(), "sh", "-c", "setsid sh -c 'echo $$; exec sleep 60' & wait")
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
	l, err := lineage.Of(lineage.Peer{PID: pid, Since: lineage.Now()})
	if err != nil || !slices.ContainsFunc(l.Above, func(p lineage.Process) bool { return p.PID == os.Getpid() }) {
		t.Errorf("%v %v", l, err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL); _ = c.Wait() })
	if _, err := lineage.Of(lineage.Peer{PID: pid, Since: 0}); !errors.Is(err, lineage.ErrGone) {
		t.Error(err)
	}
	if _, err := lineage.Of(lineage.Peer{PID: 1 << 30}); !errors.Is(err, lineage.ErrGone) {
		t.Error(err)
	}
}
