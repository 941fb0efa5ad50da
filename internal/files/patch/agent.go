package patch

import (
	"bytes"
	"slices"
	"strings"
)

// The apply_patch grammar of coding agents: between the first and the last of these lines stand files, each with its
// line. A hunk has no numbers. It is found by its old lines, behind the lines that its @@ lines name.
const (
	beginPatch = "*** Begin Patch"
	endPatch   = "*** End Patch"
	addFile    = "*** Add File: "
	updateFile = "*** Update File: "
	deleteFile = "*** Delete File: "
	moveTo     = "*** Move to: "
	endOfFile  = "*** End of File"
)

func (r *reader) agent() error {
	for {
		line, _ := r.peek()
		r.i++
		if line == beginPatch {
			break
		}
		if strings.TrimSpace(line) != "" {
			return r.wrong("the patch does not begin with the line %q", beginPatch)
		}
	}
	for {
		line, ok := r.peek()
		r.i++
		if !ok {
			return r.wrong("the patch does not end with the line %q", endPatch)
		}
		if line == endPatch {
			break
		}
		if err := r.agentFile(line); err != nil {
			return err
		}
	}
	for r.i < len(r.lines) {
		line, _ := r.peek()
		r.i++
		if strings.TrimSpace(line) != "" {
			return r.wrong("something follows the line %q", endPatch)
		}
	}
	return nil
}

func (r *reader) agentFile(line string) error {
	c := change{}
	for prefix, op := range map[string]Op{addFile: Create, updateFile: Update, deleteFile: Delete} {
		if name, ok := strings.CutPrefix(line, prefix); ok {
			c.op, c.path = op, name
		}
	}
	if c.op == "" {
		return r.wrong("%.60q is not expected here; a file begins with %q, %q or %q", line, addFile, updateFile, deleteFile)
	}
	if why := checkName(c.path); why != "" {
		return r.wrong("the path %.80q is not usable: %s", c.path, why)
	}
	at, err := r.begin(c)
	if err != nil {
		return err
	}
	switch at.op {
	case Create:
		return r.agentContent(at)
	case Update:
		return r.agentHunks(at)
	default:
		return nil
	}
}

// agentContent reads the lines of a new file.
func (r *reader) agentContent(c *change) error {
	h := hunk{line: r.i + 1, numbered: true, at: 1}
	for {
		line, ok := r.peek()
		if !ok || strings.HasPrefix(line, "*** ") {
			break
		}
		r.i++
		if !strings.HasPrefix(line, "+") {
			return r.wrong("each line of a new file begins with +")
		}
		h.rows = append(h.rows, row{'+', []byte(line[1:] + "\n")})
	}
	if len(h.rows) > 0 {
		c.hunks = []hunk{h}
		return r.countHunk()
	}
	return nil
}

// agentHunks reads the hunks of a file that is there.
func (r *reader) agentHunks(c *change) error {
	if line, _ := r.peek(); strings.HasPrefix(line, moveTo) {
		r.i++
		c.op, c.to = Move, line[len(moveTo):]
		if why := checkName(c.to); why != "" {
			return r.wrong("the path %.80q is not usable: %s", c.to, why)
		}
	}
	for {
		line, ok := r.peek()
		if !ok || strings.HasPrefix(line, "*** ") {
			break
		}
		h, err := r.agentHunk()
		if err != nil {
			return err
		}
		c.hunks = append(c.hunks, h)
	}
	if c.op == Update && len(c.hunks) == 0 {
		return r.wrong("%q has no hunk; leave the file out", c.path)
	}
	return nil
}

func (r *reader) agentHunk() (h hunk, err error) {
	h.line = r.i + 1
	if err := r.countHunk(); err != nil {
		return h, err
	}
	for {
		line, _ := r.peek()
		if !strings.HasPrefix(line, "@@") {
			break
		}
		r.i++
		if hint := strings.TrimSpace(line[2:]); hint != "" {
			if !strings.HasPrefix(line, "@@ ") {
				return h, r.wrong("%.60q: a line that begins with @@ is empty behind it, or has a space and a line of the file", line)
			}
			h.hints = append(h.hints, hint)
		}
		if len(h.hints) > 16 {
			return h, r.wrong("more than 16 lines with @@ stand before one hunk")
		}
	}
	for {
		line, ok := r.peek()
		if !ok || strings.HasPrefix(line, "@@") {
			break
		}
		if line == endOfFile {
			r.i++
			h.end = true
			break
		}
		if strings.HasPrefix(line, "*** ") {
			break
		}
		r.i++
		op, text := byte(' '), ""
		if line != "" {
			op, text = line[0], line[1:]
		}
		if op != ' ' && op != '-' && op != '+' {
			return h, r.wrong("%.60q: each line of a hunk begins with a space, - or +", line)
		}
		h.rows = append(h.rows, row{op, []byte(text + "\n")})
	}
	return h, h.check()
}

// ending is how the lines of a file end: CRLF where every line has it.
func ending(lines [][]byte) string {
	crlf := 0
	for _, l := range lines {
		if bytes.HasSuffix(l, []byte("\r\n")) {
			crlf++
		} else if bytes.HasSuffix(l, []byte("\n")) {
			return "\n"
		}
	}
	if crlf == 0 {
		return "\n"
	}
	return "\r\n"
}

// fit gives the rows of a hunk of this grammar, which cannot say how lines end, the end of a file's lines.
func (h *hunk) fit(end string) hunk {
	out := *h
	out.rows = slices.Clone(h.rows)
	for i, r := range out.rows {
		if !bytes.HasSuffix(r.text, []byte(end)) {
			out.rows[i].text = append(bytes.TrimSuffix(bytes.Clone(r.text), []byte("\n")), end...)
		}
	}
	return out
}
