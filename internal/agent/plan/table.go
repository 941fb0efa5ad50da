package plan

import "github.com/carrel-dev/carrel/internal/spec/tools"

// kind is what a member holds.
type kind int

const (
	prose   kind = iota // text for people
	quoted              // text of a tool's output
	diff                // the text of a patch
	line                // one line of shell text
	path                // the path of a file
	mode                // permission bits
	where               // a target
	choice              // one of some words
	flag                // true or false
	number              // a whole number
	objects             // a list of objects
	texts               // a list of texts
)

// member is one member of an object.
type member struct {
	name string
	kind kind
	doc  string
	// optional may be left out, or null.
	optional bool
	// min and max bound the bytes of a text, the value of a number, or how many elements a list has.
	min, max int
	// words are those of a choice.
	words []string
	// of are the members of each object of a list.
	of []member
	// each is what each text of a list is.
	each *member
	// one: the target is a single place. distinct: no two elements of a list have the same text, or the same first member.
	one, distinct bool
}

// form is the members of an answer of one type, beside "type" itself, which comes first.
type form struct {
	typ     Type
	doc     string
	members []member
	// either are two members of which an answer has exactly one.
	either [2]string
}

var stepMembers = []member{
	{name: "command", kind: line, min: 1, max: MaxCommand, doc: "one line of shell text"},
	{name: "purpose", kind: prose, min: 1, max: MaxProse, doc: "why it runs"},
	{name: "read_only", kind: flag, doc: "whether it changes nothing"},
	{name: "target", kind: where, doc: "where it runs; there is no default"},
	{name: "background", kind: flag, optional: true, doc: "whether the plan goes on while it runs"},
	{name: "timeout_seconds", kind: number, optional: true, min: 1, max: MaxTimeout, doc: "when it is ended"},
}

func steps(name string, least int, doc string) member {
	return member{name: name, kind: objects, min: least, max: MaxCommands, of: stepMembers, doc: doc}
}

// toolKinds are the kinds of the parameters of tools. Their forms are checked by package tools as well.
var toolKinds = map[tools.Kind]kind{
	tools.Path: path, tools.Pattern: line, tools.Glob: line, tools.Unit: line, tools.Span: line, tools.Package: line, tools.Number: number,
	tools.Choice: choice, tools.Book: line, tools.Values: texts,
}

// maxValues is how many parameters of a runbook one call gives.
const maxValues = 16

// callMembers are those of a call.
var callMembers = calls()

// calls are the members of a call: the parameters of all tools are optional, and each tool takes its own.
func calls() []member {
	all := []member{
		{name: "target", kind: where, one: true, doc: "where it reads; there is no default"},
		{name: "tool", kind: choice, words: tools.Names(), doc: "which tool"},
	}
	for _, p := range tools.Params() {
		m := member{name: p.Name, kind: toolKinds[p.Kind], optional: true, min: 1, max: p.Max, words: p.Words, doc: p.Doc}
		if m.kind == texts {
			m.max, m.each = maxValues, &member{kind: line, min: 1, max: MaxProse}
		}
		all = append(all, m)
	}
	return all
}

// forms are all answers that there are. Structs and schema follow it.
var forms = []form{
	{typ: CommandPlanType, doc: "commands to be run in their order", members: []member{
		{name: "goal", kind: prose, min: 1, max: MaxProse, doc: "what the commands achieve"},
		steps("commands", 1, "the commands"),
		{name: "risk_summary", kind: prose, max: MaxProse, doc: "what may go wrong"},
		steps("preflight_checks", 0, "commands that run before and change nothing"),
		steps("verification_commands", 0, "commands that show that it worked"),
		steps("rollback_commands", 0, "commands that undo it"),
		{name: "requires_root", kind: flag, doc: "whether a command needs root"},
		{
			name: "expected_side_effects", kind: texts, max: MaxCommands, doc: "what else changes",
			each: &member{kind: prose, min: 1, max: MaxProse},
		},
	}},
	{typ: FilePatchPlanType, doc: "a change to files", either: [2]string{"unified_diff", "patch"}, members: []member{
		{name: "goal", kind: prose, min: 1, max: MaxProse, doc: "what the change achieves"},
		{
			name: "request_intent", kind: choice, words: []string{string(Create), string(Update), string(Unknown)},
			doc: "whether a new file was asked for, or a change to one that is there",
		},
		{name: "target", kind: where, one: true, doc: "where the files are; there is no default"},
		{
			name: "files_changed", kind: texts, min: 1, max: MaxFiles, distinct: true, doc: "every file that the change touches",
			each: &member{kind: path, min: 1, max: MaxPath},
		},
		{name: "unified_diff", kind: diff, optional: true, min: 1, max: MaxAnswer, doc: "the change as a unified diff"},
		{name: "patch", kind: diff, optional: true, min: 1, max: MaxAnswer, doc: "the change in the apply_patch grammar"},
		{name: "risk_summary", kind: prose, max: MaxProse, doc: "what may go wrong"},
		steps("verification_commands", 0, "commands that show that it worked"),
		steps("rollback_commands", 0, "commands that undo it"),
		{
			name: "permission_changes", kind: objects, max: MaxFiles, distinct: true, doc: "modes that files have afterwards",
			of: []member{
				{name: "path", kind: path, min: 1, max: MaxPath, doc: "a file"},
				{name: "mode", kind: mode, doc: "its mode in octal digits, as 0644"},
			},
		},
	}},
	{typ: ToolCallsType, doc: "calls of tools that only read; nobody is asked about them", members: []member{
		{name: "calls", kind: objects, min: 1, max: tools.MaxCalls, of: callMembers, doc: "the calls, each with its tool's own parameters"},
	}},
	{typ: DirectAnswerType, doc: "an answer that needs no command and no change", members: []member{
		{name: "answer", kind: prose, min: 1, max: MaxAnswer, doc: "the answer"},
		{name: "remember", kind: prose, optional: true, min: 1, max: MaxProse, doc: "a note of at most 500 characters for later sessions"},
	}},
	{typ: NoChangeType, doc: "what was asked for is there already", members: []member{
		{name: "answer", kind: prose, min: 1, max: MaxAnswer, doc: "what is there"},
		{
			name: "evidence", kind: texts, min: 1, max: MaxEvidence, doc: "quotations of the output of this turn's tools, to the letter",
			each: &member{kind: quoted, min: MinEvidence, max: MaxProse},
		},
	}},
	{typ: ContinueType, doc: "another turn is needed", members: []member{
		{name: "reason", kind: prose, min: 1, max: MaxProse, doc: "what is missing"},
	}},
}

func formOf(t Type) *form {
	for i := range forms {
		if forms[i].typ == t {
			return &forms[i]
		}
	}
	return nil
}

// types are the names of all forms.
func types() []string {
	var all []string
	for i := range forms {
		all = append(all, string(forms[i].typ))
	}
	return all
}
