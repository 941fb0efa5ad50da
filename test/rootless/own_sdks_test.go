package rootless_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/test/sdktest"
)

// asks is a rule for a command about which a person is asked.
const asks = `
  - id: tests.ask
    level: CONFIRM
    risk_score: 50
    reason: a test has a person asked
    match: {command: [ask-me], profile: [workspace, host]}
`

// The clients in Python and TypeScript do what they say with a carrel of one's own, by its Unix socket.
func TestOwnSDKs(t *testing.T) {
	for _, l := range sdktest.Languages {
		t.Run(l.Name, func(t *testing.T) {
			u := newOwner(t)
			if r := finish(u.command("", "/bin/sh", "-c", "cat >> .config/carrel/policy.yaml"), asks); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			var as *syscall.Credential
			if os.Geteuid() == 0 {
				as = u.credential()
			}
			socket := filepath.Join(u.home, ".local/state/carrel/run/api.sock")
			p := l.Copy(t, u.home, as, "CARREL_HOST=unix://"+socket)
			u.must("create", "demo") // which starts the daemon
			p.Tests(t, "CARREL_TEST_SOCKET="+socket, "CARREL_TEST_DIR="+u.home, "CARREL_TEST_ASKS=1")
			p.Examples(t)
		})
	}
}
