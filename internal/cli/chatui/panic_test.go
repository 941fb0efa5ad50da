package chatui_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/cli/chatui"
	"github.com/carrel-dev/carrel/test/ptytest"
)

// failing is a session that panics.
type failing struct{ session }

func (f *failing) Command(context.Context, string) (chatui.Result, error) { panic("planted") }

const panicsEnv = "CARREL_TEST_CHAT_PANICS"

// A panic leaves the terminal as it was, and says what it was.
func TestPanic(t *testing.T) {
	if os.Getenv(panicsEnv) != "" {
		_, err := chatui.Run(t.Context(), &failing{}, messages.English, os.Stdin, os.Stdout)
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanic$")
	c.Env = append(os.Environ(), panicsEnv+"=1", "TERM=xterm-256color")
	x := ptytest.Start(t, c, 24, 80, false)
	x.Expect("ready")
	x.Type("/plan\r")
	code := x.Wait()
	all := x.Screen()
	if code == 0 || !strings.Contains(all, "planted") || !strings.Contains(all, "carrel chat --plain") {
		t.Errorf("exit code %d: %q", code, all)
	}
	for on, off := range map[string]string{"\x1b[?1049h": "\x1b[?1049l", "\x1b[?2004h": "\x1b[?2004l"} {
		if strings.LastIndex(all, off) < strings.LastIndex(all, on) {
			t.Errorf("%q was not undone: %q", on, all)
		}
	}
}
