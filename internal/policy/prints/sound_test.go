package prints //nolint:testpackage // the proof is asked alone, without what surrounds it

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// given are arguments by which what is called would do harm if it could.
var given = []string{
	``, `"x"`, `"x", "w"`, `["id"]`, `"a", "b"`, `"1+1"`, `print, ["x"]`, `"x", 0o777`, `*["x", "w"]`,
}

// Each function of Python's own that a proven program may name, with each of these arguments,
// is run if the whole is proven to print only. Python says what it does.
func TestPrintingSound(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not there")
	}
	ask := newProbe(t, python)
	var libraries, names []string
	pythonLibraries.kind("")
	for n := range pythonLibraries.kinds {
		if pythonForeign.kind(n) == 0 { // what those do when they are loaded is their own affair
			libraries = append(libraries, n)
		}
	}
	pythonNames.kind("")
	for n := range pythonNames.kinds {
		names = append(names, n)
	}
	slices.Sort(libraries)
	slices.Sort(names)
	var members [][2]string
	ask(map[string][]string{"libraries": libraries, "names": names}, &members)
	byLibrary := map[string][]string{"": names}
	for _, m := range members {
		byLibrary[m[0]] = append(byLibrary[m[0]], m[1])
	}
	proven := 0
	for library, functions := range byLibrary {
		var programs []string
		for _, f := range functions {
			for _, g := range given {
				code := "import sys; print(" + f + "(" + g + "), 1+1)"
				if library != "" {
					code = "import " + library + ", sys; print(" + library + "." + f + "(" + g + "))"
				}
				if pythonLanguage.Only(code) {
					programs = append(programs, code)
				}
			}
		}
		if proven += len(programs); len(programs) == 0 {
			continue
		}
		var did [][2]string
		ask(programs, &did)
		for _, d := range did {
			t.Errorf("it was proven to print only and %s: %s", d[1], d[0])
		}
	}
	if len(members) < 200 || proven < 2000 {
		t.Errorf("only %d functions and %d programs were tried", len(members), proven)
	}
	t.Logf("%d functions, %d programs", len(members), proven)
}

// newProbe starts testdata/probe.py and gives what asks it.
func newProbe(t *testing.T, python string) func(question, answer any) {
	t.Helper()
	path, err := filepath.Abs("testdata/probe.py")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), python, "-B", path)
	c.Dir, c.Stderr = t.TempDir(), t.Output()
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = c.Wait()
	})
	encoder, decoder := json.NewEncoder(in), json.NewDecoder(out)
	return func(question, answer any) {
		t.Helper()
		if err := encoder.Encode(question); err != nil {
			t.Fatal(err)
		}
		if err := decoder.Decode(answer); err != nil {
			t.Fatalf("the probe: %v", err)
		}
	}
}

// Every expression that is compiled late compiles.
func TestExpressions(t *testing.T) {
	for _, f := range expressions {
		f()
	}
	if len(expressions) < 10 {
		t.Errorf("only %d expressions were found", len(expressions))
	}
}
