package operation

import (
	"cmp"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Class says how an operation is recorded.
type Class uint8

// The classes.
const (
	// Change: the intent is durable before the effect, and the outcome follows.
	Change Class = iota + 1
	// Read: it is recorded without waiting for the disk.
	Read
	// Observe: it gets no record of its own unless it is refused. It is counted, and the
	// counts are recorded.
	Observe
)

func (c Class) String() string {
	switch c {
	case Change:
		return "change"
	case Read:
		return "read"
	case Observe:
		return "observe"
	}
	return "none"
}

// Row is what the table says of one operation.
type Row struct {
	Name Name
	// Words complete "cannot let uid:1000 …" and "carrel asks to …"; the target follows
	// where there is one: "pause" makes "pause workspace demo".
	Words string
	// Help is the one line that the command line shows for the command that asks for it, in
	// the imperative; "" where there is no such command.
	Help string
	// Needs is the permission that it takes. Whose target it may be done to is another
	// question: see principal.MayReach. Nobody may do an operation that needs none.
	Needs principal.Permission
	On    TargetKind
	Class Class
	// Repeatable: the client may give the request an id and repeat it.
	Repeatable bool
	// Relieves: it is a change that is carried out on a full disk too, as it makes room, ends what writes or
	// takes rights away. It must not be possible to no end: its records take the room that is kept for them.
	Relieves bool
	// Judged says by what a policy decides; it is only for changes.
	Judged Judged
	// Calls are the procedures of carrel.v1 that ask for it.
	Calls []Call
}

// Judged says how an operation is judged.
type Judged struct {
	// Command: by the rules for commands.
	Command bool
	// Rules are tried in order, and the first that fits counts.
	Rules []Rule
}

// Rule judges an operation that is no command.
type Rule struct {
	// Name is what a record calls the rule, after "action.".
	Name string
	// When limits the rule to some payloads; nil is all.
	When func(Operation) bool
	// Asks: a person has to approve it if a program or a model asks for it.
	Asks bool
	// Risk is from 0 to 100. Capability is the one of docs/policy/capabilities.md that comes
	// nearest, "" for none.
	Risk       int
	Capability string
	// Scored is the risk where it depends on the payload; Risk is the least then.
	Scored func(Operation) int
	// Reason says for people what it does.
	Reason string
	// Final: no answer about it is remembered, but for the payloads that Unless names.
	Final  bool
	Unless func(Operation) bool
}

// Call is one procedure of carrel.v1.
type Call struct {
	// Path is the service and the procedure: "WorkspaceService/Pause".
	Path string
	// MaxRequest bounds one request message, in bytes after decompression.
	MaxRequest int
	// Stream: the exchange may last, so that its body has no deadline.
	Stream bool
}

// Bounds of a request message.
const (
	Small = 16 << 10
	Large = 1 << 20
)

func small(paths ...string) []Call {
	calls := make([]Call, 0, len(paths))
	for _, p := range paths {
		calls = append(calls, Call{Path: p, MaxRequest: Small})
	}
	return calls
}

// Of returns the row of an operation, or an empty one, which nobody may do.
func Of(n Name) *Row {
	if i, ok := index[n]; ok {
		return &Table[i]
	}
	return &Row{Name: n, Words: "do " + string(n)}
}

var index = func() map[Name]int {
	m := make(map[Name]int, len(Table))
	for i := range Table {
		m[Table[i].Name] = i
	}
	return m
}()

// Lasts reports whether the outcome of an operation is on disk before whoever asked is answered. It is for
// changes but those under the permission to run, which are many, and whose traces are in the workspace.
func (r *Row) Lasts() bool { return r.Class == Change && r.Needs != principal.Run }

// Sentence is an operation on a target as a person reads it: "pause workspace demo".
func (r *Row) Sentence(on Target) string {
	switch name := on.Key; {
	case r.Judged.Command && on.Kind == Workspace:
		// Errors about the command itself begin with "cannot run": see docs/protocols/api.md.
		return "let the command run in workspace " + string(cmp.Or(name, id.Key(on.Name)))
	case on.Kind == Host:
		return strings.TrimSuffix(r.Words, " in") + " on this host"
	case on.Kind == Remote:
		return strings.TrimSuffix(r.Words, " in") + " on host " + string(on.Name)
	case r.On != Workspace:
		return r.Words
	case name != "":
		return r.Words + " workspace " + string(name)
	case on.Name != "":
		return r.Words + " workspace " + string(on.Name)
	}
	return r.Words + " a workspace"
}
