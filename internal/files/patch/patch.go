// Package patch changes files by patches that somebody else wrote: a unified diff, or the apply_patch grammar of coding
// agents. It works in three steps. Parse reads the text. Read finds the files and computes every new content, and
// changes nothing. Apply makes the change to all files or to none, also when the process is killed, and keeps what is
// needed for Undo.
//
// The package is exact: bytes that no hunk names stay as they are, and a hunk whose place is not certain is an error. It
// must not follow symbolic links below the directories that it is given, choose a directory itself, or decide whether a
// change is wanted.
package patch

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Bounds. Sizes are in bytes.
const (
	MaxText  = 16 << 20 // of a patch
	MaxFiles = 64
	MaxHunks = 10_000
	MaxSize  = 5 << 20  // of a file, before and after
	MaxTotal = 64 << 20 // of all files together, before and after
	maxPath  = 4095
	maxName  = 255
)

// Op says what is done to a file.
type Op string

// The operations. A Move may change the content too; Mode changes nothing but the mode.
const (
	Create Op = "create"
	Update Op = "update"
	Delete Op = "delete"
	Move   Op = "move"
	Mode   Op = "mode"
)

// Patch is a patch that was parsed. The zero Patch changes nothing.
type Patch struct {
	changes []change
}

// Paths are the paths that the patch names, in its order: of a move the old one and then the new one.
func (p Patch) Paths() []string {
	var all []string
	for _, c := range p.changes {
		all = append(all, c.path)
		if c.to != "" {
			all = append(all, c.to)
		}
	}
	return all
}

// change is what a patch says about one file.
type change struct {
	op   Op
	path string
	// to is the new path of a move.
	to string
	// mode is the one that the patch gives the file, 0 for none. Only permission bits are set.
	mode fs.FileMode
	// line is where it begins in the text, from 1.
	line  int
	hunks []hunk
}

// hunk replaces some lines of a file by others.
type hunk struct {
	// line is where it begins in the text, from 1.
	line int
	// at is the first of its old lines in the file, from 1. Without numbers it is found by its text.
	at       int
	numbered bool
	// hints are lines after which it stands, each after the one before.
	hints []string
	// end: its old lines are the last of the file.
	end  bool
	rows []row
}

// row is one line of a hunk: kept, removed or added. Its text has the line's end.
type row struct {
	op   byte // ' ', '-' or '+'
	text []byte
}

// side returns the lines of a hunk before ('-') or after ('+') it.
func (h *hunk) side(of byte) [][]byte {
	lines := make([][]byte, 0, len(h.rows))
	for _, r := range h.rows {
		if r.op == ' ' || r.op == of {
			lines = append(lines, r.text)
		}
	}
	return lines
}

// Parse reads a patch in either grammar. What it returns holds parts of text. Errors are of kind invalid argument and
// name the line.
func Parse(text []byte) (p Patch, err error) {
	switch {
	case len(text) > MaxText:
		return p, bad("cannot read the patch: it has %d bytes, and at most %d are taken; split it", len(text), MaxText)
	case len(bytes.TrimSpace(text)) == 0:
		return p, bad("cannot read the patch: it is empty; give a unified diff or an apply_patch text")
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return p, bad("cannot read the patch: byte %d is NUL; patches of binary files are not taken", i)
	}
	r := &reader{lines: splitLines(text)}
	if bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte(beginPatch)) {
		err = r.agent()
	} else {
		err = r.unified()
	}
	if err == nil && len(r.changes) == 0 {
		err = bad("cannot read the patch: it changes no file; give a unified diff or an apply_patch text")
	}
	if err == nil {
		err = distinct(r.changes)
	}
	if err != nil {
		return Patch{}, err
	}
	return Patch{r.changes}, nil
}

// distinct refuses a patch that names a path twice.
func distinct(all []change) error {
	seen := map[string]bool{}
	for _, c := range all {
		for _, p := range []string{c.path, c.to} {
			if p != "" && seen[p] {
				return bad("cannot read the patch: line %d: %q is changed twice; put its hunks together", c.line, p)
			}
			seen[p] = true
		}
	}
	return nil
}

// reader reads the lines of a patch.
type reader struct {
	lines   [][]byte
	i       int // the next line
	hunks   int
	changes []change
}

// wrong is an error about the line that was read last, or the one that is missing.
func (r *reader) wrong(why string, args ...any) error {
	return bad("cannot read the patch: line %d: "+why, append([]any{max(r.i, 1)}, args...)...)
}

// peek returns the next line without its end.
func (r *reader) peek() (string, bool) {
	if r.i >= len(r.lines) {
		return "", false
	}
	return string(bytes.TrimSuffix(r.lines[r.i], []byte("\n"))), true
}

// begin adds a change and returns it.
func (r *reader) begin(c change) (*change, error) {
	if len(r.changes) == MaxFiles {
		return nil, r.wrong("it changes more than %d files; split it", MaxFiles)
	}
	c.line = r.i
	r.changes = append(r.changes, c)
	return &r.changes[len(r.changes)-1], nil
}

func (r *reader) countHunk() error {
	if r.hunks++; r.hunks > MaxHunks {
		return r.wrong("it has more than %d hunks; split it", MaxHunks)
	}
	return nil
}

// splitLines returns the lines of a text with their ends, which are "\n" alone.
func splitLines(text []byte) [][]byte {
	lines := make([][]byte, 0, bytes.Count(text, []byte("\n"))+1)
	for len(text) > 0 {
		n := bytes.IndexByte(text, '\n') + 1
		if n == 0 {
			n = len(text)
		}
		lines = append(lines, text[:n:n])
		text = text[n:]
	}
	return lines
}

// checkName says what is wrong with a path that a patch names, "" if nothing is.
func checkName(name string) string {
	switch {
	case name == "":
		return "it is empty"
	case len(name) > maxPath:
		return fmt.Sprintf("it has more than %d bytes", maxPath)
	case !utf8.ValidString(name):
		return "it is not UTF-8"
	case name == "~" || strings.HasPrefix(name, "~/"):
		return "~ is not expanded; write the whole path"
	case path.Clean(name) != name || name == "." || name == "/" || strings.HasSuffix(name, "/"):
		return "it has empty parts, or \".\" or \"..\""
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "it has \"..\""
		}
		if len(part) > maxName {
			return fmt.Sprintf("a part of it has more than %d bytes", maxName)
		}
	}
	for _, r := range name {
		if odd(r) {
			return fmt.Sprintf("it has the character %U", r)
		}
	}
	return ""
}

// odd reports whether a person cannot see a character, or it changes how others are shown.
func odd(r rune) bool {
	return unicode.IsControl(r) || r != 0xfe0f && unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp,
		unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// unquote reads a path in the quotes that git gives to one with odd bytes. It is "" if it cannot be read.
func unquote(s string) string {
	if !strings.HasPrefix(s, `"`) {
		return s
	}
	// Git's escapes are C's, of which Go has all.
	out, err := strconv.Unquote(s)
	if err != nil || strings.ContainsRune(out, 0) {
		return ""
	}
	return out
}

func bad(why string, args ...any) error {
	return fmt.Errorf(why+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
