package root_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// A step on this machine that takes more memory than the daemon's file allows is ended with all that it started, the agent is
// told which bound it was, and the person is told what holds such a step.
func TestAskBoundsAStep(t *testing.T) {
	m, alice, _ := newAsked(t)
	f, err := os.OpenFile(m.config, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("steps:\n  memory: 256MiB\n  processes: 100\n")
		_ = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	kill(t, m.part(t, "daemon"))
	if err := m.up(); err != nil {
		t.Fatal(err)
	}
	const bomb = "for i in 1 2 3 4; do (head -c 100M /dev/zero; sleep 30) | tail -c 100M > /dev/null & done; wait"
	m.script(t, always(planOf("host", bomb, true)), func(asked string) string {
		if !strings.Contains(asked, "MiB of memory together, and may take 256") || !strings.Contains(asked, "controls verified") {
			return directly("it was told something else")
		}
		return directly("it took too much")
	})
	c := m.command(context.Background(), alice, "ask", "--llm", "m1", "--model", "house", "--on", "host", "--yes-safe", "fill it")
	x := ptytest.Start(t, c, 50, 120, false)
	x.Expect("it took too much")
	if code := x.Wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, x.Screen())
	}
	m.script(t, always(planOf("host", "ulimit -p || ulimit -u; cat /proc/net/route | head -n 1; curl -sS -m 5 http://127.0.0.1:"+m.port, true)),
		func(asked string) string {
			if !strings.Contains(asked, `132\\nIface`) || strings.Contains(asked, "HTTP request") {
				return directly("it was told something else")
			}
			return directly("it is bounded")
		})
	x = ptytest.Start(t, m.command(context.Background(), alice, "ask", "--llm", "m1", "--on", "host", "--yes-safe", "look"), 50, 120, false)
	x.Expect("it is bounded")
	x.Wait()
}
