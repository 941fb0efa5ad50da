// Package program works on the files of a workspace, inside and with the rights of its commands: one request, and
// the process ends. Commands may change every name meanwhile, so that it acts by descriptors (package filetree)
// below an os.Root, and reads and writes regular files only.
//
// It must not run before archive.TakeFileID, and it keeps nothing from one request to the next.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// memory is a soft limit of the heap, and processors bounds the threads: both count against the workspace.
const (
	memory     = 48 << 20
	processors = 2
)

// Run serves the request that in begins with, and writes its answer to out. What the request sends or takes goes over
// direct, if it says so. It returns the exit status, which is 0 where the answer is whole, whatever it says.
func Run(ctx context.Context, in io.Reader, out io.Writer, direct io.ReadWriter) int {
	debug.SetMemoryLimit(memory)
	runtime.GOMAXPROCS(processors)
	unix.Umask(0)
	return Serve(ctx, "/", in, out, direct)
}

// Serve is Run with another directory in the place of "/".
func Serve(ctx context.Context, root string, in io.Reader, out io.Writer, direct io.ReadWriter) int {
	s := &served{ctx: ctx, frames: &fileapi.Reader{R: in}, out: &fileapi.Writer{W: out}, direct: direct, rootPath: root}
	s.data = s.out
	defer s.close()
	err := s.run()
	if err != nil {
		s.res.Error, s.res.Kind = errtext.Text(err), kindOf(err)
	}
	if s.out.JSON(fileapi.Finished, &s.res) != nil {
		return 1
	}
	return 0
}

// served is one request.
type served struct {
	ctx    context.Context
	frames *fileapi.Reader
	out    *fileapi.Writer
	// data is where what is read goes: out, or direct.
	data     *fileapi.Writer
	direct   io.ReadWriter
	rootPath string
	req      fileapi.Request
	res      fileapi.Result
	roots    []*os.Root
}

func (s *served) close() {
	for _, r := range s.roots {
		r.Close()
	}
}

var operations = map[fileapi.Op]func(*served) error{
	fileapi.Read: (*served).read, fileapi.Write: (*served).write, fileapi.List: (*served).list, fileapi.Stat: (*served).stat,
	fileapi.Mkdir: (*served).mkdir, fileapi.Move: (*served).move, fileapi.Remove: (*served).remove, fileapi.Pack: (*served).pack,
	fileapi.Unpack: (*served).unpack, fileapi.Search: (*served).search, fileapi.Watch: (*served).watch, fileapi.Changes: (*served).changes,
	fileapi.Patch: (*served).patch, fileapi.Undo: (*served).undo, fileapi.Patches: (*served).patches,
}

func (s *served) run() error {
	kind, payload, err := s.frames.Next()
	if err != nil {
		return fmt.Errorf("cannot read the request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if kind != fileapi.Asked {
		return fmt.Errorf("cannot read the request: a frame of kind %q came first: %w", byte(kind), errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(payload, &s.req); err != nil {
		return fmt.Errorf("cannot read the request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := s.req.Validate(); err != nil {
		return err
	}
	f := operations[s.req.Op]
	if f == nil {
		return fmt.Errorf("cannot do %q with files: there is no such operation: %w", s.req.Op, errdefs.ErrInvalidArgument)
	}
	if !s.req.Direct {
		return f(s)
	}
	return s.directly(f)
}

// place is where a path leads: a name below the home or below the root, which no link leads out of.
type place struct {
	root *os.Root
	// name is relative to root, "." for root itself.
	name string
	// shown is how people write it.
	shown string
	home  bool
}

// locate finds the place of a path. ".." is taken off before anything is looked up, and does not lead out of the
// home.
func (s *served) locate(raw []byte) (place, error) {
	p := string(raw)
	rel := ""
	switch {
	case p == "" || p == "~":
		rel = "."
	case strings.HasPrefix(p, "~/"):
		rel = p[2:]
	case !strings.HasPrefix(p, "/"):
		rel = p
	}
	if rel != "" {
		rel = path.Clean(rel)
		if rel == ".." || strings.HasPrefix(rel, "../") || strings.HasPrefix(rel, "/") {
			return place{}, fmt.Errorf("cannot use the path %q: it leads out of the home; say the whole path, from / on: %w", p,
				errdefs.ErrInvalidArgument)
		}
		return s.below(s.req.Home, rel, p, true)
	}
	clean := path.Clean(p)
	if clean == s.req.Home {
		return s.below(s.req.Home, ".", p, true)
	}
	if in, ok := strings.CutPrefix(clean, s.req.Home+"/"); ok && s.req.Home != "" {
		return s.below(s.req.Home, in, p, true)
	}
	for _, not := range kernels {
		if clean == "/"+not || strings.HasPrefix(clean, "/"+not+"/") {
			return place{}, notServed(p)
		}
	}
	if clean = clean[1:]; clean == "" {
		clean = "."
	}
	return s.below("", clean, p, false)
}

func notServed(p string) error {
	return fmt.Errorf("cannot use %q: what the kernel shows as files is not served; run a command for it: %w", p, errdefs.ErrPermissionDenied)
}

func (s *served) below(root, name, shown string, home bool) (place, error) {
	r, err := os.OpenRoot(path.Join(s.rootPath, root))
	if err != nil {
		return place{}, s.explain("open", shown, err)
	}
	s.roots = append(s.roots, r)
	if shown == "" {
		shown = "~"
	}
	return place{r, name, shown, home}, nil
}

// dir opens a directory below a place's root, through links that stay there.
func (s *served) dir(p place, name string) (*filetree.Dir, error) {
	f, err := p.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, err := filetree.Hold(f)
	if err != nil {
		return nil, err
	}
	if err := ordinary(d, p.shown); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// parent opens the directory that a place is in, and returns its name there. The last name is not followed.
func (s *served) parent(p place) (*filetree.Dir, string, error) {
	if p.name == "." {
		return nil, "", fmt.Errorf("cannot %s %s: it is the top, which stays as it is; name something in it: %w", s.req.Op, p.shown,
			errdefs.ErrInvalidArgument)
	}
	d, err := s.dir(p, path.Dir(p.name))
	return d, path.Base(p.name), err
}

// ordinary refuses what the kernel makes up: in there names mean the process that looks, which has other ids
// than the commands have.
func ordinary(d *filetree.Dir, shown string) error {
	is, err := d.MadeUp()
	if err == nil && is {
		err = notServed(shown)
	}
	return err
}

func ordinaryFile(f *os.File, shown string) error {
	d, err := filetree.Hold(f)
	if err != nil {
		return err
	}
	defer d.Close()
	return ordinary(d, shown)
}

// reasons are what errors of the system mean for people, with their kinds.
var reasons = []struct {
	is   error
	kind error
	text string
}{
	{unix.ENOSPC, errdefs.ErrResourceExhausted, "the disk is full: remove files, or have it made larger"},
	{unix.EDQUOT, errdefs.ErrResourceExhausted, "the disk limit is used up: remove files, or raise it with \"carrel update --disk\""},
	{unix.EFBIG, errdefs.ErrResourceExhausted, "a file may not be that long here"},
	{unix.EMFILE, errdefs.ErrResourceExhausted, "too many files are open in the workspace: raise its limit of open files"},
	{unix.EROFS, errdefs.ErrFailedPrecondition, "it is read-only here: choose another place"},
	{unix.EEXIST, errdefs.ErrAlreadyExists, "there is something with this name: remove it first, or choose another name"},
	{unix.ENOTEMPTY, errdefs.ErrFailedPrecondition, "the directory is not empty: remove it with what is in it (recursive)"},
	{unix.EISDIR, errdefs.ErrFailedPrecondition, "it is a directory: name a file in it"},
	{unix.ENOTDIR, errdefs.ErrFailedPrecondition, "a name on the way is no directory: look with \"carrel files ls\""},
	{unix.EXDEV, errdefs.ErrFailedPrecondition, "it would go to another file system: copy it, and remove it here"},
	{unix.EBUSY, errdefs.ErrFailedPrecondition, "it is in use, or something is mounted there"},
	{unix.ELOOP, errdefs.ErrFailedPrecondition, "there are too many links on the way, or they lead in a circle"},
	{unix.ENAMETOOLONG, errdefs.ErrInvalidArgument, "a name has more than 255 bytes, or the path more than 4095"},
	{unix.EINVAL, errdefs.ErrInvalidArgument, "that cannot be done with it"},
	{fs.ErrNotExist, errdefs.ErrNotFound, "there is none: look with \"carrel files ls\""},
	{fs.ErrPermission, errdefs.ErrPermissionDenied, "the workspace's own user may not"},
	{filetree.ErrIrregular, errdefs.ErrFailedPrecondition, "it is no regular file: FIFOs, sockets and devices are for commands"},
	{filetree.ErrLimit, errdefs.ErrResourceExhausted, "copy a part of it at a time"},
	{filetree.ErrName, errdefs.ErrInvalidArgument, "leave it out, or choose another destination"},
	{filetree.ErrStream, errdefs.ErrInvalidArgument, "send a whole tar stream, not compressed"},
	{io.ErrUnexpectedEOF, errdefs.ErrAborted, "it was broken off, and what was there stays"},
}

// missing is what is not there where something was to be made.
var missing = map[fileapi.Op]string{
	fileapi.Write: "the directory that it is to be in", fileapi.Mkdir: "the directory that it is to be in", fileapi.Unpack: "the directory",
}

// explain says what has become of an operation on a path.
func (s *served) explain(verb, p string, err error) error {
	if err == nil {
		return nil
	}
	if errdefs.IsInvalidArgument(err) || errdefs.IsPermissionDenied(err) || errdefs.IsResourceExhausted(err) ||
		errdefs.IsFailedPrecondition(err) {
		return err
	}
	if p == "" {
		p = "~"
	}
	for _, r := range reasons {
		if errors.Is(err, r.is) {
			what, text := "", r.text
			if !isErrno(err) {
				what = err.Error() + ": "
			}
			if missing := missing[s.req.Op]; errors.Is(r.is, fs.ErrNotExist) && missing != "" {
				text = missing + " is not there: make it first"
			}
			return fmt.Errorf("cannot %s %q: %s%s: %w", verb, p, what, text, r.kind)
		}
	}
	if strings.Contains(err.Error(), "path escapes from parent") { // package os has no name for it
		return fmt.Errorf("cannot %s %q: a link on the way leads out of the home, or from / on; name where it leads instead: %w", verb, p,
			errdefs.ErrPermissionDenied)
	}
	return fmt.Errorf("cannot %s %q: %w: %w", verb, p, err, errdefs.ErrUnknown)
}

// isErrno reports whether an error says no more than the system does about the path that was asked for.
func isErrno(err error) bool {
	if _, ok := err.(unix.Errno); ok { //nolint:errorlint // nothing is wrapped around it
		return true
	}
	if _, ok := errors.AsType[unix.Errno](err); !ok {
		return errors.Is(err, filetree.ErrIrregular)
	}
	_, plain := errors.AsType[*fs.PathError](err)
	return plain && strings.Count(err.Error(), ": ") <= 1
}

func kindOf(err error) string {
	for _, k := range []struct {
		is   func(error) bool
		word string
	}{
		{errdefs.IsNotFound, "not_found"},
		{errdefs.IsAlreadyExists, "already_exists"},
		{errdefs.IsResourceExhausted, "resource_exhausted"},
		{errdefs.IsInvalidArgument, "invalid_argument"},
		{errdefs.IsFailedPrecondition, "failed_precondition"},
		{errdefs.IsPermissionDenied, "permission_denied"},
		{errdefs.IsAborted, "aborted"},
	} {
		if k.is(err) {
			return k.word
		}
	}
	return "unknown"
}

var typeWords = map[fs.FileMode]string{
	0: "file", fs.ModeDir: "directory", fs.ModeSymlink: "link", fs.ModeNamedPipe: "fifo", fs.ModeSocket: "socket",
}

func typeWord(m fs.FileMode) string {
	if word, ok := typeWords[m.Type()]; ok {
		return word
	}
	return "device"
}

func entryOf(i filetree.Info, p string) fileapi.Entry {
	word := typeWord(i.Mode)
	e := fileapi.Entry{Path: []byte(p), Type: word, Mode: uint32(i.Mode.Perm()), MTimeNS: i.MTime.UnixNano(), Target: []byte(i.Target)}
	if word == "file" || word == "link" {
		e.Size = i.Size
	}
	return e
}
