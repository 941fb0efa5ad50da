package operation

import (
	"encoding/json"
	"slices"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Command is a command as its caller asks for it. It is no part of the canonical form as a
// whole: values of variables may be secret.
type Command struct {
	workspace.Command
	// TTY runs it on a terminal, Detach lets it outlive its client.
	TTY, Detach bool
	// Session names its terminal, for clients that join, and Record has the output written to a file in the home.
	Session string
	Record  bool
	// Source is who wrote it: "user" or "llm".
	Source string
}

// Words are the parts of a command that the canonical form has. The fields stand in its order.
type Words struct {
	Argv []string `json:"argv,omitempty"`
	// Env lists the names of the variables that the caller set, sorted.
	Env []string `json:"env,omitempty"`
	// EnvDigest covers names and values; see envOf.
	EnvDigest string `json:"env_digest,omitempty"`
	Cwd       string `json:"cwd,omitempty"`
	TTY       bool   `json:"tty,omitempty"`
	Detach    bool   `json:"detach,omitempty"`
	TimeoutMS int64  `json:"timeout_ms,omitempty"`
	// Session is the name of a session, and Record says that it is recorded: to ~/.carrel/recordings/ID.cast.
	Session string `json:"session,omitempty"`
	Record  bool   `json:"recorded,omitempty"`
	// ID is the one that carrel gives the command. An approval is about the command without.
	ID id.Command `json:"command,omitempty"`
}

func wordsOf(c Command) Words {
	w := Words{Argv: c.Argv, Cwd: c.Cwd, TTY: c.TTY, Detach: c.Detach, TimeoutMS: c.TimeoutMS, Session: c.Session, Record: c.Record}
	w.Env, w.EnvDigest = envOf(c.Env)
	return w
}

// Commanding is an operation that runs a command.
type Commanding interface {
	Operation
	// Command is what its words are, and Full what was asked for, with the values of the
	// variables.
	Command() Words
	Full() *Command
	// With returns the same operation with other words.
	With(Words) Commanding
	// Clean returns the same operation without secrets, and whether it had any.
	Clean(Cleaner) (Commanding, bool)
}

// Cleaner takes secrets out. It returns what it was given if there are none.
type Cleaner interface {
	Text(string) string
	Texts([]string) []string
	Argv([]string) []string
	JSON([]byte) []byte
}

// clean returns the words without secrets, and whether they had any.
func (w Words) clean(c Cleaner) (Words, bool) {
	out := w
	out.Argv, out.Env, out.Cwd, out.ID = c.Argv(w.Argv), c.Texts(w.Env), c.Text(w.Cwd), id.Command(c.Text(string(w.ID)))
	out.Session = c.Text(w.Session)
	return out, !same(out.Argv, w.Argv) || !same(out.Env, w.Env) || out.Cwd != w.Cwd || out.ID != w.ID || out.Session != w.Session
}

// same reports whether y is x itself.
func same[T any](x, y []T) bool { return len(x) == 0 || len(y) > 0 && &x[0] == &y[0] }

// Exec runs a command in a workspace.
type Exec struct {
	Words
	Source string `json:"source,omitempty"`

	full *Command
}

// NewExec returns the operation that runs a command, once every part of it was found usable.
// It is the one place where arguments are validated.
func NewExec(c Command) (Exec, error) {
	if err := c.Validate(); err != nil {
		return Exec{}, err
	}
	return Exec{Words: wordsOf(c), Source: c.Source, full: &c}, nil
}

// Op implements Operation.
func (Exec) Op() Name { return ExecCommand }

// Command implements Commanding.
func (e Exec) Command() Words { return e.Words }

// Full implements Commanding.
func (e Exec) Full() *Command { return e.full }

// With implements Commanding.
func (e Exec) With(w Words) Commanding {
	e.Words = w
	return e
}

// Clean implements Commanding.
func (e Exec) Clean(c Cleaner) (Commanding, bool) {
	words, changed := e.Words.clean(c)
	source := c.Text(e.Source)
	changed = changed || source != e.Source
	e.Words, e.Source = words, source
	return e, changed
}

// Once runs a command in a workspace that is made for it and ends with it.
type Once struct {
	Words
	// Purge removes the home with the workspace.
	Purge  bool                `json:"purge,omitempty"`
	Mounts json.RawMessage     `json:"mounts,omitempty"`
	Allow  []workspace.Opening `json:"allow,omitempty"`
	// Accept are the controls that the workspace may run without.
	Accept []string `json:"accept,omitempty"`
	// Reach are the rules of what it may reach, as "allow example.org:443", sorted. Without any it reaches
	// nothing.
	Reach  []string `json:"reach,omitempty"`
	Source string   `json:"source,omitempty"`

	full *Command
}

// NewOnce returns the operation that runs a command in a workspace of its own.
func NewOnce(c Command, mounts []workspace.Mount, allow []workspace.Opening, accept, reach []string, purge bool) (Once, error) {
	if err := c.Validate(); err != nil {
		return Once{}, err
	}
	if err := workspace.CheckOpenings(allow, mounts); err != nil {
		return Once{}, err
	}
	o := Once{
		Words: wordsOf(c), Purge: purge, Allow: allow, Accept: slices.Sorted(slices.Values(accept)),
		Reach: slices.Sorted(slices.Values(reach)), Source: c.Source, full: &c,
	}
	if len(mounts) > 0 {
		o.Mounts = raw(mounts)
	}
	return o, nil
}

// Op implements Operation.
func (Once) Op() Name { return RunOnce }

// Command implements Commanding.
func (o Once) Command() Words { return o.Words }

// Full implements Commanding.
func (o Once) Full() *Command { return o.full }

// With implements Commanding.
func (o Once) With(w Words) Commanding {
	o.Words = w
	return o
}

// Clean implements Commanding.
func (o Once) Clean(c Cleaner) (Commanding, bool) {
	out, changed := o, false
	out.Words, changed = o.Words.clean(c)
	out.Mounts, out.Accept, out.Reach, out.Source = c.JSON(o.Mounts), c.Texts(o.Accept), c.Texts(o.Reach), c.Text(o.Source)
	changed = changed || !same(out.Mounts, o.Mounts) || !same(out.Accept, o.Accept) || !same(out.Reach, o.Reach) || out.Source != o.Source
	return out, changed
}

var (
	_ Commanding = Exec{}
	_ Commanding = Once{}
)
