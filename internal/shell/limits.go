package shell

// Limits bound what one text may cost. A field that is zero or less has its default.
type Limits struct {
	// Bytes is the greatest length of a text, and of each text within it. The default is
	// 131072: the kernel passes no longer argument to a program (MAX_ARG_STRLEN), so no
	// longer text can be given to a shell's -c.
	Bytes int
	// Depth is how deep commands may stand in one another: compound commands,
	// substitutions, functions and texts within texts count one each. The default is 64.
	Depth int
	// Commands is the greatest number of commands, those of texts within texts among
	// them. The default is 4096.
	Commands int
}

const (
	defaultBytes    = 128 << 10
	defaultDepth    = 64
	defaultCommands = 4096

	// maxOpeners bounds how deep the parser can go, which recurses without a limit of its
	// own: it counts what may open something, never what closes it, as quotes can make a
	// closing mark mean nothing.
	maxOpeners = 8192
	// maxFields bounds the words that come of one by brace expansion or by splitting.
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

// Dialect is the language a text is read in.
type Dialect uint8

// The dialects. A text for POSIX that only bash could read is read as for bash, since
// /bin/sh is bash on some hosts; what the two read differently is dynamic.
const (
	Bash Dialect = iota
	POSIX
)
