package shell

// Limits limits the cost of one text. A field of zero or less has its default.
type Limits struct {
	// Bytes is the longest text, and the longest text within it. The default is 131072, the
	// longest argument that the kernel passes to a program (MAX_ARG_STRLEN) and so the longest
	// text for a shell's -c.
	Bytes int
	// Depth is how deep commands may nest: compound commands, substitutions, functions and texts
	// within texts count one each. The default is 64.
	Depth int
	// Commands is the most commands, including those of texts within the text. The default is
	// 4096.
	Commands int
}

const (
	defaultBytes    = 128 << 10
	defaultDepth    = 64
	defaultCommands = 4096

	// maxOpeners limits the depth of the parser, which recurses without a limit. It counts what
	// may open something and never what closes it, since quotes can disable a closing mark.
	maxOpeners = 8192
	// maxFields limits the words that one becomes by brace expansion or splitting.
	maxFields = 1024
)

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = defaultBytes
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	if l.Commands <= 0 {
		l.Commands = defaultCommands
	}
	return l
}

// Dialect is the shell language of a text.
type Dialect uint8

// The dialects. POSIX text that only bash can parse is read as bash, since /bin/sh is bash on
// some hosts; what the two read differently is dynamic.
const (
	Bash Dialect = iota
	POSIX
)
