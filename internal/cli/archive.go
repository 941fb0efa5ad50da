package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) archiveCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "archive",
		Short: "Make, list, read and remove archives of workspaces",
		Example: `  carrel archive create demo
  carrel archive ls
  carrel restore --key copy demo`,
	}, a.archiveCreateCommand(), a.archiveListCommand(), a.archiveReadCommand(), a.archiveRemoveCommand())
}

func (a *app) archiveCreateCommand() *cobra.Command {
	var req carrelv1.CreateArchiveRequest
	var file string
	c := &cobra.Command{
		Use:   "create [flags] WORKSPACE",
		Short: help(operation.ArchiveWorkspace),
		Long: `Archive the home of a workspace as a .tar.zst that the daemon keeps, or with --file in
a file of yours; - is stdout. It is made inside, with the rights of the workspace.
A stopped workspace is started for it and stopped again. Commands that run could
change what is read: stop them first, or archive anyway with --live.

With --destroy the workspace ends once its archive is safe: it is read back from the
disk and unpacked on trial before anything goes. If that fails, the archive is removed
and workspace and home stay. "carrel restore" makes the workspace again.

Archives that are kept count for the workspace's owner: max_archives_per_owner and
archive_bytes_per_owner of the daemon's settings. With --file nothing is kept or counted.`,
		Example: `  carrel archive create demo
  carrel archive create --destroy "telegram:-100123"
  carrel archive create --file demo.tar.zst demo`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "write it to this file instead of keeping it")
	f.BoolVar(&req.Live, "live", false, "archive while commands run")
	f.BoolVar(&req.Destroy, "destroy", false, "end the workspace, its home too, once the archive is safe")
	f.StringVar(&req.RequestId, "request-id", "", requestIDUsage)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		req.Workspace, req.Export = args[0], file != ""
		var made *carrelv1.Archive
		write := func(w io.Writer) error {
			bar := a.bar("archiving")
			defer bar.end()
			err := receive(c.Context(), a, archives.CreateArchive, &req, func(m *carrelv1.CreateArchiveResponse) error {
				switch {
				case m.GetProgress() != nil:
					bar.show(m.GetProgress())
				case m.GetArchive() != nil:
					made = m.GetArchive()
				default:
					return writeData(w, m.GetData())
				}
				return nil
			})
			return whole(err, made != nil)
		}
		if file == "" {
			if err := write(io.Discard); err != nil {
				return err
			}
			if *out == asJSON {
				return a.printJSON(objectOf(made))
			}
			_, err := fmt.Fprintln(a.Out, made.GetId())
			return err
		}
		if err := a.writeFile(file, write); err != nil {
			return err
		}
		if *out == asJSON && file != "-" {
			return a.printJSON(objectOf(made).with("file", file))
		}
		a.progress("%s, %s in %s.", counted(made.GetEntries(), "entry"), bytesText(made.GetBytes()), bytesText(made.GetSize()))
		return nil
	}
	return c
}

func writeData(w io.Writer, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("cannot write the archive: %w", err)
	}
	return nil
}

// whole is the end of a stream whose last message says that it is complete.
func whole(err error, done bool) error {
	if err == nil && !done {
		err = fmt.Errorf("cannot trust the archive: the daemon broke off before its end; download it again: %w", errdefs.ErrUnavailable)
	}
	return err
}

// writeFile has write fill a file, which appears only when it is complete; "-" is stdout.
func (a *app) writeFile(path string, write func(io.Writer) error) error {
	if path == "-" {
		if isTerminal(a.Out) {
			return fmt.Errorf("cannot write an archive to a terminal: name a file, or direct stdout into one: %w", errdefs.ErrInvalidArgument)
		}
		return write(a.Out)
	}
	var told error
	err := replaceFile(path, "."+filepath.Base(path)+".", func(w io.Writer) error { told = write(w); return told }, func() {})
	if err != nil && told == nil {
		err = fmt.Errorf("cannot write %s: %w", path, err)
	}
	return err
}

func (a *app) archiveListCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   help(operation.ListArchives),
		Long: `List the archives that the daemon keeps, the newest first. REMOVED is when an archive
has been kept for the archive_retention of the daemon's settings, and goes.`,
		Example: "  carrel archive ls -o json",
		Args:    exactly(),
	}, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, archives.ListArchives, &carrelv1.ListArchivesRequest{})
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "ID", "KEY", "OWNER", "SIZE", "ENTRIES", "UNPACKED", "AGE", "REMOVED").
			wideOnly("OWNER", "ENTRIES", "UNPACKED")
		for _, x := range m.GetArchives() {
			removed := "never"
			if ms := x.GetExpiresUnixMs(); ms != 0 {
				removed = at(ms).Format(moment)
			}
			t.add(x.GetId(), keyText(x.GetKey()), x.GetOwner(), bytesText(x.GetSize()), fmt.Sprint(x.GetEntries()), bytesText(x.GetBytes()),
				age(at(x.GetCreatedUnixMs())), removed)
		}
		return objectsOf(m.GetArchives()), t, nil
	})
}

// completeArchive completes the id of an archive.
func (a *app) completeArchive() cobra.CompletionFunc {
	return onlyFirst(a.completion(func(ctx context.Context, client *carrel.Client, _ []string) (out []string, err error) {
		m, err := askOf(ctx, client, archives.ListArchives, &carrelv1.ListArchivesRequest{})
		for _, x := range m.GetArchives() {
			out = append(out, cobra.CompletionWithDesc(x.GetId(), printable(x.GetKey())))
		}
		return out, err
	}))
}

func (a *app) archiveReadCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "read [flags] ARCHIVE",
		Short: help(operation.ReadArchive),
		Long: `Write an archive that the daemon keeps to a file, or to stdout. ARCHIVE is its id, or
the key or name of a workspace for its newest. Its checksum is verified on the way.`,
		Example:           "  carrel archive read --file demo.tar.zst demo\n  carrel archive read demo | tar t --zstd",
		Args:              exactly("ARCHIVE"),
		ValidArgsFunction: a.completeArchive(),
	}
	c.Flags().StringVarP(&file, "file", "f", "-", "the file to write; - is stdout")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.writeFile(file, func(w io.Writer) error {
			done := false
			err := receive(c.Context(), a, archives.ReadArchive, &carrelv1.ReadArchiveRequest{Archive: args[0]},
				func(m *carrelv1.ReadArchiveResponse) error {
					if m.GetArchive() != nil {
						done = true
						return nil
					}
					return writeData(w, m.GetData())
				})
			return whole(err, done)
		})
	}
	return c
}

func (a *app) archiveRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm ARCHIVE...",
		Aliases:           []string{"remove"},
		Short:             help(operation.RemoveArchive),
		Example:           "  carrel archive rm ws-2a97516c-20260102T030405.000000",
		Args:              atLeast("ARCHIVE"),
		ValidArgsFunction: a.completeArchive(),
		RunE: func(c *cobra.Command, args []string) error {
			for _, ref := range args {
				if _, err := ask(c.Context(), a, archives.RemoveArchive, &carrelv1.RemoveArchiveRequest{Archive: ref}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (a *app) restoreCommand() *cobra.Command {
	var l limitFlags
	var start carrelv1.RestoreStart
	var file string
	c := &cobra.Command{
		Use:   "restore [flags] [ARCHIVE | RUN CHECKPOINT]",
		Short: help(operation.RestoreWorkspace),
		Long: `Make a workspace from an archive that the daemon keeps: by its id, or by the key or
name of its workspace, for the newest. With --file it is made from a file of yours; - is
stdin. The workspace gets the key, limits, profile, idle time-out and what was left of the
lifetime that it had, unless flags say otherwise, and appears only when it is complete. An
archive has no project mounts, so neither has the workspace.

With the name of a run and that of a checkpoint, its staged copy is made what it was then: see
"carrel checkpoint --help".`,
		Example: `  carrel restore demo
  carrel restore run-1a2b3c4d before-refactoring
  carrel restore --key copy ws-2a97516c-20260102T030405.000000
  carrel restore --file demo.tar.zst --key demo`,
		ValidArgsFunction: a.completeArchive(),
	}
	f := c.Flags()
	l.add(f, false)
	f.StringVarP(&file, "file", "f", "", "restore from this file; - is stdin")
	f.StringVar(&start.Key, "key", "", "the key of the new workspace")
	f.StringVar(&start.Profile, "profile", "", "the profile of the new workspace")
	completeFrom(c, "profile", "chat")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		switch {
		case len(args) == 2 && file == "" && id.IsWorkspace(args[0]):
			return a.restorePoint(c.Context(), args[0], args[1])
		case len(args) > 1 || len(args) == 1 && file != "":
			return nil, nil, usage(c, "cannot restore from more than one archive: name one, or --file")
		case len(args) == 0 && file == "":
			return nil, nil, usage(c, "cannot tell what to restore: name an archive, or --file")
		case file != "" && start.Key == "":
			return nil, nil, usage(c, "cannot restore from a file without --key: it does not say whose it is")
		}
		if len(args) == 1 {
			start.From = args[0]
		}
		start.Limits, start.TtlMs, start.IdleTimeoutMs, start.RequestId = l.asked(), int64(l.ttl), int64(l.idle), l.request
		in := io.Reader(nil)
		switch file {
		case "":
		case "-":
			in = a.In
		default:
			opened, err := treefile.Open(file)
			if err != nil {
				return nil, nil, fmt.Errorf("cannot read the archive: %w", err)
			}
			defer opened.Close()
			in = opened
		}
		w, err := a.restore(c.Context(), &start, in)
		if err != nil {
			return nil, nil, err
		}
		a.progress("It has no project mounts, as an archive has none.")
		return objectOf(w), text(w.GetName() + "\n"), nil
	})
}

// restore sends in, unless it is nil, and waits for the workspace.
func (a *app) restore(ctx context.Context, start *carrelv1.RestoreStart, in io.Reader) (*carrelv1.Workspace, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := client.Archives().Restore(ctx)
	if err := s.Send(&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	unread := make(chan error, 1)
	go func() {
		err := upload(s, in)
		unread <- err
		if err != nil {
			cancel() // the daemon must not take it for the whole archive
		}
	}()
	bar := a.bar("restoring")
	defer bar.end()
	for {
		m, err := s.Receive()
		if err != nil {
			select {
			case bad := <-unread:
				if bad != nil {
					return nil, bad
				}
			default:
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return nil, whole(err, false)
		}
		if w := m.GetWorkspace(); w != nil {
			return w, nil
		}
		bar.show(m.GetProgress())
	}
}

func upload(s *connect.BidiStreamForClient[carrelv1.RestoreRequest, carrelv1.RestoreResponse], in io.Reader) error {
	buf := make([]byte, 256<<10)
	for in != nil {
		n, err := in.Read(buf)
		if n > 0 {
			// Receive returns the reason why Send fails.
			if s.Send(&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Data{Data: buf[:n]}}) != nil {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("cannot read the archive: %w", err)
		}
	}
	_ = s.CloseRequest() // as above
	return nil
}

// bar shows progress, on a terminal only.
type bar struct {
	a     *app
	what  string
	shown bool
}

func (a *app) bar(what string) *bar { return &bar{a: a, what: what} }

func (b *bar) show(p *carrelv1.ArchiveProgress) {
	if !isTerminal(b.a.Err) {
		return
	}
	b.shown = true
	fmt.Fprintf(b.a.Err, "\r\x1b[K%s: %s, %s", b.what, counted(p.GetEntries(), "entry"), bytesText(p.GetBytes()))
}

func (b *bar) end() {
	if b.shown {
		fmt.Fprint(b.a.Err, "\r\x1b[K")
	}
}
