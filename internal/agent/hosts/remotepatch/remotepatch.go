// Package remotepatch changes files of a remote host by a patch: it has the files read there, has package patch compute what they
// would be, and has the change made by a shell of that host, all files or none.
//
// It must not reach a host itself, or decide whether a change is wanted. What a host says is another party's word.
package remotepatch

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/patch"
	"github.com/carrel-dev/carrel/internal/spec/tools"
)

// Bounds, in bytes but for the last two. maxText is those of what a host says beside the contents of files.
const (
	maxFile  = patch.MaxSize
	maxTotal = 12 << 20
	maxText  = 1 << 20
	// MaxOutput is how much of what the script prints a Run must keep.
	MaxOutput  = maxTotal + maxText
	maxChanges = 1000
	maxPaths   = 20_000
)

// Run runs a program on the host, as the caller's user there, with an input, and returns its output if it ended with status 0.
// The error has what it said.
type Run func(ctx context.Context, argv []string, input []byte) ([]byte, error)

// command is what is run for a verb.
func command(verb string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", script, "carrel-patch", verb}, args...)
}

// Do computes a change to files of the host, or makes it if it is still exactly the one that was computed. A file that changed meanwhile
// is merged if what was shown of it is all still there, as patch.Do does; seen has what the files were, nil for nothing. Before, what an
// earlier change left half done there is taken back.
func Do(ctx context.Context, run Run, seen *Seen, host string, w patch.Wanted) (out patch.Done, err error) {
	names, err := w.Names()
	if err != nil {
		return out, err
	}
	text, err := run(ctx, command("read", tools.Roots...), []byte(strings.Join(names, "\n")+"\n"))
	if err != nil {
		return out, fmt.Errorf("cannot read the files: %w", err)
	}
	dir, own, found, err := parse(text, names)
	if err != nil {
		return out, err
	}
	not := []string{"/proc", "/sys", "/dev", own}
	p, err := patch.Elsewhere(ctx, dir, not, w, found)
	if w.Digest == "" {
		if err != nil {
			return out, err
		}
		if out, err = p.Shown(); err == nil {
			seen.keep(host, w, found)
		}
		return out, err
	}
	was := seen.take(host, w)
	if err == nil && p.Digest() != w.Digest {
		err = fmt.Errorf("propose it anew: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil && was != nil {
		if p, out.Merged, err = patch.MergeElsewhere(ctx, dir, not, w, was, found); err == nil {
			out.Made = p.Digest()
		}
	}
	if err != nil {
		return out, fmt.Errorf("cannot change the files: one of them has changed since the plan was shown: %w", err)
	}
	out.Digest = w.Digest
	input, err := send(p.Changes())
	if err != nil {
		return out, err
	}
	id := patch.NewID()
	text, err = run(ctx, command("apply", id), input)
	return made(out, id, text, err)
}

// made is a change that was made, if the host says so.
func made(out patch.Done, id string, text []byte, err error) (patch.Done, error) {
	if err == nil && !bytes.HasSuffix(text, []byte("made "+id+"\n")) {
		err = fmt.Errorf("the host does not say that it was made: %w", errdefs.ErrUnavailable)
	}
	if err != nil {
		return out, fmt.Errorf("cannot change the files: %w; what was begun there is taken back at once, or by the next change there or "+
			"\"carrel undo --remote NAME\"", err)
	}
	out.ID = id
	return out, nil
}

// send is the input of apply: how many names, two lines for each, and the new contents one after the other.
func send(all []patch.Change) ([]byte, error) {
	var head, body bytes.Buffer
	fmt.Fprintln(&head, len(all))
	for _, c := range all {
		mode, from := "-", "-"
		if c.Mode != nil {
			mode = strconv.FormatUint(uint64(*c.Mode), 8)
			if c.Masked {
				mode = "m" + mode
			}
		}
		if c.From >= 0 {
			from = strconv.Itoa(c.From)
		}
		none := func(s string) string {
			if s == "" {
				return "-"
			}
			return s
		}
		fmt.Fprintf(&head, "%s %s %s %s %d %s\n%s\n", c.Action, none(c.Old), none(c.New), mode, len(c.Content), from, c.Path)
		body.Write(c.Content)
		if body.Len() > maxTotal {
			return nil, fmt.Errorf("cannot change the files: together they would have more than %d bytes; change less at once: %w", maxTotal,
				errdefs.ErrInvalidArgument)
		}
	}
	return append(head.Bytes(), body.Bytes()...), nil
}

// parse reads what the verb read prints: "recovered" lines, the directory that relative paths are relative to and that of the
// changes, and for each path "absent", "refused WHY", or "file MODE SIZE", the content and a newline. "end" is the last line.
func parse(text []byte, names []string) (dir, own string, found map[string]patch.Found, err error) {
	r := &reader{text: text}
	dir, own = r.directory(), r.directory()
	found = map[string]patch.Found{}
	for _, name := range names {
		word, rest, _ := strings.Cut(r.line(), " ")
		is := patch.Found{}
		switch word {
		case "absent":
			is.Absent = true
		case "refused":
			is.Why = fmt.Sprintf("%.200s", strings.ToValidUTF8(rest, "\uFFFD"))
		case "file":
			mode, size, _ := strings.Cut(rest, " ")
			bits, err1 := strconv.ParseUint(mode, 8, 32)
			n, err2 := strconv.Atoi(size)
			if err1 != nil || err2 != nil || bits > 0o777 || n < 0 || n > maxFile {
				r.bad = true
			}
			is.Mode, is.Content = uint32(bits), r.bytes(n)
		default:
			r.bad = true
		}
		found[patch.Absolute(dir, name)] = is
	}
	if r.line() != "end" || len(r.text) > 0 || r.bad {
		return "", "", nil, unreadable(text)
	}
	return dir, own, found, nil
}

func unreadable(text []byte) error {
	return fmt.Errorf("cannot use what the host says of its files: the %d bytes are no answer to what was asked, or a file changed while it "+
		"was read: %w", len(text), errdefs.ErrUnavailable)
}

// reader takes an output apart. Once something is wrong it returns nothing more.
type reader struct {
	text []byte
	bad  bool
}

func (r *reader) line() string {
	line, rest, ok := bytes.Cut(r.text, []byte("\n"))
	if !ok || r.bad {
		r.bad = true
		return ""
	}
	r.text = rest
	return string(line)
}

// directory reads a line with a directory, behind those that say what was taken back.
func (r *reader) directory() string {
	line := r.line()
	for strings.HasPrefix(line, "recovered ") {
		line = r.line()
	}
	dir, ok := strings.CutPrefix(line, "dir ")
	if !ok || !path.IsAbs(dir) || path.Clean(dir) != dir {
		r.bad = true
		return "/"
	}
	return dir
}

// bytes reads a content and the newline behind it.
func (r *reader) bytes(n int) []byte {
	if r.bad || n < 0 || n >= len(r.text) || r.text[n] != '\n' {
		r.bad = true
		return nil
	}
	b := r.text[:n:n]
	r.text = r.text[n+1:]
	return b
}

// Undo undoes a change: all files, or none if one has changed since. The id that it returns undoes the undoing.
func Undo(ctx context.Context, run Run, id string) (string, error) {
	if !patch.IsID(id) {
		return "", fmt.Errorf("cannot undo %.40q: it is not the id of a change: %w", id, errdefs.ErrInvalidArgument)
	}
	undoing := patch.NewID()
	text, err := run(ctx, command("undo", undoing, id), nil)
	if err == nil && !bytes.HasSuffix(text, []byte("made "+undoing+"\n")) {
		err = fmt.Errorf("the host does not say that it was undone: %w", errdefs.ErrUnavailable)
	}
	if err != nil {
		return "", fmt.Errorf("cannot undo %s: %w", id, err)
	}
	return undoing, nil
}

// Records lists the changes that can be undone, those that were undone included.
func Records(ctx context.Context, run Run) (all []patch.Record, err error) {
	text, err := run(ctx, command("list"), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot list the changes: %w", err)
	}
	r := &reader{text: text}
	paths := 0
	for line := r.line(); line != "end" && line != "more" && !r.bad; line = r.line() {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "recovered "):
		case len(f) == 3 && f[0] == "change" && patch.IsID(f[1]) && len(all) < maxChanges:
			all = append(all, patch.Record{ID: f[1], Undone: f[2] == "undone", Conflict: f[2] == "conflict"})
		case path.IsAbs(line) && len(all) > 0 && paths < maxPaths:
			paths++
			last := &all[len(all)-1]
			last.Places = append(last.Places, line)
		default:
			r.bad = true
		}
	}
	if r.bad {
		return nil, unreadable(text)
	}
	return all, nil
}
