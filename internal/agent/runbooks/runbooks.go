// Package runbooks holds what is written down about finding a fault: commands that look, and advice. A runbook is text for
// a model and for people. It unlocks nothing: a command that a model takes out of one is judged as every other.
//
// The package must not run anything, and it does not choose a runbook.
package runbooks

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// Bounds of a runbook. MaxFile and MaxText are in bytes.
const (
	MaxFile     = 64 << 10
	MaxText     = 16 << 10
	MaxSteps    = 32
	MaxRunbooks = 128
	// MaxTitles bounds the names and titles that every request to a model has, in bytes.
	MaxTitles = 2 << 10
)

// Runbook is one runbook, as its file has it.
type Runbook struct {
	Name  string `yaml:"name" json:"name"`
	Title string `yaml:"title" json:"title"`
	// Match are words of questions that it is for.
	Match        []string    `yaml:"match" json:"match"`
	Parameters   []Parameter `yaml:"parameters" json:"parameters,omitempty"`
	Preflight    []Step      `yaml:"preflight" json:"preflight,omitempty"`
	Steps        []Step      `yaml:"steps" json:"steps"`
	Verification []Step      `yaml:"verification" json:"verification,omitempty"`
	Rollback     []Step      `yaml:"rollback" json:"rollback,omitempty"`
	Advice       string      `yaml:"advice" json:"advice"`

	// File is where it was read from.
	File string `yaml:"-" json:"file,omitempty"`
	// ours: carrel brings it, and its name says what it is for.
	ours bool
}

// Parameter stands in a command as {name}, a word by itself.
type Parameter struct {
	Name string `yaml:"name" json:"name"`
	// Pattern is a regular expression that the whole value matches, and Default is a value.
	Pattern string `yaml:"pattern" json:"pattern"`
	Default string `yaml:"default" json:"default"`
}

// Step is one command for a shell.
type Step struct {
	Command  string `yaml:"command" json:"command"`
	Purpose  string `yaml:"purpose" json:"purpose"`
	ReadOnly bool   `yaml:"read_only" json:"read_only"`
}

var names = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// Parse reads a runbook. Errors are of kind invalid argument and name the file, with the line where it is of another form.
func Parse(file string, b []byte) (*Runbook, error) {
	fail := func(format string, args ...any) (*Runbook, error) {
		return nil, fmt.Errorf("cannot use the runbook %s: %w: %w", file, fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
	}
	if len(b) > MaxFile {
		return fail("it has more than %d bytes", MaxFile)
	}
	r := &Runbook{File: file}
	d := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	if err := d.Decode(r); err != nil {
		return fail("%s", strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fail("it has more than one document")
	}
	if err := r.valid(); err != nil {
		return fail("%w", err)
	}
	return r, nil
}

// part is one of a runbook's lists of steps.
type part struct {
	name  string
	steps []Step
}

func (r *Runbook) parts() []part {
	return []part{{"preflight", r.Preflight}, {"steps", r.Steps}, {"verification", r.Verification}, {"rollback", r.Rollback}}
}

func (r *Runbook) valid() error {
	switch {
	case !names.MatchString(r.Name):
		return fmt.Errorf("its name is %.40q; give lower-case letters, digits, - and _, at most 32", r.Name)
	case !plain(r.Title, 80):
		return fmt.Errorf("its title is %.40q; give one line of at most 80 bytes", r.Title)
	case len(r.Steps) == 0:
		return errors.New("it has no steps")
	case len(r.Match) == 0:
		return errors.New("it matches no words")
	}
	values := map[string]string{}
	for _, p := range r.Parameters {
		if _, twice := values[p.Name]; twice || !names.MatchString(p.Name) {
			return fmt.Errorf("parameter %.40q: it is there twice, or is no name", p.Name)
		}
		if _, err := regexp.Compile(p.Pattern); err != nil || p.Pattern == "" {
			return fmt.Errorf("parameter %s: its pattern %.80q is no regular expression", p.Name, p.Pattern)
		}
		if err := p.takes(p.Default); err != nil {
			return fmt.Errorf("its default: %w", err)
		}
		values[p.Name] = p.Default
	}
	for _, part := range r.parts() {
		if len(part.steps) > MaxSteps {
			return fmt.Errorf("%s: there are %d, and at most %d are taken", part.name, len(part.steps), MaxSteps)
		}
		for i, s := range part.steps {
			if !plain(s.Command, 4<<10) || !plain(s.Purpose, 1<<10) {
				return fmt.Errorf("%s, step %d: its command or its purpose is empty, long or has more than one line", part.name, i+1)
			}
			if _, err := fill(s.Command, values); err != nil {
				return fmt.Errorf("%s, step %d: %w", part.name, i+1, err)
			}
		}
	}
	if n := len(r.text(values)); n > MaxText {
		return fmt.Errorf("its text has %d bytes, and at most %d are taken", n, MaxText)
	}
	return nil
}

// plain reports whether a text is one line that is not empty.
func plain(s string, most int) bool {
	return strings.TrimSpace(s) != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// takes says why a value is not taken.
func (p *Parameter) takes(v string) error {
	whole, err := regexp.Compile(`\A(?:` + p.Pattern + `)\z`)
	switch {
	case err != nil:
		return err
	case !plain(v, 1<<10) || strings.HasPrefix(v, "-") || !whole.MatchString(v):
		return fmt.Errorf("parameter %s: %.80q is not taken; give one line that matches %s and does not begin with -: %w", p.Name, v, p.Pattern,
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// Text is the runbook for a model, with values for parameters: of the others the defaults hold. One that it does not have, or
// that does not match, is an error of kind invalid argument.
func (r *Runbook) Text(values map[string]string) (string, error) {
	all := map[string]string{}
	for _, p := range r.Parameters {
		v, ok := values[p.Name]
		if !ok {
			v = p.Default
		}
		if err := p.takes(v); err != nil {
			return "", err
		}
		all[p.Name] = v
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := all[name]; !ok {
			return "", fmt.Errorf("runbook %s has no parameter %.40q: it has %s: %w", r.Name, name,
				strings.Join(slices.Sorted(maps.Keys(all)), ", "), errdefs.ErrInvalidArgument)
		}
	}
	return r.text(all), nil
}

func (r *Runbook) text(values map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nThis is advice: every command is judged as any other.\n", r.Title)
	for _, p := range r.Parameters {
		fmt.Fprintf(&b, "parameter %s = %s (matches %s)\n", p.Name, values[p.Name], p.Pattern)
	}
	for _, part := range r.parts() {
		for _, s := range part.steps {
			command, err := fill(s.Command, values)
			if err != nil { // it was tried when the runbook was read
				command = s.Command
			}
			only := ""
			if s.ReadOnly {
				only = ", only reads"
			}
			fmt.Fprintf(&b, "%s%s: %s\n  %s\n", part.name, only, s.Purpose, command)
		}
	}
	return b.String() + strings.TrimSpace(r.Advice) + "\n"
}

// ReadOnly are the steps that only read, with the defaults of the parameters.
func (r *Runbook) ReadOnly() []Step {
	values := map[string]string{}
	for _, p := range r.Parameters {
		values[p.Name] = p.Default
	}
	var all []Step
	for _, part := range r.parts() {
		for _, s := range part.steps {
			if command, err := fill(s.Command, values); err == nil && s.ReadOnly {
				s.Command = command
				all = append(all, s)
			}
		}
	}
	return all
}

// Check has every step that only reads judged as what a person types for a host. One that is not SAFE, or that changes
// something, is an error of kind permission denied that names the file, the step and why.
func (r *Runbook) Check(e *rules.Engine) error {
	for _, s := range r.ReadOnly() {
		d := e.Decide(rules.Question{Command: s.Command, Profile: rules.Host, Source: rules.User, Home: "~"})
		why := ""
		switch {
		case d.Level != rules.Safe:
			why = "the policy answers " + d.Level.String() + ": " + strings.Join(d.Reasons, "; ")
		case rules.Changes(d.Capabilities):
			why = "the policy sees that it changes something: " + strings.Join(d.Capabilities, ", ")
		default:
			continue
		}
		return fmt.Errorf("cannot use the runbook %s: the step %q says that it only reads, and %s; change it, or say read_only: false: %w",
			r.File, s.Command, why, errdefs.ErrPermissionDenied)
	}
	return nil
}

// fill puts values into a command, each as one shell word. A placeholder is a word by itself outside of quotes: a value
// inside of quotes would end them.
func fill(command string, values map[string]string) (string, error) {
	var b strings.Builder
	quote := byte(0)
	for i := 0; i < len(command); i++ {
		c := command[i]
		if name, ok := placeholder(command[i:], values); ok {
			end := i + len(name) + 2
			if quote != 0 || i > 0 && command[i-1] != ' ' || end < len(command) && command[end] != ' ' {
				return "", fmt.Errorf("{%s} is not a word by itself, outside of quotes", name)
			}
			b.WriteString(word(values[name]))
			i = end - 1
			continue
		}
		b.WriteByte(c)
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(command):
			i++
			b.WriteByte(command[i])
		case quote == 0 && (c == '\'' || c == '"' || c == '`'):
			quote = c
		case c == quote:
			quote = 0
		}
	}
	return b.String(), nil
}

// placeholder is the name of the parameter whose placeholder a text begins with.
func placeholder(s string, values map[string]string) (string, bool) {
	if name, _, ok := strings.Cut(s, "}"); ok && strings.HasPrefix(name, "{") {
		_, known := values[name[1:]]
		return name[1:], known
	}
	return "", false
}

// word is a value as one word of a shell.
func word(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

//go:embed builtin/*.yaml
var files embed.FS

// Builtin are the runbooks that carrel brings, by their names.
func Builtin() ([]*Runbook, error) {
	entries, err := files.ReadDir("builtin")
	if err != nil {
		return nil, err
	}
	var all []*Runbook
	for _, e := range entries {
		b, err := files.ReadFile("builtin/" + e.Name())
		if err != nil {
			return nil, err
		}
		r, err := Parse(e.Name(), b)
		if err != nil {
			return nil, err
		}
		r.ours = true
		all = append(all, r)
	}
	return all, nil
}

// Titles are what a model is told of runbooks, as many as may be told: the names of those that carrel brings, on one line, and name and
// title of each other, a line each.
func Titles(all []*Runbook) string {
	var known []string
	size := 0
	for _, r := range all {
		if r.ours && size+len(r.Name)+2 <= MaxTitles {
			known = append(known, r.Name)
			size += len(r.Name) + 2
		}
	}
	var b strings.Builder
	if len(known) > 0 {
		b.WriteString(strings.Join(known, ", ") + "\n")
	}
	for _, r := range all {
		if line := r.Name + ": " + r.Title + "\n"; !r.ours && b.Len()+len(line) <= MaxTitles {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Find returns the runbook of a name, nil if there is none.
func Find(all []*Runbook, name string) *Runbook {
	if i := slices.IndexFunc(all, func(r *Runbook) bool { return r.Name == name }); i >= 0 {
		return all[i]
	}
	return nil
}
