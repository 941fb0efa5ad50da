package patch

import (
	"bytes"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

const null = "/dev/null"

// head is what stands before the hunks of one file in a unified diff.
type head struct {
	git          bool
	old, new     string // of the lines --- and +++; "" without
	from, to     string // of a rename
	oldM, newM   string // modes
	created      string // its mode
	deleted      bool
	gitOld, gitN string // of the line diff --git
}

// unified reads a unified diff as GNU diff and git write it. There is nothing between files but empty lines.
func (r *reader) unified() error {
	for {
		line, ok := r.peek()
		if !ok {
			return nil
		}
		switch {
		case strings.TrimSpace(line) == "":
			r.i++
		case strings.HasPrefix(line, "diff --git "), strings.HasPrefix(line, "--- "):
			if err := r.unifiedFile(); err != nil {
				return err
			}
		default:
			r.i++
			return r.wrong("%.60q is no part of a unified diff here; a file begins with \"diff --git\" or \"---\", "+
				"and a hunk has as many lines as its header says", line)
		}
	}
}

func (r *reader) unifiedFile() error {
	var h head
	start := r.i + 1
	if err := r.head(&h); err != nil {
		return err
	}
	c, why := h.change()
	if why != "" {
		return bad("cannot read the patch: line %d: %s", start, why)
	}
	for _, name := range []string{c.path, c.to} {
		if why := checkName(name); why != "" && (name != "" || c.to != "") {
			return bad("cannot read the patch: line %d: the path %.80q is not usable: %s", start, name, why)
		}
	}
	at, err := r.begin(c)
	if err != nil {
		return err
	}
	at.line = start
	next := 1
	for {
		line, ok := r.peek()
		if !ok || !strings.HasPrefix(line, "@@") {
			break
		}
		if h.new == "" {
			r.i++
			return r.wrong("a hunk stands before the lines \"---\" and \"+++\"")
		}
		hk, err := r.unifiedHunk(&next)
		if err != nil {
			return err
		}
		at.hunks = append(at.hunks, hk)
	}
	if at.op == Update && len(at.hunks) == 0 {
		if at.mode == 0 {
			return bad("cannot read the patch: line %d: %q has no hunk; leave the file out", start, at.path)
		}
		at.op = Mode
	}
	return nil
}

// head reads everything before the first hunk.
func (r *reader) head(h *head) error {
	for {
		line, ok := r.peek()
		if !ok {
			return nil
		}
		key, rest := line, ""
		for _, k := range headers {
			if strings.HasPrefix(line, k) {
				key, rest = k, line[len(k):]
			}
		}
		begun := h.git || h.old != ""
		switch {
		case key == "diff --git " && begun, key == "--- " && h.old != "", key == "@@", strings.TrimSpace(line) == "":
			return nil
		case strings.HasSuffix(line, "\r"):
			r.i++
			return r.wrong("the header ends with a carriage return; end the lines of the patch itself with \\n alone")
		case key == "diff --git ":
			h.git = true
			h.gitOld, h.gitN = gitNames(rest)
		case key == "--- ":
			r.i++
			if h.old = fileName(rest); h.old == "" {
				return r.wrong("there is no path in it")
			}
			next, _ := r.peek()
			r.i++
			if !strings.HasPrefix(next, "+++ ") {
				return r.wrong("\"+++\" is missing behind \"---\"")
			}
			if h.new = fileName(next[len("+++ "):]); h.new == "" {
				return r.wrong("there is no path in it")
			}
			return nil
		case !h.git || !h.set(key, rest):
			if !begun {
				return nil
			}
			r.i++
			return r.wrong("%.60q is not taken in the header of a file", line)
		}
		r.i++
	}
}

var headers = []string{
	"diff --git ", "--- ", "@@", "index ", "old mode ", "new mode ", "new file mode ", "deleted file mode ", "similarity index ",
	"dissimilarity index ", "rename from ", "rename to ",
}

// set takes an extended header of git's. It reports whether it is a known one.
func (h *head) set(key, rest string) bool {
	switch key {
	case "index ", "similarity index ", "dissimilarity index ": // of git's own objects
	case "old mode ":
		h.oldM = rest
	case "new mode ":
		h.newM = rest
	case "new file mode ":
		h.created = rest
	case "deleted file mode ":
		h.deleted, h.oldM = true, rest
	case "rename from ":
		h.from = unquote(rest)
	case "rename to ":
		h.to = unquote(rest)
	default:
		return false
	}
	return true
}

// fileName is the path in a line "---" or "+++": up to a tab, behind which GNU diff writes a time. It is "" if it cannot
// be read.
func fileName(rest string) string {
	if !strings.HasPrefix(rest, `"`) {
		rest, _, _ = strings.Cut(rest, "\t")
	}
	return unquote(strings.TrimSuffix(rest, "\t"))
}

// gitNames splits the two paths of a line "diff --git". Without quotes only equal ones can be told apart.
func gitNames(rest string) (a, b string) {
	if strings.HasPrefix(rest, `"`) {
		if i := strings.Index(rest, `" `); i > 0 {
			a = unquote(rest[:i+1])
			b = unquote(rest[i+2:])
		}
		return a, b
	}
	if n := len(rest); n%2 == 1 && rest[n/2] == ' ' {
		a, b = rest[:n/2], rest[n/2+1:]
		if x, y := strip(a, b); x == y {
			return a, b
		}
	}
	return "", ""
}

// strip takes the prefixes a/ and b/ off if both are there. /dev/null has none.
func strip(a, b string) (string, string) {
	x, okA := strings.CutPrefix(a, "a/")
	y, okB := strings.CutPrefix(b, "b/")
	switch {
	case okA && okB:
		return x, y
	case okA && b == null:
		return x, b
	case okB && a == null:
		return a, y
	}
	return a, b
}

// change is what the header of a file says. why says what is wrong with it.
func (h *head) change() (c change, why string) {
	old, name := strip(h.old, h.new)
	if h.old == "" {
		old, name = strip(h.gitOld, h.gitN)
		switch {
		case h.created != "":
			old = null
		case h.deleted:
			name = null
		}
	}
	mode, why := modes(h.oldM, h.newM, h.created)
	if why != "" {
		return c, why
	}
	c = change{op: Update, path: old, mode: mode}
	switch {
	case h.from != "" || h.to != "":
		if h.from == "" || h.to == "" || h.created != "" || h.deleted {
			return c, "the rename is not whole; give \"rename from\" and \"rename to\""
		}
		if h.old != "" && (old != h.from || name != h.to) {
			return c, fmt.Sprintf("it renames %.80q to %.80q and changes %.80q to %.80q", h.from, h.to, old, name)
		}
		c.op, c.path, c.to = Move, h.from, h.to
	case old == "" || name == "":
		return c, "its path cannot be told from the header; give the lines \"---\" and \"+++\""
	case old == null && name == null:
		return c, "both paths are /dev/null"
	case old == null:
		c.op, c.path = Create, name
	case name == null:
		c.op = Delete
	case old != name:
		return c, fmt.Sprintf("the paths %.80q and %.80q differ; a rename has \"rename from\" and \"rename to\"", old, name)
	}
	if h.created != "" && c.op != Create || h.deleted && c.op != Delete {
		return c, "its header says that the file is new or deleted, and its paths say otherwise"
	}
	return c, ""
}

// modes reads the modes of git's headers. Git has two for files; a symbolic link and a submodule are no files.
func modes(old, changed, created string) (mode fs.FileMode, why string) {
	for _, m := range []string{old, changed, created} {
		switch m {
		case "":
		case "100644":
			mode = 0o644
		case "100755":
			mode = 0o755
		default:
			return 0, fmt.Sprintf("the mode %.20q is not taken; files have 100644 or 100755", m)
		}
	}
	if changed == "" && created == "" {
		mode = 0
	}
	return mode, ""
}

// unifiedHunk reads a hunk with its header. next is the first line of the file that it may begin with.
func (r *reader) unifiedHunk(next *int) (h hunk, err error) {
	line, _ := r.peek()
	r.i++
	if err := r.countHunk(); err != nil {
		return h, err
	}
	old, added, ok := ranges(line)
	if !ok {
		return h, r.wrong("%.60q is no header of a hunk; it looks like \"@@ -3,5 +3,6 @@\"", line)
	}
	h = hunk{line: r.i, at: old.start, numbered: true}
	if old.count == 0 {
		h.at++ // a range without lines stands behind its number
	}
	if h.at < *next {
		return h, r.wrong("the hunk begins before the end of the one before; put hunks in their order, without overlap")
	}
	*next = h.at + old.count
	for old.count > 0 || added.count > 0 {
		if r.i >= len(r.lines) {
			return h, r.short(h.line, old, added)
		}
		text := r.lines[r.i]
		if !bytes.HasSuffix(text, []byte("\n")) {
			text = append(bytes.Clone(text), '\n') // the end of the patch is not that of the file
		}
		op := text[0]
		switch {
		case op == '\n': // a line without anything, as editors leave it
			op = ' '
		case op == ' ' || op == '-' || op == '+':
			text = text[1:]
		case op == '\\' && len(h.rows) > 0:
			if err := r.noNewline(&h); err != nil {
				return h, err
			}
			continue
		default:
			return h, r.short(h.line, old, added)
		}
		if op != '+' {
			old.count--
		}
		if op != '-' {
			added.count--
		}
		if old.count < 0 || added.count < 0 {
			return h, r.short(h.line, old, added)
		}
		r.i++
		h.rows = append(h.rows, row{op, text})
	}
	if next, ok := r.peek(); ok && strings.HasPrefix(next, `\`) && len(h.rows) > 0 {
		if err := r.noNewline(&h); err != nil {
			return h, err
		}
	}
	return h, h.check()
}

// short is the error for a hunk whose lines are not those that its header counts.
func (r *reader) short(start int, old, added span) error {
	r.i++
	return r.wrong("the hunk of line %d does not have the lines that its header counts: %d old and %d new ones are missing here", start,
		old.count, added.count)
}

// noNewline takes a line "\ No newline at end of file", which is about the line before.
func (r *reader) noNewline(h *hunk) error {
	r.i++
	last := &h.rows[len(h.rows)-1]
	if !bytes.HasSuffix(last.text, []byte("\n")) {
		return r.wrong("a second line that begins with a backslash")
	}
	last.text = bytes.TrimSuffix(last.text, []byte("\n"))
	return nil
}

// check looks at what a hunk says as a whole.
func (h *hunk) check() error {
	changes := false
	for _, r := range h.rows {
		changes = changes || r.op != ' '
	}
	if !changes {
		return bad("cannot read the patch: line %d: the hunk changes nothing; leave it out", h.line)
	}
	for _, side := range []byte("-+") {
		lines := h.side(side)
		for i, l := range lines {
			if !bytes.HasSuffix(l, []byte("\n")) && i < len(lines)-1 {
				return bad("cannot read the patch: line %d: a line of the hunk is the last of the file, and another follows", h.line)
			}
		}
	}
	return nil
}

type span struct{ start, count int }

// ranges reads "@@ -1,2 +3,4 @@", behind which anything may stand.
func ranges(line string) (old, added span, ok bool) {
	rest, ok := strings.CutPrefix(line, "@@ -")
	if !ok {
		return old, added, false
	}
	a, rest, ok1 := strings.Cut(rest, " +")
	b, rest, ok2 := strings.Cut(rest, " @@")
	if !ok1 || !ok2 || rest != "" && rest[0] != ' ' {
		return old, added, false
	}
	old, ok1 = parseSpan(a)
	added, ok2 = parseSpan(b)
	return old, added, ok1 && ok2
}

func parseSpan(s string) (p span, ok bool) {
	start, count, has := strings.Cut(s, ",")
	if !has {
		count = "1"
	}
	var ok1, ok2 bool
	p.start, ok1 = decimal(start)
	p.count, ok2 = decimal(count)
	return p, ok1 && ok2 && (p.start > 0 || p.count == 0)
}

// decimal reads digits alone, up to the number of lines that a file may have.
func decimal(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n <= MaxSize+1 && strings.Trim(s, "0123456789") == "" && len(s) <= 8
}
