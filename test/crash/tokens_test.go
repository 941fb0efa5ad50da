package crash_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// tokenPoints are those that TestTokenPoints arms.
var tokenPoints = []string{"daemon.token.added", "daemon.token.spent"}

// The daemon is killed after a use of a token was noted and before the request was
// answered, and after a token was made and before anybody has it: a use is never given
// back, none is spent twice, and a token that nobody has can be seen and revoked.
func TestTokenPoints(t *testing.T) {
	h := newHostUp(t)
	secret := strings.TrimSpace(h.carrel(t, "token", "create", "--role", "agent", "--max-uses", "3"))
	ref := strings.Split(secret, "_")[1]
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(secret), 0o600))
	used := func(n int) {
		t.Helper()
		if out := h.carrel(t, "token", "show", ref); !strings.Contains(out, fmt.Sprintf("%d of 3", n)) {
			t.Errorf("not %d uses are noted: %s", n, out)
		}
	}
	crash := func(point string, args ...string) {
		t.Helper()
		mark := h.logEnd()
		h.arm(t, point, 1)
		if r := h.try(args...); r.code == 0 {
			t.Errorf("%q was answered by a daemon that ended at %s", args, point)
		}
		h.up(t)
		if !h.fired(point, mark) {
			t.Fatalf("nothing ended at %s", point)
		}
		h.settled(t)
	}
	crash("daemon.token.spent", "ls", "--token-file", file)
	used(1)
	h.carrel(t, "ls", "--token-file", file)
	crash("daemon.token.spent", "ls", "--token-file", file)
	used(3)
	if r := h.try("ls", "--token-file", file); r.code == 0 {
		t.Error("a fourth use was granted")
	}
	used(3)

	before := h.carrel(t, "token", "ls", "-o", "json")
	crash("daemon.token.added", "token", "create", "--name", "orphan")
	after := h.carrel(t, "token", "ls")
	if strings.Contains(before, "orphan") || strings.Count(after, "orphan") != 1 {
		t.Fatalf("the token that was being made is not there once: %s", after)
	}
	for line := range strings.Lines(after) {
		if strings.Contains(line, "orphan") {
			h.carrel(t, "token", "revoke", strings.Fields(line)[0])
		}
	}
	if out := h.carrel(t, "token", "ls"); strings.Contains(out, "orphan") {
		t.Errorf("it cannot be revoked: %s", out)
	}
	h.look(t, check.Expect{})
	h.gone(t)
}
