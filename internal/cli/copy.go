package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/linux/filetree"
)

func (a *app) copyCommand() *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "Copy files and directories to and from workspaces",
		Long: `Copy between this host and a workspace, or between two. One of SRC and DST, or both, is
WORKSPACE:PATH. A path of this host that has a colon begins with ./ or /.

  a file         goes into the directory DST; where that is none, it becomes DST
  a directory    goes into the directory DST, or as SRC/. what is in it does;
                 if there is no DST, it becomes DST
  - as SRC       a tar stream from stdin is unpacked below the directory DST
  - as DST       SRC goes to stdout as a tar stream

Directories that are there keep what else is in them; files replace what has their names.
Modes and times are kept, and links are links, which are followed nowhere. Devices, FIFOs
and sockets are left out. A file appears when it is whole, so that after an interruption
there are whole files and no part of one; the same command does the rest. The exit code is
1 if anything was left out.

` + pathHelp,
		Example: `  carrel cp ./data demo:work/
  carrel cp demo:/home/work/report.pdf .
  carrel cp one:project two:
  tar c src | carrel cp - demo:work`,
		Args:              exactly("SRC", "DST"),
		ValidArgsFunction: a.completeCopy(),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print neither progress nor what was copied")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		src, err := a.copyEnd(c.Context(), args[0])
		if err != nil {
			return nil, nil, err
		}
		dst, err := a.copyEnd(c.Context(), args[1])
		if err != nil {
			return nil, nil, err
		}
		if src.workspace == "" && dst.workspace == "" {
			return nil, nil, usage(c, "cannot tell the workspace: write one of them as WORKSPACE:PATH")
		}
		k := copying{a: a, ctx: c.Context(), src: src, dst: dst, bar: a.bar("copying"), quiet: quiet}
		sum, err := k.run()
		k.bar.end()
		if err != nil {
			return nil, nil, err
		}
		if sum.Skipped > 0 {
			return nil, nil, fmt.Errorf("cannot copy all: %s left out, the first %q: %s; the other %s arrived: %w", counted(sum.Skipped, "entry"),
				sum.First, sum.Why, counted(sum.Entries-sum.Skipped, "entry"), errdefs.ErrFailedPrecondition)
		}
		if !quiet && args[1] != "-" {
			a.progress("%s, %s.", counted(sum.Entries, "entry"), bytesText(sum.Bytes))
		}
		if args[1] == "-" {
			return nil, nil, nil
		}
		return object{}.with("entries", sum.Entries).with("bytes", sum.Bytes).with("changed", sum.Changed), text(""), nil
	})
}

// copyEnd is one end of a copy: a path here, or in a workspace.
type copyEnd struct {
	workspace, path string
}

// copyEnd reads SRC or DST. A key may have colons: the longest that names a workspace counts.
func (a *app) copyEnd(ctx context.Context, s string) (copyEnd, error) {
	if s == "" {
		return copyEnd{}, fmt.Errorf("cannot copy: a path is empty; the current directory is \".\": %w", errdefs.ErrInvalidArgument)
	}
	colon := strings.IndexByte(s, ':')
	if colon <= 0 || s[0] == '/' || s[0] == '.' {
		return copyEnd{path: s}, nil
	}
	for n := strings.LastIndexByte(s, ':'); n > colon; n = strings.LastIndexByte(s[:n], ':') {
		if _, err := ask(ctx, a, workspaces.Get, &carrelv1.GetRequest{Workspace: s[:n]}); err == nil {
			return copyEnd{s[:n], s[n+1:]}, nil
		}
	}
	return copyEnd{s[:colon], s[colon+1:]}, nil
}

// completeCopy completes the name of a workspace; files are the shell's.
func (a *app) completeCopy() cobra.CompletionFunc {
	names := a.completeWorkspaces()
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 || strings.ContainsAny(prefix, "/.:") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		list, _ := names(c, nil, prefix)
		var out []string
		for _, name := range list {
			key, _, _ := strings.Cut(name, "\t")
			out = append(out, key+":")
		}
		return out, cobra.ShellCompDirectiveNoSpace
	}
}

// kind is what a path names.
type kind uint8

const (
	nothing kind = iota
	aFile        // or a link
	aDirectory
)

// copying is one copy.
type copying struct {
	a        *app
	ctx      context.Context
	src, dst copyEnd
	bar      *bar
	quiet    bool
}

func (k *copying) shown(s filetree.Summary) {
	if !k.quiet {
		k.bar.show(&carrelv1.ArchiveProgress{Entries: s.Entries, Bytes: s.Bytes})
	}
}

// look says what a path names. follow is for the destination.
func (k *copying) look(e copyEnd, follow bool) (kind, error) {
	if e.workspace == "" {
		stat := os.Lstat
		if follow || strings.HasSuffix(e.path, "/") {
			stat = os.Stat
		}
		i, err := stat(e.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nothing, nil
		case err != nil:
			return nothing, fmt.Errorf("cannot look at what is copied: %w", err)
		case i.IsDir():
			return aDirectory, nil
		}
		return aFile, nil
	}
	req := &carrelv1.StatFileRequest{Workspace: e.workspace, Follow: follow || strings.HasSuffix(e.path, "/")}
	req.Path, req.RawPath = bytesPath(e.path)
	m, err := ask(k.ctx, k.a, files.StatFile, req)
	switch {
	case errdefs.IsNotFound(err) && isAboutPath(err):
		return nothing, nil
	case err != nil:
		return nothing, err
	case m.GetFile().GetType() == "directory":
		return aDirectory, nil
	}
	return aFile, nil
}

// isAboutPath tells a path that is not there from a workspace that is not there.
func isAboutPath(err error) bool { return strings.Contains(err.Error(), "cannot look at") }

func (k *copying) run() (sum filetree.Summary, err error) {
	if k.src.workspace == "" && k.src.path == "-" {
		return k.into(k.dst.path, k.a.In)
	}
	from, err := k.look(k.src, false)
	if err != nil {
		return sum, err
	}
	if from == nothing {
		return sum, fmt.Errorf("cannot copy %q: there is none: %w", k.src.path, errdefs.ErrNotFound)
	}
	if k.dst.workspace == "" && k.dst.path == "-" {
		if isTerminal(k.a.Out) {
			return sum, fmt.Errorf("cannot write a tar stream to a terminal: direct stdout into a file or a program: %w", errdefs.ErrInvalidArgument)
		}
		return k.pack(k.a.Out, "")
	}
	to, err := k.look(k.dst, true)
	if err != nil {
		return sum, err
	}
	in, as, err := k.plan(from, to)
	if err != nil {
		return sum, err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	var at filetree.Summary
	go func() {
		var err error
		at, err = k.pack(w, as)
		w.CloseWithError(err)
		packed <- err
	}()
	if k.dst.workspace == "" {
		sum, err = k.unpackHere(from, in, as, r)
	} else {
		sum, err = k.into(in, r)
	}
	r.CloseWithError(io.ErrClosedPipe)
	// Why the stream ended matters, not that it did.
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return sum, perr
	}
	if at.Skipped > 0 && sum.Skipped == 0 {
		sum.Skipped, sum.First, sum.Why = at.Skipped, at.First, at.Why
		sum.Entries += at.Skipped
	}
	sum.Changed = at.Changed
	return sum, err
}

// plan says into which directory the stream is unpacked, and what the root of it is called there: "." is what is in
// a directory without it.
func (k *copying) plan(from, to kind) (in, as string, err error) {
	contents := from == aDirectory && (k.src.path == "." || strings.HasSuffix(k.src.path, "/."))
	base := path.Base(k.src.path)
	if k.src.workspace == "" {
		abs, err := filepath.Abs(k.src.path)
		if err != nil {
			return "", "", err
		}
		base = filepath.Base(abs)
	} else if k.src.path == "" || k.src.path == "~" || path.Clean(k.src.path) == "." {
		base, contents = "work", true // the home goes as what is in it
	}
	dst := k.dst.path
	if k.dst.workspace != "" && dst == "" {
		dst = "."
	}
	switch {
	case to == aDirectory && contents:
		return dst, ".", nil
	case to == aDirectory:
		return dst, base, nil
	case to == aFile && from == aDirectory:
		return "", "", fmt.Errorf("cannot copy the directory %q over the file %q: name a directory: %w", k.src.path, dst,
			errdefs.ErrInvalidArgument)
	case strings.HasSuffix(dst, "/") && from == aFile:
		return "", "", fmt.Errorf("cannot copy into %q: there is no such directory; make it first: %w", dst, errdefs.ErrNotFound)
	}
	clean := path.Clean(dst)
	return path.Dir(clean), path.Base(clean), nil
}

// pack writes the source as a tar stream, in which it is called as.
func (k *copying) pack(w io.Writer, as string) (sum filetree.Summary, err error) {
	if k.src.workspace == "" {
		abs, err := filepath.Abs(k.src.path)
		if err != nil {
			return sum, err
		}
		parent, err := os.Open(filepath.Dir(abs))
		if err != nil {
			return sum, fmt.Errorf("cannot read what is copied: %w", err)
		}
		defer parent.Close()
		d, err := filetree.Hold(parent)
		if err != nil {
			return sum, err
		}
		defer d.Close()
		name := filepath.Base(abs)
		if name == "/" {
			name = "."
		}
		return filetree.Pack(k.ctx, w, d, name, as, filetree.Defaults(), k.shown)
	}
	req := &carrelv1.PackFilesRequest{Workspace: k.src.workspace, As: as}
	req.Path, req.RawPath = bytesPath(k.src.path)
	client, err := k.a.client()
	if err != nil {
		return sum, err
	}
	packed, err := client.PackFiles(k.ctx, req, w)
	return summaryFrom(packed), err
}

func summaryFrom(s *carrelv1.FilesSummary) filetree.Summary {
	return filetree.Summary{
		Entries: s.GetEntries(), Bytes: s.GetBytes(), Skipped: s.GetSkipped(), First: s.GetFirst(), Why: s.GetWhy(), Changed: s.GetChanged(),
	}
}

// into has the daemon unpack a stream below a directory of the destination.
func (k *copying) into(dir string, in io.Reader) (sum filetree.Summary, err error) {
	if k.dst.workspace == "" {
		return k.unpack(dir, in, "")
	}
	client, err := k.a.client()
	if err != nil {
		return sum, err
	}
	start := &carrelv1.UnpackFilesStart{Workspace: k.dst.workspace}
	start.Path, start.RawPath = bytesPath(dir)
	made, err := client.UnpackFiles(k.ctx, start, in)
	return summaryFrom(made), err
}

// unpackHere unpacks the stream of a workspace on this host. Whatever a workspace sends, nothing is made but below
// the directory that was named, or the one file.
func (k *copying) unpackHere(from kind, in, as string, r io.Reader) (sum filetree.Summary, err error) {
	if from == aFile {
		return k.unpack(in, r, as)
	}
	if as == "." {
		return k.unpack(in, r, "")
	}
	// Its top is made here, and no name of the stream may be beside it.
	target := filepath.Join(in, as)
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return sum, fmt.Errorf("cannot make the directory: %w", err)
	}
	if i, err := os.Lstat(target); err != nil || !i.IsDir() {
		return sum, fmt.Errorf("cannot copy into %q: it is no directory, and a link is not followed: %w", target, errdefs.ErrFailedPrecondition)
	}
	return k.unpackBelow(target, as, r)
}

func (k *copying) unpack(dir string, r io.Reader, as string) (sum filetree.Summary, err error) {
	return k.unpackWith(dir, r, filetree.UnpackOptions{As: as, Tell: k.shown})
}

func (k *copying) unpackBelow(dir, top string, r io.Reader) (sum filetree.Summary, err error) {
	return k.unpackWith(dir, r, filetree.UnpackOptions{Top: top, Tell: k.shown})
}

func (k *copying) unpackWith(dir string, r io.Reader, o filetree.UnpackOptions) (sum filetree.Summary, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return sum, fmt.Errorf("cannot copy into the directory: %w", err)
	}
	defer f.Close()
	d, err := filetree.Hold(f)
	if err != nil {
		return sum, err
	}
	defer d.Close()
	d.Sweep()
	sum, err = filetree.Unpack(k.ctx, r, d, o)
	switch {
	case err == nil:
		return sum, nil
	case errors.Is(err, filetree.ErrName), errors.Is(err, filetree.ErrStream):
		return sum, fmt.Errorf("cannot use what the workspace sent: %w; what was copied before is whole: %w", err, errdefs.ErrDataLoss)
	}
	return sum, fmt.Errorf("cannot copy into %q: %w", dir, err)
}
