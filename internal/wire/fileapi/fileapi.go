// Package fileapi has the messages between the daemon and the program that works on the files of a workspace,
// carrel-archive files, and how they are framed. docs/protocols/files.md describes them.
//
// It must not read or write any file.
package fileapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/containerd/errdefs"
)

// One request, one process:
//
//	carreld                                             carrel-archive files
//	│ request {"op":"write","path":…}                     │
//	├────────────────────────────────────────────────────►│
//	│ data …, end                        (write, unpack)  │
//	├────────────────────────────────────────────────────►│
//	│ entry {…} | data … | progress {…}                   │
//	│◄────────────────────────────────────────────────────┤
//	│ result {"bytes":…,"entries":…,"error":…,"kind":…}   │
//	│◄────────────────────────────────────────────────────┤ and the process ends
//
// With "direct", data and end of both directions are on the program's stderr, a socket whose other end a client of the
// daemon's host has, and the answer has a progress at least every second while they move.
//
// A frame is its kind, one byte, the length of what follows, four bytes, the highest first, and that. A stream
// that ends before "end" or "result" was broken off: what was being written is given up.

// Kind is what a frame is.
type Kind byte

// The kinds.
const (
	Asked    Kind = 'r' // a Request, the first frame
	Data     Kind = 'd'
	End      Kind = 'z' // no more data: what was sent is whole
	Entries  Kind = 'e' // a list of Entry
	Changed  Kind = 'c' // Events
	Moved    Kind = 'p' // a Progress
	Finished Kind = 's' // a Result, the last frame
)

const (
	// MaxFrame bounds a frame, in bytes without its head.
	MaxFrame = 512 << 10
	// Piece is how much data goes into one.
	Piece = 128 << 10
	// MaxPath bounds a path in bytes, as the kernel does.
	MaxPath = 4095
	// MaxEntries bounds the entries of one listing, and MaxDepth how deep it goes.
	MaxEntries, MaxDepth = 10_000, 64
	// MaxMatches bounds what one search finds.
	MaxMatches = 1000
	// MaxPattern bounds a pattern of names and a regular expression, in bytes.
	MaxPattern = 1 << 10
)

// Op is what is to be done.
type Op string

// The operations.
const (
	Read   Op = "read"
	Write  Op = "write"
	List   Op = "list"
	Stat   Op = "stat"
	Mkdir  Op = "mkdir"
	Move   Op = "move"
	Remove Op = "remove"
	Pack   Op = "pack"
	Unpack Op = "unpack"
	Search Op = "search"
	Watch  Op = "watch"
	// Changes lists what was changed below a directory since a moment, by what it may do to whoever uses the files.
	Changes Op = "changes"
	// Patch computes a change to files or makes it, Undo undoes one, and Patches lists those that were made. Each first finishes or
	// takes back what an earlier process left half done.
	Patch   Op = "patch"
	Undo    Op = "undo"
	Patches Op = "patches"
)

// Request is one operation. Paths are bytes, as the kernel's are: relative ones are in the home, "~" is the home.
type Request struct {
	Op   Op     `json:"op"`
	Home string `json:"home"`
	Path []byte `json:"path"`
	// To is where Move moves, and what Pack calls the root of the stream: empty is its name.
	To []byte `json:"to,omitempty"`

	// Offset and Length are the part of a file that is read; a length of 0 is to its end.
	Offset int64 `json:"offset,omitempty"`
	Length int64 `json:"length,omitempty"`
	// Mode has permission bits; without, what is there keeps its own, and what is new has 0644 or 0755.
	Mode *uint32 `json:"mode,omitempty"`
	// Parents has missing directories above made.
	Parents bool `json:"parents,omitempty"`
	// Keep refuses to replace what is there; Recursive removes what is in a directory.
	Keep      bool `json:"keep,omitempty"`
	Recursive bool `json:"recursive,omitempty"`
	// Follow has Stat follow a link.
	Follow bool `json:"follow,omitempty"`
	// Depth is how deep a listing goes, 1 being the directory's own entries, and After its last entry on the
	// page before. Limit bounds the entries or matches.
	Depth int    `json:"depth,omitempty"`
	Limit int    `json:"limit,omitempty"`
	After []byte `json:"after,omitempty"`
	// Name is a pattern of names as of path.Match, and Text a regular expression of RE2's, for Search.
	Name string `json:"name,omitempty"`
	Text string `json:"text,omitempty"`
	// SinceNS is the moment since which Changes lists, Unix time in nanoseconds.
	SinceNS int64 `json:"since_ns,omitempty"`
	// Direct has data come and go over the program's third descriptor, and not with the request and the answer.
	Direct bool `json:"direct,omitempty"`
	// Change says what Patch does with the text that follows, and ID is the change that Undo undoes.
	Change *Change `json:"change,omitempty"`
	ID     string  `json:"id,omitempty"`
}

// Change is what is done with the text of a patch, as of package patch.
type Change struct {
	// Modes are permission bits and Only the files that are meant, by the paths of the text.
	Modes map[string]uint32 `json:"modes,omitempty"`
	Only  []string          `json:"only,omitempty"`
	// Digest is "" to compute what would be done. Otherwise it is done if that is exactly this.
	Digest string `json:"digest,omitempty"`
}

// Patched is a change that was computed, made or undone, as of package patch.
type Patched struct {
	Digest string      `json:"digest,omitempty"`
	Diff   string      `json:"diff,omitempty"`
	Parts  []PatchPart `json:"parts,omitempty"`
	ID     string      `json:"id,omitempty"`
	Merged []string    `json:"merged,omitempty"`
	Made   string      `json:"made,omitempty"`
}

// PatchPart is what a change does to one file.
type PatchPart struct {
	Path   string   `json:"path"`
	Digest string   `json:"digest"`
	Shown  int      `json:"shown"`
	Files  []string `json:"files"`
	Risks  []string `json:"risks,omitempty"`
}

// PatchRecord is a change that is kept. State is "done", "undone" or "conflict".
type PatchRecord struct {
	ID     string   `json:"id"`
	State  string   `json:"state"`
	Undoes string   `json:"undoes,omitempty"`
	Files  []string `json:"files"`
}

// The states of a PatchRecord. One in conflict was taken back, but for files that something else had changed.
const (
	PatchDone     = "done"
	PatchUndone   = "undone"
	PatchConflict = "conflict"
)

// Entry is one name. Path is relative to what was listed.
type Entry struct {
	Path []byte `json:"path"`
	// Type is file, directory, link, fifo, socket or device.
	Type string `json:"type"`
	Mode uint32 `json:"mode"` // permission bits
	Size int64  `json:"size,omitempty"`
	// MTimeNS is Unix time in nanoseconds.
	MTimeNS int64  `json:"mtime_ns"`
	Target  []byte `json:"target,omitempty"` // of a link
	// Line and Text are where and what a search has found, the text cut.
	Line int64  `json:"line,omitempty"`
	Text []byte `json:"text,omitempty"`
	// Kind says why a change should be looked at, as of package changed. Reader is the program that acts on the file, and Trigger when.
	Kind    string `json:"kind,omitempty"`
	Reader  string `json:"reader,omitempty"`
	Trigger string `json:"trigger,omitempty"`
}

// Event is something that has happened to a name below a directory that is watched.
type Event struct {
	Path []byte `json:"path"`
	// What is create, write, remove, attributes or overflow, which says that events were lost, so that all has to
	// be looked at again.
	What string `json:"what"`
	Dir  bool   `json:"dir,omitempty"`
}

// Progress is how far a stream is.
type Progress struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// Result is how it ended.
type Result struct {
	Progress

	// Truncated: there is more than was asked for, or than the bounds allow.
	Truncated bool `json:"truncated,omitempty"`
	// Skipped counts what was left out, First is the first of it and Why the reason.
	Skipped int64  `json:"skipped,omitempty"`
	First   []byte `json:"first,omitempty"`
	Why     string `json:"why,omitempty"`
	// Changed counts files that became shorter while they were read.
	Changed int64 `json:"changed,omitempty"`
	// File is what was read, written or looked at.
	File *Entry `json:"file,omitempty"`
	// Patched is what Patch and Undo did, and Patches those that Patches lists. Recovered says what became of changes that an
	// earlier process had left half done.
	Patched   *Patched      `json:"patched,omitempty"`
	Patches   []PatchRecord `json:"patches,omitempty"`
	Recovered []string      `json:"recovered,omitempty"`
	// Error and Kind say why it failed; Kind is the name of one of errdefs' kinds.
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"`
}

// Validate says what is wrong with a request.
func (r *Request) Validate() error {
	for _, p := range [][]byte{r.Path, r.To, r.After} {
		if len(p) > MaxPath {
			return bad("the path has more than %d bytes", MaxPath)
		}
		if slices.Contains(p, 0) {
			return bad("the path has a byte 0, which no name can have")
		}
	}
	switch {
	case r.Offset < 0 || r.Length < 0:
		return bad("offset and length are not to be negative")
	case r.Mode != nil && *r.Mode > 0o777:
		return bad("the mode %#o is more than 0777; bits that set ids are not given", *r.Mode)
	case r.Depth < 0 || r.Depth > MaxDepth:
		return bad("the depth is not in 0 to %d", MaxDepth)
	case r.Limit < 0 || r.Limit > MaxEntries:
		return bad("the limit is not in 0 to %d", MaxEntries)
	case len(r.Name) > MaxPattern || len(r.Text) > MaxPattern:
		return bad("the pattern has more than %d bytes", MaxPattern)
	case r.SinceNS < 0:
		return bad("the moment is before 1970")
	case len(r.ID) > MaxPattern:
		return bad("the id of a change has more than %d bytes", MaxPattern)
	}
	return nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("cannot work on files: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// headSize is how long the head of a frame is, in bytes. front is how far behind the beginning of a Writer's buffer the rest
// lies: the kernel copies more slowly to a place that is not aligned.
const headSize, front = 5, 64

// Writer writes frames. It is not for several goroutines at once.
type Writer struct {
	W   io.Writer
	buf []byte
}

// Send writes one frame.
func (w *Writer) Send(k Kind, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("a frame of %d bytes is longer than %d: %w", len(payload), MaxFrame, errdefs.ErrInternal)
	}
	copy(w.Room(len(payload)), payload)
	return w.SendRoom(k, len(payload))
}

// Room returns n bytes that SendRoom sends without copying them. They are the caller's until the next frame is written.
func (w *Writer) Room(n int) []byte {
	if cap(w.buf) < front+n {
		w.buf = make([]byte, front+n)
	}
	return w.buf[front : front+n]
}

// SendRoom writes one frame with the first n bytes of what Room returned last, which had as many.
func (w *Writer) SendRoom(k Kind, n int) error {
	b := w.buf[front-headSize : front+n]
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	_, err := w.W.Write(b)
	return err
}

// JSON writes a frame with a value.
func (w *Writer) JSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Send(k, b)
}

// Write sends data.
func (w *Writer) Write(p []byte) (n int, err error) {
	for n < len(p) {
		piece := p[n:min(n+Piece, len(p))]
		if err := w.Send(Data, piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// Reader reads frames.
type Reader struct {
	R   io.Reader
	buf []byte
}

// Next returns the next frame, which is valid until the one after. io.EOF: none follows.
func (r *Reader) Next() (Kind, []byte, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r.R, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes is longer than %d: %w", n, MaxFrame, errdefs.ErrDataLoss)
	}
	if cap(r.buf) < int(n) {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.R, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(head[0]), b, nil
}

// Body is the data of a stream of frames up to End. A stream that ends before is io.ErrUnexpectedEOF.
type Body struct {
	Frames *Reader
	rest   []byte
	ended  bool
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if err := b.fill(); err != nil {
		return 0, err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// WriteTo implements io.WriterTo: a frame is written from where it was read to.
func (b *Body) WriteTo(w io.Writer) (total int64, err error) {
	for {
		if err := b.fill(); errors.Is(err, io.EOF) {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := w.Write(b.rest)
		b.rest = b.rest[n:]
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// fill has something to read, or returns why there is nothing; io.EOF is the end.
func (b *Body) fill() error {
	for len(b.rest) == 0 {
		if b.ended {
			return io.EOF
		}
		k, payload, err := b.Frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case k == End:
			b.ended = true
		case k == Data:
			b.rest = payload
		default:
			return fmt.Errorf("a frame of kind %q is in the way: %w", byte(k), errdefs.ErrDataLoss)
		}
	}
	return nil
}

// MaxListed bounds the paths, link targets and lines of one listing or search together, in bytes: more are cut off, and
// the result says so.
const MaxListed = 4 << 20

// Weigh is what an entry takes of MaxListed.
func (e *Entry) Weigh() int {
	return len(e.Path) + len(e.Target) + len(e.Text) + len(e.Kind) + len(e.Reader) + len(e.Trigger) + 64
}

// Streams are what goes in and out beside a request and its result. Each is needed by the operations that have it.
type Streams struct {
	// Socket, if set, takes the place of In and Out: a Unix stream socket over which the program and whoever has the other end
	// send Data and End. It is closed by whoever made it.
	Socket *os.File
	// In is what Write and Unpack take: io.EOF says that it is whole. Its Close ends a Read that waits.
	In io.ReadCloser
	// Out gets what Read and Pack give.
	Out io.Writer
	// Entries gets what List, Search and Changes find, Events what Watch sees, and Progress how far Unpack is.
	Entries  func([]Entry) error
	Events   func([]Event) error
	Progress func(Progress)
}
