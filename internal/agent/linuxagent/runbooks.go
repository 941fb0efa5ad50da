package linuxagent

import (
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
)

// runbook is the form of LinuxAgent's runbooks.
type runbook struct {
	ID    string `yaml:"id"`
	Title string `yaml:"title"`
	Steps []struct {
		Command  string `yaml:"command"`
		Purpose  string `yaml:"purpose"`
		ReadOnly *bool  `yaml:"read_only"`
	} `yaml:"steps"`
	Preflight    []string `yaml:"preflight_checks"`
	Verification []string `yaml:"verification_commands"`
	Rollback     []string `yaml:"rollback_commands"`
}

// step is the form of carrel's.
type step struct {
	Command  string `yaml:"command"`
	Purpose  string `yaml:"purpose"`
	ReadOnly bool   `yaml:"read_only"`
}

var notName = regexp.MustCompile(`[^a-z0-9_-]+`)

// runbooks makes runbooks/NAME.yaml of each.
func (r *Result) runbooks(all []File) error {
	seen := map[string]bool{}
	for _, f := range all {
		setting := "runbook " + f.Name
		var in runbook
		if err := read(f, &in); err != nil {
			r.left(setting, "%v", err)
			continue
		}
		name := strings.Trim(notName.ReplaceAllString(strings.ToLower(in.ID), "-"), "-_")
		out := struct {
			Name         string   `yaml:"name"`
			Title        string   `yaml:"title"`
			Match        []string `yaml:"match"`
			Preflight    []step   `yaml:"preflight,omitempty"`
			Steps        []step   `yaml:"steps"`
			Verification []step   `yaml:"verification,omitempty"`
			Rollback     []step   `yaml:"rollback,omitempty"`
		}{Name: name, Title: in.Title, Match: words(in.ID + " " + in.Title)}
		for _, s := range in.Steps {
			out.Steps = append(out.Steps, step{s.Command, s.Purpose, s.ReadOnly == nil || *s.ReadOnly})
		}
		for _, c := range in.Preflight {
			out.Preflight = append(out.Preflight, step{c, "see first", true})
		}
		for _, c := range in.Verification {
			out.Verification = append(out.Verification, step{c, "see that it worked", true})
		}
		for _, c := range in.Rollback {
			out.Rollback = append(out.Rollback, step{c, "undo it", false})
		}
		b, err := yaml.Marshal(out)
		if err != nil {
			return err
		}
		file := "runbooks/" + name + ".yaml"
		if _, err := runbooks.Parse(file, b); err != nil {
			r.left(setting, "%v", err)
			continue
		}
		if seen[name] {
			r.left(setting, "another one is called %s, too", name)
			continue
		}
		seen[name] = true
		r.Files = append(r.Files, File{file, b})
		r.taken(setting, "%s; \"carrel runbook check\" says how its commands are judged", file)
	}
	return nil
}

// few are words that say nothing of what a runbook is for.
var few = map[string]bool{
	"and": true, "for": true, "the": true, "investigate": true, "inspect": true, "check": true, "find": true, "list": true,
}

// words are the words by which a runbook is found.
func words(text string) (out []string) {
	seen := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		if len(w) > 2 && !few[w] && !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}
