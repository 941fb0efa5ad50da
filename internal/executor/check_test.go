package executor_test

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox/launch/launchtest"
)

// What a request asks for that cannot be, is refused as a whole: no process, no file.
func TestRefusedRequests(t *testing.T) {
	touch := []string{"/bin/touch", "ran"}
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		for text, p := range map[string]execapi.ExecParams{
			"no program is named":                         {Wait: true},
			"an argument contains a zero byte":            {Argv: append(touch, "\x00"), Wait: true},
			"is not NAME=VALUE":                           {Argv: touch, Env: []string{"=x"}, Wait: true},
			"arguments and variables, at most":            {Argv: make([]string, execapi.MaxArgs+1), Wait: true},
			"bytes long, at most":                         {Argv: append(touch, strings.Repeat("x", execapi.MaxArgBytes)), Wait: true},
			"is not absolute":                             {Argv: touch, Cwd: "sub", Wait: true},
			"is out of range":                             {Argv: touch, TimeoutMS: -1, Wait: true},
			"output limit":                                {Argv: touch, OutputLimit: execapi.MaxCapture + 1, Wait: true},
			"of stdin data cannot be taken":               {Argv: touch, StdinData: []byte("x"), Wait: true},
			"a detached command has no standard input":    {Argv: touch, Detach: true, Stdin: execapi.Capture, StdinData: []byte("x")},
			"it cannot be detached and waited for":        {Argv: touch, Detach: true, Wait: true},
			"is for attached commands":                    {Argv: touch, Stdout: execapi.Pipe, Wait: true},
			"needs wait or detach":                        {Argv: touch, Stdout: execapi.Capture},
			"is unknown":                                  {Argv: touch, Stdout: "tape", Wait: true},
			"0 descriptors came, 1 streams name one":      {Argv: touch, Stdout: execapi.FD, Wait: true},
			"a terminal or detached command takes no des": {Argv: touch, Stdout: execapi.FD, Detach: true},
		} {
			if len(p.Argv) > execapi.MaxArgs {
				p.Argv[0] = touch[0]
			}
			p.ID = id.NewCommand()
			_, err := c.Call(t.Context(), execapi.MethodExec, p, nil)
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", text, err)
			}
		}
		if _, err := os.Lstat(w.Home + "/ran"); err == nil {
			t.Error("something that was refused ran")
		}
	})
}
