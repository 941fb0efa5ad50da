package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

const pathHelp = `PATH is absolute, or relative to the home, or begins with ~/. Links are followed as long
as they stay in the home; where one leads out, name its target. A stopped workspace is
started first, and everything is done with the rights of its own user.`

func (a *app) filesCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "files",
		Short: "List, read, write, search and watch files of workspaces",
		Example: `  carrel files ls -R demo work
  carrel files cat demo notes.txt
  echo hello | carrel files write demo work/hello.txt`,
	}, a.filesListCommand(), a.filesCatCommand(), a.filesStatCommand(), a.filesWriteCommand(), a.filesMkdirCommand(), a.filesMoveCommand(),
		a.filesRemoveCommand(), a.filesSearchCommand(), a.filesWatchCommand())
}

// bytesPath gives a path to the fields of a request: what is no UTF-8 goes as bytes.
func bytesPath(p string) (text string, raw []byte) {
	if utf8.ValidString(p) {
		return p, nil
	}
	return "", []byte(p)
}

// pathOf is the path of an entry as it is.
func pathOf(e *carrelv1.FileEntry) string { return e.GetPath() + string(e.GetRawPath()) }

// arg is the argument at a place, "" without.
func arg(args []string, n int) string {
	if n < len(args) {
		return args[n]
	}
	return ""
}

var typeLetters = map[string]fs.FileMode{
	"directory": fs.ModeDir, "link": fs.ModeSymlink, "fifo": fs.ModeNamedPipe, "socket": fs.ModeSocket, "device": fs.ModeDevice,
}

// entryLine is an entry as ls -l has it.
func entryLine(e *carrelv1.FileEntry) []string {
	name := printable(pathOf(e))
	if e.GetType() == "link" {
		name += " -> " + printable(e.GetTarget()+string(e.GetRawTarget()))
	}
	mode := typeLetters[e.GetType()] | fs.FileMode(e.GetMode()&0o777)
	return []string{mode.String(), strconv.FormatInt(e.GetSize(), 10), time.Unix(0, e.GetModifiedUnixNs()).UTC().Format(moment), name}
}

func (a *app) filesListCommand() *cobra.Command {
	var long, recursive bool
	var depth int32
	c := &cobra.Command{
		Use:   "ls [flags] WORKSPACE [PATH]",
		Short: help(operation.ListFiles),
		Long: `List a directory of a workspace, its home unless PATH says another. ` + pathHelp + `
Names are sorted by their bytes.`,
		Example:           "  carrel files ls demo\n  carrel files ls -l -R demo work\n  carrel files ls -o json demo /tmp",
		Args:              between([]string{"WORKSPACE"}, "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	f := c.Flags()
	f.BoolVarP(&long, "long", "l", false, "print type, mode, size and time too")
	f.BoolVarP(&recursive, "recursive", "R", false, "list what is in directories too, to the depth")
	f.Int32Var(&depth, "depth", 64, "with -R: how deep, 1 to 64")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		req := &carrelv1.ListFilesRequest{Workspace: args[0], Depth: 1}
		if recursive {
			req.Depth = depth
		}
		req.Path, req.RawPath = bytesPath(arg(args, 1))
		var all []*carrelv1.FileEntry
		for {
			m, err := ask(c.Context(), a, files.ListFiles, req)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, m.GetEntries()...)
			if m.GetSkipped() > 0 {
				_ = say(a.Err, "%s could not be looked at.\n", counted(m.GetSkipped(), "entry"))
			}
			if n := len(m.GetEntries()); !m.GetTruncated() || n == 0 || len(all) > maxListed {
				if m.GetTruncated() {
					_ = say(a.Err, "There are more than %s: name one of the directories.\n", counted(len(all), "entry"))
				}
				break
			}
			req.After, req.RawAfter = bytesPath(pathOf(all[len(all)-1]))
		}
		if long {
			t := newTable(-1, "MODE", "SIZE", "MODIFIED", "NAME")
			for _, e := range all {
				t.add(entryLine(e)...)
			}
			return objectsOf(all), t, nil
		}
		var lines []byte
		for _, e := range all {
			lines = append(append(lines, printable(pathOf(e))...), '\n')
		}
		return objectsOf(all), text(lines), nil
	})
}

// maxListed bounds what one ls prints.
const maxListed = 1_000_000

func (a *app) filesCatCommand() *cobra.Command {
	var offset, length int64
	c := &cobra.Command{
		Use:               "cat [flags] WORKSPACE PATH...",
		Short:             help(operation.ReadFile),
		Long:              "Write the bytes of files to stdout. A file that grows meanwhile is read as far as it was long. " + pathHelp,
		Example:           "  carrel files cat demo notes.txt\n  carrel files cat --offset 1000 --length 100 demo work/log",
		Args:              atLeast("WORKSPACE", "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().Int64Var(&offset, "offset", 0, "begin after so many bytes")
	c.Flags().Int64Var(&length, "length", 0, "read so many bytes at most; 0 is to the end")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		for _, p := range args[1:] {
			req := &carrelv1.ReadFileRequest{Workspace: args[0], Offset: offset, Length: length}
			req.Path, req.RawPath = bytesPath(p)
			if _, err := client.ReadFile(c.Context(), req, a.Out); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

func (a *app) filesStatCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:               "stat [flags] WORKSPACE PATH",
		Short:             "Show what a name in a workspace is",
		Long:              "Show type, mode, size and time of a name. " + pathHelp,
		Example:           "  carrel files stat demo notes.txt\n  carrel files stat -o json demo ~/work",
		Args:              exactly("WORKSPACE", "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().BoolVarP(&follow, "dereference", "L", false, "follow a link")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		req := &carrelv1.StatFileRequest{Workspace: args[0], Follow: follow}
		req.Path, req.RawPath = bytesPath(args[1])
		m, err := ask(c.Context(), a, files.StatFile, req)
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "MODE", "SIZE", "MODIFIED", "NAME")
		t.add(entryLine(m.GetFile())...)
		return objectOf(m.GetFile()), t, nil
	})
}

// octal is a flag for permission bits.
type octal struct{ bits *uint32 }

func (o *octal) String() string {
	if o.bits == nil {
		return ""
	}
	return fmt.Sprintf("%04o", *o.bits)
}
func (o *octal) Type() string { return "MODE" }
func (o *octal) Set(s string) error {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 {
		return errors.New("give permission bits in octal up to 0777, as in 0644")
	}
	bits := uint32(n)
	o.bits = &bits
	return nil
}

func (a *app) filesWriteCommand() *cobra.Command {
	var start carrelv1.WriteFileStart
	var mode octal
	c := &cobra.Command{
		Use:   "write [flags] WORKSPACE PATH",
		Short: help(operation.WriteFile),
		Long: `Write stdin to a file. What was there stays until all has come and is on disk, also when
this is interrupted. A link is replaced itself. ` + pathHelp,
		Example:           "  echo hello | carrel files write demo hello.txt\n  carrel files write -p --mode 0755 demo bin/run < run.sh",
		Args:              exactly("WORKSPACE", "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	f := c.Flags()
	f.Var(&mode, "mode", "permission bits; without, a file that is there keeps its own and a new one has 0644")
	f.BoolVarP(&start.Parents, "parents", "p", false, "make missing directories above")
	f.BoolVar(&start.Keep, "keep", false, "fail if there is something with this name")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		start.Workspace, start.Mode = args[0], mode.bits
		start.Path, start.RawPath = bytesPath(args[1])
		client, err := a.client()
		if err != nil {
			return nil, nil, err
		}
		e, err := client.WriteFile(c.Context(), &start, a.In)
		if err != nil {
			return nil, nil, err
		}
		a.progress("%s written.", bytesText(e.GetSize()))
		return objectOf(e), text(""), nil
	})
}

func (a *app) filesMkdirCommand() *cobra.Command {
	var parents bool
	var mode octal
	c := &cobra.Command{
		Use:               "mkdir [flags] WORKSPACE PATH...",
		Short:             help(operation.MakeDirectory),
		Long:              "Make directories. " + pathHelp,
		Example:           "  carrel files mkdir -p demo work/src",
		Args:              atLeast("WORKSPACE", "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().BoolVarP(&parents, "parents", "p", false, "make missing directories above, and accept one that is there")
	c.Flags().Var(&mode, "mode", "permission bits, 0755 unless given")
	c.RunE = func(c *cobra.Command, args []string) error {
		for _, p := range args[1:] {
			req := &carrelv1.MakeDirectoryRequest{Workspace: args[0], Parents: parents, Mode: mode.bits}
			req.Path, req.RawPath = bytesPath(p)
			if _, err := ask(c.Context(), a, files.MakeDirectory, req); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

func (a *app) filesMoveCommand() *cobra.Command {
	var req carrelv1.MoveFileRequest
	c := &cobra.Command{
		Use:               "mv [flags] WORKSPACE PATH NEW",
		Short:             help(operation.MoveFile),
		Long:              "Give what PATH names the path NEW, in the same file system. A link is moved itself. " + pathHelp,
		Example:           "  carrel files mv demo draft.txt final.txt",
		Args:              exactly("WORKSPACE", "PATH", "NEW"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().BoolVarP(&req.Replace, "force", "f", false, "replace what is at NEW")
	c.Flags().BoolVarP(&req.Parents, "parents", "p", false, "make missing directories above NEW")
	c.RunE = func(c *cobra.Command, args []string) error {
		req.Workspace = args[0]
		req.Path, req.RawPath = bytesPath(args[1])
		req.To, req.RawTo = bytesPath(args[2])
		_, err := ask(c.Context(), a, files.MoveFile, &req)
		return err
	}
	return c
}

func (a *app) filesRemoveCommand() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:     "rm [flags] WORKSPACE PATH...",
		Aliases: []string{"remove"},
		Short:   help(operation.RemoveFile),
		Long: `Remove files, links and empty directories for good; with -r directories with all that is in
them. It works on a full disk. ` + pathHelp,
		Example:           "  carrel files rm demo old.log\n  carrel files rm -r demo work/build",
		Args:              atLeast("WORKSPACE", "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove directories with all that is in them")
	c.RunE = func(c *cobra.Command, args []string) error {
		for _, p := range args[1:] {
			req := &carrelv1.RemoveFileRequest{Workspace: args[0], Recursive: recursive}
			req.Path, req.RawPath = bytesPath(p)
			if _, err := ask(c.Context(), a, files.RemoveFile, req); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

func (a *app) filesSearchCommand() *cobra.Command {
	var req carrelv1.SearchFilesRequest
	c := &cobra.Command{
		Use:   "search [flags] WORKSPACE [PATH]",
		Short: "Find names and lines of text in a workspace",
		Long: `Find names by a pattern (*, ? and [a-z]) and lines by a regular expression (RE2) below a
directory, the home unless PATH says another. Binary files are passed over, and links not
followed. A search ends after 30 seconds, 1 GiB or --limit matches, and says so. ` + pathHelp,
		Example:           "  carrel files search --name '*.go' demo\n  carrel files search --text 'TODO|FIXME' demo work",
		Args:              between([]string{"WORKSPACE"}, "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	f := c.Flags()
	f.StringVar(&req.Name, "name", "", "a pattern that names have to match")
	f.StringVar(&req.Text, "text", "", "a regular expression that a line has to match")
	f.Int32Var(&req.Depth, "depth", 64, "how deep, 1 to 64")
	f.Int32Var(&req.Limit, "limit", 1000, "how many matches at most")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		if req.Name == "" && req.Text == "" {
			return nil, nil, usage(c, "cannot search for nothing: give --name, --text or both")
		}
		req.Workspace = args[0]
		req.Path, req.RawPath = bytesPath(arg(args, 1))
		m, err := ask(c.Context(), a, files.SearchFiles, &req)
		if err != nil {
			return nil, nil, err
		}
		if m.GetTruncated() {
			_ = say(a.Err, "There may be more: the search ended at a bound.\n")
		}
		var lines []byte
		for _, e := range m.GetMatches() {
			lines = append(lines, printable(pathOf(e))...)
			if e.GetLine() > 0 {
				lines = fmt.Appendf(lines, ":%d:%s", e.GetLine(), printable(string(e.GetText())))
			}
			lines = append(lines, '\n')
		}
		return objectsOf(m.GetMatches()), text(lines), nil
	})
}

func (a *app) filesWatchCommand() *cobra.Command {
	var depth int32
	c := &cobra.Command{
		Use:   "watch [flags] WORKSPACE [PATH]",
		Short: help(operation.WatchFiles),
		Long: `Print what changes below a directory, the home unless PATH says another, until it is
interrupted or the workspace stops: create, write, remove, attributes and the path, a line
each. Changes of one name within 50 ms are one. "overflow" says that some were lost, so
that all has to be looked at again. At most 8192 directories are watched, and 4 watches
are open in a workspace. ` + pathHelp,
		Example:           "  carrel files watch demo work",
		Args:              between([]string{"WORKSPACE"}, "PATH"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().Int32Var(&depth, "depth", 64, "how deep, 1 to 64")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		req := &carrelv1.WatchFilesRequest{Workspace: args[0], Depth: depth}
		req.Path, req.RawPath = bytesPath(arg(args, 1))
		return receive(c.Context(), a, files.WatchFiles, req, func(m *carrelv1.WatchFilesResponse) error {
			if len(m.GetEvents()) == 0 {
				a.progress("Watching.")
			}
			for _, e := range m.GetEvents() {
				if err := a.showEvent(e, *out); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c
}

func (a *app) showEvent(e *carrelv1.FileEvent, out format) error {
	if out == asJSON {
		return jsonLine(a.Out, objectOf(e))
	}
	p := printable(e.GetPath() + string(e.GetRawPath()))
	if e.GetDirectory() {
		p += "/"
	}
	return say(a.Out, "%s %s\n", printable(e.GetWhat()), p)
}
