// Package rerun_test plants tests that fail in each way there is, and sees what scripts/test makes of them.
package rerun_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// planted is a module with a package for each way in which tests end. Flaky tests fail where there is no file "tried".
var planted = map[string]string{
	"go.mod":         "module example.com/planted\n\ngo 1.26\n",
	"good/x_test.go": "package x\nfunc TestGood(t *testing.T) {}\nfunc TestSkips(t *testing.T) { t.Skip(\"needs root\") }\n",
	"bad/x_test.go":  "package x\nfunc TestBad(t *testing.T) { t.Fatal(\"always\") }\n",
	"flaky/x_test.go": "package x\nfunc TestFlaky(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { first(t) }) }\n" +
		"func TestGood(t *testing.T) {}\n" + first,
	"leak/x_test.go": "package x\nfunc TestGood(t *testing.T) {}\n" +
		"func TestMain(m *testing.M) { m.Run(); if tried() { os.Exit(0) }; os.Exit(1) }\n" + first,
	"panic/x_test.go": "package x\nfunc TestPanics(t *testing.T) { panic(\"planted\") }\n",
	"build/x_test.go": "package x\nfunc TestGood(t *testing.T) { undefined() }\n",
	"race/x_test.go": "package x\nfunc TestRace(t *testing.T) { n := 0; done := make(chan int)\n" +
		"go func() { n++; close(done) }(); n++; <-done }\n",
}

const first = `
func tried() bool { _, err := os.Stat("tried"); os.WriteFile("tried", nil, 0o600); return err == nil }
func first(t *testing.T) { if !tried() { t.Fatal("the first time") } }
`

func TestVerdicts(t *testing.T) {
	if testing.Short() {
		t.Skip("builds gotestsum and runs it")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	gotestsum := filepath.Join(t.TempDir(), "gotestsum")
	build := exec.CommandContext(t.Context(), "go", "build", "-modfile=tools/go.mod", "-o", gotestsum, "gotest.tools/gotestsum")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build gotestsum: %v\n%s", err, out)
	}
	for name, c := range map[string]struct {
		args  []string
		green bool
		end   []string // the last lines, but for the time
	}{
		"a test that always fails": {
			args: []string{"a", "-count=1", "./good", "./bad"},
			end:  []string{"failed: bad TestBad", "1 passed, 1 failed, 1 skipped"},
		},
		"one that passes alone": {
			args: []string{"a", "-count=1", "./flaky"}, green: true,
			end: []string{"flaky: flaky TestFlaky", "3 passed, 0 failed, 0 skipped"},
		},
		"a package that fails outside of its tests, once": {
			args: []string{"a", "-count=1", "./leak"},
			end:  []string{"failed: leak (outside of its tests)", "1 passed, 1 failed, 0 skipped"},
		},
		"a panic": {
			args: []string{"a", "-count=1", "./panic"},
			end:  []string{"failed: panic TestPanics", "0 passed, 1 failed, 0 skipped"},
		},
		"what does not build": {
			args: []string{"a", "-count=1", "./build"},
			end:  []string{"failed: build (outside of its tests)", "0 passed, 1 failed, 0 skipped"},
		},
		"what is not there": {
			args: []string{"a", "-count=1", "./nowhere"},
			end:  []string{"failed: ./nowhere (outside of its tests)", "0 passed, 1 failed, 0 skipped"},
		},
		"nothing that ran": {
			args: []string{"a", "-count=1", "-run=TestNone", "./good"},
			end:  []string{"0 passed, 0 failed, 0 skipped"},
		},
		"a later group that is well": {
			args:  []string{"a", "PLANTED=1", "-count=1", "./bad", "--", "b", "-count=1", "./good"},
			green: false,
			end:   []string{"failed: bad TestBad", "1 passed, 1 failed, 1 skipped"},
		},
		"a data race": {
			args: []string{"a", "CGO_ENABLED=1", "-race", "-count=1", "./race"},
			end:  []string{"failed: race TestRace", "0 passed, 1 failed, 0 skipped"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if slices.Contains(c.args, "-race") {
				if _, err := exec.LookPath("gcc"); err != nil {
					t.Skip("needs gcc: for the race detector")
				}
			}
			dir := t.TempDir()
			for file, text := range planted {
				if head, body, ok := strings.Cut(text, "package x\n"); ok && head == "" {
					imports := "import \"testing\"\n"
					if strings.Contains(body, "os.") {
						imports = "import (\n\t\"os\"\n\t\"testing\"\n)\n"
					}
					text = "package x\n" + imports + body
				}
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/test"), c.args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOTESTSUM="+gotestsum, "GOFLAGS=")
			out, err := cmd.CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
				t.Fatalf("%v\n%s", err, out)
			}
			if green := err == nil; green != c.green {
				t.Errorf("green: %v, want %v", green, c.green)
			}
			var end []string
			for line := range strings.Lines(string(out)) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, "failed: ") || strings.HasPrefix(line, "flaky: ") || strings.HasSuffix(line, " skipped") {
					end = append(end, line)
				}
			}
			if !slices.Equal(end, c.end) {
				t.Errorf("it ends with %q, want %q\n%s", end, c.end, out)
			}
		})
	}
}
