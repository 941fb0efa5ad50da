package root_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The log of a sandbox has what was done in it, from the record, over a restart of the daemon too; and what detached commands wrote.
func TestE2BLogs(t *testing.T) {
	h := e2bHost(t)
	c := h.e2b(t)
	s, other := c.create(), c.create()
	if _, _, err := c.run(s, "sh", "-c", "exit 3"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.run(other, "echo", "of-the-other"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.run(s, "env", "API_TOKEN=planted-5up3r", "true"); err != nil {
		t.Fatal(err)
	}
	detached := strings.TrimSpace(h.carrel(t, "exec", "-d", s.ID, "--", "echo", "written-inside"))
	h.carrel(t, "wait", s.ID, detached)
	logs := func() string {
		status, b := c.send("GET", "/v2/sandboxes/"+s.ID+"/logs", nil, "X-Api-Key", c.key)
		if status != 200 {
			t.Fatalf("%d %s", status, b)
		}
		return string(b)
	}
	wants := []string{
		`"warn","message":"ended, exit code 3: command.exec: sh -c \"exit 3\""`, `"message":"begins: command.exec: env API_TOKEN=[redacted`,
		`"info","message":"written-inside"`,
	}
	holds := func() (text string, missing string) {
		text = logs()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				missing += want + "\n"
			}
		}
		return text, missing
	}
	until(t, "the log", func() bool { _, missing := holds(); return missing == "" }) // outcomes are on disk a moment later
	kill(t, h.part(t, "daemon"))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	c.url = h.e2b(t).url
	text, missing := holds()
	if missing != "" || strings.Contains(text, "planted-5up3r") || strings.Contains(text, "of-the-other") {
		t.Errorf("after a restart:\n%s\nwithout\n%s", text, missing)
	}
}

// The real SDKs, unmodified, in the directory that CARREL_TEST_E2B names: bin/python of a virtual environment with e2b, and
// node_modules with e2b.
func TestE2BSDKs(t *testing.T) {
	dir := os.Getenv("CARREL_TEST_E2B")
	if dir == "" {
		t.Skip("CARREL_TEST_E2B names no directory with the SDKs (python3 -m venv DIR && DIR/bin/pip install e2b; npm --prefix DIR install e2b)")
	}
	c := e2bHost(t).e2b(t)
	t.Run("cli", func(t *testing.T) {
		program := dir + "/node_modules/.bin/e2b"
		if _, err := os.Stat(program); err != nil {
			t.Skip("there is no command line of E2B in DIR (npm --prefix DIR install @e2b/cli)")
		}
		s := c.create()
		if _, _, err := c.run(s, "echo", "for-the-log"); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program, "sandbox", "logs", "--format", "json", s.ID)
		cmd.Env = append(os.Environ(), c.env...)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"message":"begins: command.exec: echo for-the-log"`) {
			t.Errorf("%v\n%s", err, out)
		}
	})
	for _, x := range [][]string{{dir + "/bin/python", "testdata/e2b_sdk.py"}, {"node", "testdata/e2b_sdk.mjs"}} {
		t.Run(filepath.Base(x[1]), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), x[0], x[1:]...)
			cmd.Env = append(append(os.Environ(), c.env...), "NODE_PATH="+dir+"/node_modules", "E2B_MODULES="+dir+"/node_modules")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if !strings.HasSuffix(string(out), "all rows hold\n") {
				t.Errorf("it does not come to its end:\n%s", out)
			}
		})
	}
}
