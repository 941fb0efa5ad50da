// Package shell describes what a line or script of shell would do, as facts: every simple command
// wherever it is, its known words, where its output goes and what surrounds it. It judges
// nothing, runs nothing and reads no file. What it cannot know is marked dynamic; what it cannot
// read is a Trouble, for which the caller must deny.
package shell

// Facts is what a source text would do.
type Facts struct {
	// Commands holds the simple commands in the order of their first byte, including those in
	// substitutions, functions, traps and texts for eval or a shell.
	Commands []Command
	// Redirects holds the redirects of compound commands, as in { …; } > file.
	Redirects []Redirect
	// Functions holds the names that the text defines; a command of such a name is not the
	// program.
	Functions []string
	// Aliases holds the aliases that the text defines, by name.
	Aliases map[string]string
	// Loops holds the loops over words.
	Loops []Loop
	// Troubles holds the reasons not to rely on the facts.
	Troubles []Trouble
	// Oddities holds characters that make the text look like another, in order.
	Oddities []Oddity
	// Empty says that the text has no command.
	Empty bool

	room []Word // memory for the words of commands
}

// Plain reports whether nothing in the text gives its commands another meaning: no functions, aliases, redirects of compound
// commands, troubles or odd characters.
func (f *Facts) Plain() bool {
	return len(f.Functions)+len(f.Aliases)+len(f.Troubles)+len(f.Oddities)+len(f.Redirects) == 0
}

// Reset clears the facts and keeps their memory for AnalyzeInto. They must not be in use.
func (f *Facts) Reset() {
	const most = 256 // kept for the next text
	commands, room := f.Commands, f.room
	if cap(commands) > most {
		commands = nil
	}
	clear(commands)
	clear(room)
	*f = Facts{Commands: commands[:0], room: room[:0]}
}

// Loop is a for loop over words.
type Loop struct {
	Name  string
	Items []Word
	// Start and End are its position in bytes, like a command's.
	Start, End int
}

// Command is one simple command.
type Command struct {
	// Argv holds the words after expansion, as far as it is known; none for a bare assignment or
	// redirect. A word that may become several or none is one Word with Many.
	Argv []Word
	// Assigns holds the assignments before it, or those of a bare assignment and of export,
	// declare, local, readonly and typeset.
	Assigns   []Assign
	Redirects []Redirect
	// Text is its source, and Start and End its position in bytes. In a text within another
	// (eval, sh -c, a heredoc) the position is that of the word that holds the text.
	Text       string
	Start, End int
	// Context is its surroundings.
	Context Context
	// From is the index of the command that pipes into it, Into of the one it pipes to; -1 for
	// none.
	From, Into int
	// Parent is the index of the command whose words or text hold it (substitution, eval, sh -c,
	// heredoc), -1 for none.
	Parent int
}

// Word is one word of a command.
type Word struct {
	// Text is the value if it is static, else the value with each unknown part left as source
	// ("$HOME/x", "$(date).log").
	Text string
	// Source is the word as written, with quotes.
	Source string
	// Dynamic: part of the value is unknown before it runs.
	Dynamic bool
	// Glob: it holds an unquoted pattern, so files may replace it.
	Glob bool
	// Many: it may become several words or none (unquoted expansion, "$@").
	Many bool
	// Hidden: it is written to hide what it is, with quotes or escapes within a plain word, $'…'
	// codes of printable characters, or a value composed of parts that nobody would write so.
	Hidden bool
}

// Assign is one assignment.
type Assign struct {
	Name   string
	Value  Word
	Append bool // +=
	Export bool // by export or declare -x
}

// Redirect is a redirection of input or output.
type Redirect struct {
	// FD is the descriptor, -1 if none is given.
	FD   int
	Mode Mode
	// Target is the file, descriptor or word; the body of a heredoc.
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

// Context is the surroundings of a command. All that apply are set.
type Context struct {
	Background   bool // & or coproc
	Conditional  bool // after && or ||, in if, case or a loop: it may not run
	Loop         bool
	Endless      bool // in a loop without a condition that ends it: while true
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
	// Why explains it to a person, with line and column if there is one.
	Why string
}

// TroubleKind is the kind of a trouble.
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
