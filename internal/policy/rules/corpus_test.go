package rules_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// corpusLine is a line of a corpus; testdata/corpora/README.md says what the fields mean.
type corpusLine struct {
	ID          string   `json:"id"`
	Command     string   `json:"command"`
	Expect      string   `json:"expect"`
	Host        string   `json:"host"`
	Workspace   string   `json:"workspace"`
	Capability  string   `json:"capability"`
	Also        []string `json:"also"`
	Technique   string   `json:"technique"`
	Kind        string   `json:"kind"`
	Why         string   `json:"why"`
	Unparseable bool     `json:"unparseable"`
}

// corpora are the labelled corpora, the fewest lines that each must have, held-out ones
// included, and what begins its ids.
var corpora = []struct {
	name   string
	prefix string
	atMost string // the levels that expect may say, "" for none
	least  int
	labels bool // every line names a capability
}{
	{name: "dangerous", prefix: "d-", least: 1500, labels: true},
	{name: "readonly", prefix: "r-", least: 1500, atMost: "SAFE"},
	{name: "obfuscated", prefix: "o-", least: 300, atMost: "CONFIRM"},
	{name: "development", prefix: "w-", least: 600, atMost: "SAFE"},
	{name: "workspace-reach", prefix: "x-", least: 150, atMost: "CONFIRM SAFE", labels: true},
	{name: "scripts", prefix: "s-", least: 200},
}

const corporaDir = "testdata/corpora"

// heldOut says to which half of its corpus a command belongs, so that nobody chooses.
func heldOut(command string) bool { return sha256.Sum256([]byte(command))[0]%3 == 0 }

// checkCorpusLine returns what is wrong with a line of the corpus c in the held-out file
// or the other one.
func checkCorpusLine(l corpusLine, prefix, atMost string, labels, held bool) error {
	sum := sha256.Sum256([]byte(l.Command))
	if want := prefix + hex.EncodeToString(sum[:])[:10]; l.ID != want {
		return fmt.Errorf("id %q is not %q, which is made from the command", l.ID, want)
	}
	if heldOut(l.Command) != held {
		return fmt.Errorf("%s stands in the wrong half", l.ID)
	}
	if strings.TrimSpace(l.Command) == "" && l.Capability != "shell.empty" {
		return fmt.Errorf("%s has no command", l.ID)
	}
	if !slices.Contains(strings.Fields(atMost), l.Expect) && (l.Expect != "" || atMost != "") {
		return fmt.Errorf("%s expects %q, not %q", l.ID, l.Expect, atMost)
	}
	if labels && l.Capability == "" {
		return fmt.Errorf("%s names no capability", l.ID)
	}
	names := l.Also
	if l.Capability != "" {
		names = append([]string{l.Capability}, l.Also...)
	}
	for i, n := range names {
		c, ok := rules.CapabilityByName(n)
		if !ok {
			return fmt.Errorf("%s names the capability %q, which there is not", l.ID, n)
		}
		if i == 0 && l.Capability == n && rules.Capabilities[c].Harmless {
			return fmt.Errorf("%s expects %s, which asks for nothing", l.ID, n)
		}
		if slices.Contains(names[:i], n) {
			return fmt.Errorf("%s names %s twice", l.ID, n)
		}
	}
	if prefix != "s-" {
		return nil
	}
	if l.Host != "SAFE" && l.Host != "CONFIRM" {
		return fmt.Errorf("%s expects %q on a host", l.ID, l.Host)
	}
	if l.Workspace != "" && l.Workspace != "SAFE" && l.Workspace != "CONFIRM" {
		return fmt.Errorf("%s expects %q in a workspace", l.ID, l.Workspace)
	}
	if l.Workspace == "CONFIRM" && (l.Host == "SAFE" || l.Capability == "") {
		return fmt.Errorf("%s is dangerous in a workspace, but SAFE on a host or without a capability", l.ID)
	}
	if strings.Count(strings.TrimSpace(l.Command), "\n") == 0 {
		return fmt.Errorf("%s has one line only", l.ID)
	}
	return nil
}

// readCorpus reads JSON lines and refuses fields that are not known.
func readCorpus(r io.Reader) ([]corpusLine, error) {
	var lines []corpusLine
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		d := json.NewDecoder(bytes.NewReader(s.Bytes()))
		d.DisallowUnknownFields()
		var l corpusLine
		if err := d.Decode(&l); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(lines)+1, err)
		}
		if d.More() {
			return nil, fmt.Errorf("line %d: more than one value", len(lines)+1)
		}
		lines = append(lines, l)
	}
	return lines, s.Err()
}

func loadCorpus(t *testing.T, name string, held bool) []corpusLine {
	t.Helper()
	if held {
		name += ".heldout"
	}
	f, err := os.Open(filepath.Join(corporaDir, name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := readCorpus(f)
	if err != nil {
		t.Fatalf("%s: %v", f.Name(), err)
	}
	return lines
}

func TestCorpora(t *testing.T) {
	where := map[string]string{} // commands without regard to blanks, and who has them
	covered := map[string]int{}
	safe, danger := 0, 0
	for _, c := range corpora {
		n, out := 0, 0
		for _, held := range []bool{false, true} {
			for _, l := range loadCorpus(t, c.name, held) {
				if err := checkCorpusLine(l, c.prefix, c.atMost, c.labels, held); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				key := strings.Join(strings.Fields(l.Command), " ")
				if other, ok := where[key]; ok {
					t.Errorf("%s: %s is also %s: %q", c.name, l.ID, other, l.Command)
				}
				where[key] = l.ID
				n++
				if held {
					out++
				}
				switch {
				case c.name == "dangerous":
					covered[l.Capability]++
				case l.Workspace == "SAFE":
					safe++
				case c.name == "scripts" && l.Capability != "":
					danger++
				}
			}
		}
		if n < c.least {
			t.Errorf("%s has %d lines, fewer than %d", c.name, n, c.least)
		}
		if out < n/4 || out > n*5/12 {
			t.Errorf("%s: %d of %d lines are held out, which is not about a third", c.name, out, n)
		}
		t.Logf("%s: %d lines, %d of them held out", c.name, n, out)
	}
	if safe < 100 || danger < 80 {
		t.Errorf("scripts: %d harmless and %d dangerous ones, fewer than 100 and 80", safe, danger)
	}
	for c, info := range rules.Capabilities {
		// Who wrote a command is not to be seen in it.
		if info.Harmless || rules.Capability(c) == rules.LLMGenerated {
			continue
		}
		if covered[info.Name] < 3 {
			t.Errorf("dangerous: %d lines for %s, fewer than 3", covered[info.Name], info.Name)
		}
	}
}

// TestCorporaAreShell holds that bash parses the texts, except those marked unparseable. Starting
// one bash a line would take longer than all other tests here, so many are parsed at once, each
// in a subshell of its own, and one by one only to name a wrong one.
func TestCorporaAreShell(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here to read the corpora")
	}
	var shell []corpusLine
	for _, c := range corpora {
		for _, held := range []bool{false, true} {
			for _, l := range loadCorpus(t, c.name, held) {
				if !l.Unparseable {
					shell = append(shell, l)
				} else if parsesAsShell(t.Context(), bash, l.Command) == nil {
					t.Errorf("%s: %s says that it is unparseable, but bash can read it", c.name, l.ID)
				}
			}
		}
	}
	for batch := range slices.Chunk(shell, 50) {
		if parsesAsShell(t.Context(), bash, together(batch)) == nil {
			continue
		}
		named := false
		for _, l := range batch {
			if err := parsesAsShell(t.Context(), bash, l.Command); err != nil {
				t.Errorf("%s is not shell: %v", l.ID, err)
				named = true
			}
		}
		if !named {
			t.Errorf("%s to %s are not shell together", batch[0].ID, batch[len(batch)-1].ID)
		}
	}
	spoilt := append([]corpusLine{{Command: "echo 'a"}}, shell[:49]...)
	if parsesAsShell(t.Context(), bash, together(spoilt)) == nil {
		t.Error("a quote without end is not found")
	}
}

func together(lines []corpusLine) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "(\n:\n%s\n)\n", l.Command)
	}
	return b.String()
}

func parsesAsShell(ctx context.Context, bash, command string) error {
	cmd := exec.CommandContext(ctx, bash, "--norc", "-O", "extglob", "-n")
	cmd.Stdin = strings.NewReader(command)
	out, err := cmd.CombinedOutput()
	if err == nil && len(out) > 0 { // a here-document without end is but a warning
		return fmt.Errorf("%s", out)
	}
	return err
}

// What the check of a line is for is found by it.
func TestCorpusCheckCanFail(t *testing.T) {
	id := func(prefix, command string) string {
		sum := sha256.Sum256([]byte(command))
		return prefix + hex.EncodeToString(sum[:])[:10]
	}
	good := corpusLine{ID: id("x-", "rm -rf ~"), Command: "rm -rf ~", Expect: "CONFIRM", Capability: "filesystem.destroy"}
	script := corpusLine{
		ID: id("s-", "make\nsudo make install\n"), Command: "make\nsudo make install\n", Host: "CONFIRM",
		Workspace: "CONFIRM", Capability: "privilege.escalate",
	}
	check := func(l corpusLine, held bool) error {
		if strings.HasPrefix(script.ID, l.ID[:2]) {
			return checkCorpusLine(l, "s-", "", false, held)
		}
		return checkCorpusLine(l, "x-", "CONFIRM", true, held)
	}
	for _, l := range []corpusLine{good, script} {
		if err := check(l, heldOut(l.Command)); err != nil {
			t.Fatalf("a right line: %v", err)
		}
		if check(l, !heldOut(l.Command)) == nil {
			t.Errorf("%s in the wrong half is not found", l.ID)
		}
	}
	for name, spoil := range map[string]func(*corpusLine){
		"id":                 func(l *corpusLine) { l.ID = "x-0000000000" },
		"level":              func(l *corpusLine) { l.Expect = "SAFE" },
		"no capability":      func(l *corpusLine) { l.Capability = "" },
		"unknown capability": func(l *corpusLine) { l.Capability = "filesystem.delte" },
		"unknown other":      func(l *corpusLine) { l.Also = []string{"network.inn"} },
		"harmless":           func(l *corpusLine) { l.Capability = "filesystem.read" },
		"twice":              func(l *corpusLine) { l.Also = []string{l.Capability} },
		"empty":              func(l *corpusLine) { l.Command = " "; l.ID = id("x-", " ") },
	} {
		l := good
		spoil(&l)
		if check(l, heldOut(l.Command)) == nil {
			t.Errorf("%s: not found", name)
		}
	}
	for name, spoil := range map[string]func(*corpusLine){
		"host":       func(l *corpusLine) { l.Host = "" },
		"workspace":  func(l *corpusLine) { l.Workspace = "MAYBE" },
		"milder":     func(l *corpusLine) { l.Host = "SAFE" },
		"capability": func(l *corpusLine) { l.Capability = "" },
		"one line":   func(l *corpusLine) { l.Command = "make"; l.ID = id("s-", "make") },
	} {
		l := script
		spoil(&l)
		if check(l, heldOut(l.Command)) == nil {
			t.Errorf("script %s: not found", name)
		}
	}
	for _, text := range []string{"{", `{"id":"x","unknown":1}`, `{"id":"x"} {}`} {
		if _, err := readCorpus(strings.NewReader(text)); err == nil {
			t.Errorf("read as a corpus: %s", text)
		}
	}
}
