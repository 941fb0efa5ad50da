package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// worse are changes after which no line is harmless, whatever it was before; @ is the line.
var worse = []string{
	"{ @; } > /etc/passwd", "@ > /etc/passwd", "@ > /srv/x", "@ 2>> /srv/x", "@ >> ~/.bashrc", "@ < /etc/shadow",
	"@; rm -rf /srv", "rm -rf /srv; @", "@ && rm -rf /srv", "@ | tee /etc/passwd",
	"@ $(rm -rf /srv)", "@ `rm -rf /srv`", "@ <(rm -rf /srv)", "LD_PRELOAD=/tmp/x.so @", "export PATH=/tmp:$PATH; @",
	"@ & rm -rf /srv", "for x in 1; do @; rm -rf /srv; done",
	"if rm -rf /srv; then @; fi", "f() { rm -rf /srv; }; f; @", "sudo true; @; sudo rm -rf /srv", "@ | sh", "@ | xargs rm -rf",
}

// What is added to a line that only looks is seen, whatever the line is.
func TestWorseLines(t *testing.T) {
	t.Parallel()
	e := engine(t)
	ask := func(command string) rules.Level {
		return e.Decide(rules.Question{Command: command, Profile: rules.Host, Source: rules.User}).Level
	}
	changed := 0
	for i, l := range loadCorpus(t, "readonly", false) {
		if strings.ContainsAny(l.Command, "\n#") || ask(l.Command) != rules.Safe {
			continue
		}
		for k, w := range worse {
			if (i+k)%3 != 0 { // each line in a third of the ways, each way with a third of the lines
				continue
			}
			line := strings.ReplaceAll(w, "@", l.Command)
			if changed++; ask(line) == rules.Safe {
				t.Errorf("SAFE: %s", line)
			}
		}
	}
	if changed < 30_000 {
		t.Errorf("only %d lines were made worse", changed)
	}
}

// wrapped are places that a line may stand in without doing less; @ is the line.
var wrapped = []string{
	"( @ )", "{ @; }", "if true; then @; fi", "true && @", "for q in 1; do @; done", "case a in a) @;; esac", "time @",
	"true\n@", "zz() { @; }; zz",
	"ssh h '@'", "sudo bash -c '@'", "xargs -I% sh -c '@'", "kubectl exec p -- sh -c '@'",
}

// A line has its effects wherever it is.
func TestWrappedLines(t *testing.T) {
	t.Parallel()
	e := engine(t)
	tried := 0
	for i, l := range loadCorpus(t, "dangerous", false) {
		if strings.ContainsAny(l.Command, "\n'#") || strings.TrimSpace(l.Command) == "" ||
			strings.ContainsAny(l.Command[len(l.Command)-1:], `&;\)`) || strings.HasPrefix(l.Command, "{") {
			continue
		}
		alone := e.Decide(host(l.Command))
		for k, w := range wrapped {
			if (i+k)%3 != 0 {
				continue
			}
			line := strings.ReplaceAll(w, "@", l.Command)
			d := e.Decide(host(line))
			tried++
			if d.Level < alone.Level && alone.Level == rules.Confirm {
				t.Errorf("%s: %s, and alone %s", line, d.Level, alone.Level)
			}
			for _, c := range alone.Capabilities {
				if !slices.Contains(d.Capabilities, c) && c != "shell.dynamic" {
					t.Errorf("%s is not %s, which it is alone", line, c)
				}
			}
		}
	}
	if tried < 15_000 {
		t.Errorf("only %d lines were tried", tried)
	}
}
