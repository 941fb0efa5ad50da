// Package shell says what a line or script of shell would do, as facts: every simple
// command wherever it stands, with the words that are known, where its output goes and
// what surrounds it. It judges nothing, runs nothing and reads no file; what it cannot
// know it marks as dynamic, and what it cannot read whole is a Trouble, for which the
// reader of the facts must deny.
package shell

// Facts is what a source text would do.
type Facts struct {
	// Commands are the simple commands in the order of their first byte; those inside
	// substitutions, functions, traps and texts given to eval or an interpreter of shell
	// among them.
	Commands []Command
	// Redirects are those of compound commands, as in { …; } > file.
	Redirects []Redirect
	// Functions are the names that the text defines; a command of such a name is not the
	// program of that name.
	Functions []string
	// Aliases are what the text gives to alias, by name.
	Aliases map[string]string
	// Loops are the loops over words, with what they go through.
	Loops []Loop
	// Troubles are the reasons for which the facts cannot be relied on. Empty if there is
	// none.
	Troubles []Trouble
	// Oddities are characters that make the text look like another, in order.
	Oddities []Oddity
	// Empty says that the text has no command at all.
	Empty bool

	room []Word // of the words of commands
}

// Reset forgets what the facts are, but not their memory, for AnalyzeInto. Nothing of them
// may be in use.
func (f *Facts) Reset() {
	const most = 256 // what is kept of one text
	commands, room := f.Commands, f.room
	if cap(commands) > most {
		commands = nil
	}
	clear(commands)
	clear(room)
	*f = Facts{Commands: commands[:0], room: room[:0]}
}

// Loop is a for loop over words: within it the variable has one of them.
type Loop struct {
	Name  string
	Items []Word
	// Start and End are its place in bytes, as those of a command.
	Start, End int
}

// Command is one simple command.
type Command struct {
	// Argv are its words after expansion as far as that is known; none for a bare
	// assignment or redirect. A word that may become several or none is one Word with Many.
	Argv []Word
	// Assigns are the assignments before it, or those of a bare assignment and of
	// export, declare, local, readonly and typeset.
	Assigns   []Assign
	Redirects []Redirect
	// Text is the source of it; Start and End its place in bytes. In a text that stands
	// inside another (eval, sh -c, a heredoc) they are those of the word it was found in.
	Text       string
	Start, End int
	// Context is where it stands.
	Context Context
	// From is the index of the command whose output is piped into it, and Into that of the
	// one it pipes to; -1 if there is none.
	From, Into int
	// Parent is the index of the command in whose words or text it stands (substitution,
	// eval, sh -c, heredoc), -1 if there is none.
	Parent int
}

// Word is one word of a command.
type Word struct {
	// Text is its value where it is static, else the value with each unknown part left as
	// its source text ("$HOME/x", "$(date).log").
	Text string
	// Source is the word as it stands, with its quotes.
	Source string
	// Dynamic says that part of its value is not known before it runs.
	Dynamic bool
	// Glob says that it holds an unquoted pattern, so files may take its place.
	Glob bool
	// Many says that it may become several words or none (unquoted expansion, "$@").
	Many bool
	// Hidden says that it was written so as to hide what it is: quotes or escapes within a
	// plain word, $'…' with codes of printable characters, or a value put together from
	// parts that a person would not so write.
	Hidden bool
}

// Assign is one assignment.
type Assign struct {
	Name   string
	Value  Word
	Append bool // +=
	Export bool // by export or declare -x
}

// Redirect is where input comes from or output goes.
type Redirect struct {
	// FD is the number before it, -1 if none is given.
	FD   int
	Mode Mode
	// Target is the file, descriptor or word; for a heredoc its body.
	Target Word
}

// Mode is the kind of a redirect.
type Mode string

// The modes.
const (
	Read      Mode = "read"       // <
	Write     Mode = "write"      // > >| &>
	Append    Mode = "append"     // >> &>>
	ReadWrite Mode = "read-write" // <>
	Duplicate Mode = "duplicate"  // <& >&
	Heredoc   Mode = "heredoc"    // << <<-
	String    Mode = "string"     // <<<
)

// Context is where a command stands. All that hold are set.
type Context struct {
	Background   bool // & or coproc
	Conditional  bool // behind && or ||, in if, case or a loop: it may not run
	Loop         bool
	Endless      bool // in a loop that no condition of its own ends: while true
	Subshell     bool
	Substitution bool   // $(…), backquotes, <(…), >(…)
	Function     string // in the body of this function
	Trap         bool   // in the text of a trap
	Text         bool   // in a text given to eval, to a shell's -c or standard input
	Negated      bool
}

// Trouble is a reason not to rely on the facts.
type Trouble struct {
	Kind TroubleKind
	// Why says it for a person, with line and column where there is one.
	Why string
}

// TroubleKind is what went wrong.
type TroubleKind string

// The kinds of trouble.
const (
	Unparseable TroubleKind = "parse-error"
	TooLong     TroubleKind = "too-long"
	TooDeep     TroubleKind = "too-deep"
	TooMany     TroubleKind = "too-many"
	BadInput    TroubleKind = "bad-input" // NUL, invalid UTF-8
)

// Oddity is a character that a person does not see or takes for another.
type Oddity struct {
	Kind  OddityKind
	Rune  rune
	Start int // in bytes
}

// OddityKind is what is odd about a character.
type OddityKind string

// The kinds of oddities.
const (
	Control   OddityKind = "control"    // C0 and C1 but tab and newline, escape sequences
	Bidi      OddityKind = "bidi"       // changes of direction
	Invisible OddityKind = "invisible"  // zero width, tags, variation selectors
	LookAlike OddityKind = "look-alike" // a letter or mark of another script that looks like ASCII
	OddSpace  OddityKind = "space"      // a space that the shell takes for part of a word
)
