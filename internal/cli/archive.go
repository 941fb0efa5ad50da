package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// archiveView is the JSON of an archive.
type archiveView struct {
	ID        string     `json:"id"`
	Workspace string     `json:"workspace"`
	Key       string     `json:"key"`
	Owner     string     `json:"owner"`
	Profile   string     `json:"profile"`
	Limits    limitsView `json:"limits"`
	SHA256    string     `json:"sha256"`
	Size      int64      `json:"size"`
	Entries   int64      `json:"entries"`
	Bytes     int64      `json:"bytes"`
	CreatedAt time.Time  `json:"created_at"`
	// File is where it was written, of one that was sent here.
	File string `json:"file,omitempty"`
}

func archiveViewOf(a *carrelv1.Archive) archiveView {
	return archiveView{
		ID: a.GetId(), Workspace: a.GetWorkspace(), Key: a.GetKey(), Owner: a.GetOwner(), Profile: a.GetProfile(), Limits: limitsOf(a.GetLimits()),
		SHA256: a.GetSha256(), Size: a.GetSize(), Entries: a.GetEntries(), Bytes: a.GetBytes(), CreatedAt: time.UnixMilli(a.GetCreatedUnixMs()).UTC(),
	}
}

func (a *app) archiveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "archive",
		Short: "Put homes of workspaces away, list them, bring them out",
		Example: `  carrel archive create demo
  carrel archive ls
  carrel restore --key copy demo`,
		Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.archiveCreateCommand(), a.archiveListCommand(), a.archiveReadCommand(), a.archiveRemoveCommand())
	return c
}

func (a *app) archiveCreateCommand() *cobra.Command {
	var req carrelv1.CreateArchiveRequest
	var file string
	c := &cobra.Command{
		Use:   "create [flags] WORKSPACE",
		Short: "Archive the home of a workspace",
		Long: `Archive the home of a workspace as a .tar.zst that the daemon keeps, or with --file in
a file of yours; - is stdout. It is made inside, with the rights of the workspace.
A stopped workspace is started for it and stopped again. Commands that run could
change what is read: stop them first, or take it as it is with --live.

With --destroy the workspace ends once its archive is safe: "carrel restore" makes
it again.`,
		Example: `  carrel archive create demo
  carrel archive create --destroy "telegram:-100123"
  carrel archive create --file demo.tar.zst demo`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspace,
	}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "write it to this file instead of keeping it")
	f.BoolVar(&req.Live, "live", false, "archive while commands run")
	f.BoolVar(&req.Destroy, "destroy", false, "end the workspace, its home too, once the archive is safe")
	f.StringVar(&req.RequestId, "request-id", "", "an id of your own: asked again with the same id, nothing is done twice")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		req.Workspace, req.Export = args[0], file != ""
		var view archiveView
		receive := func(w io.Writer) error {
			s, err := client.Archives().CreateArchive(c.Context(), connect.NewRequest(&req))
			if err != nil {
				return err
			}
			defer s.Close()
			bar := a.bar("archiving")
			defer bar.end()
			done := false
			for s.Receive() {
				m := s.Msg()
				switch {
				case m.GetProgress() != nil:
					bar.show(m.GetProgress())
				case m.GetArchive() != nil:
					view, done = archiveViewOf(m.GetArchive()), true
				default:
					if _, err := w.Write(m.GetData()); err != nil {
						return fmt.Errorf("cannot write the archive: %w", err)
					}
				}
			}
			return whole(s.Err(), done)
		}
		if file == "" {
			err = receive(io.Discard)
		} else {
			view.File = file
			err = a.writeFile(file, receive)
			view.File = file
		}
		if err != nil {
			return err
		}
		switch {
		case *out == asJSON && file != "-":
			return a.printJSON(view)
		case file == "":
			_, err = fmt.Fprintln(a.Out, view.ID)
			return err
		default:
			a.progress("%d entries, %s in %s.", view.Entries, bytesText(view.Bytes), bytesText(view.Size))
			return nil
		}
	}
	return c
}

// whole is the end of a stream that must end with a last word.
func whole(err error, done bool) error {
	if err == nil && !done {
		err = fmt.Errorf("cannot trust what came: the daemon's last word is missing: %w", errdefs.ErrUnavailable)
	}
	return err
}

// writeFile has write fill a file that is there only once it is whole; "-" is stdout.
func (a *app) writeFile(path string, write func(io.Writer) error) error {
	if path == "-" {
		if isTerminal(a.Out) {
			return fmt.Errorf("cannot write an archive to a terminal: name a file, or direct stdout into one: %w", errdefs.ErrInvalidArgument)
		}
		return write(a.Out)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is of no use
	}
	return err
}

func (a *app) archiveListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the archives that you may have, the newest first",
		Example: "  carrel archive ls -o json",
		Args:    exactly(),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		list, err := a.archives(c.Context())
		if err != nil {
			return err
		}
		if *out == asJSON {
			views := make([]archiveView, 0, len(list))
			for _, x := range list {
				views = append(views, archiveViewOf(x))
			}
			return a.printJSON(views)
		}
		t := newTable(-1, "ID", "KEY", "OWNER", "SIZE", "ENTRIES", "UNPACKED", "AGE")
		for _, x := range list {
			t.add(x.GetId(), cut(printable(x.GetKey()), 40), x.GetOwner(), bytesText(x.GetSize()), fmt.Sprint(x.GetEntries()), bytesText(x.GetBytes()), age(time.UnixMilli(x.GetCreatedUnixMs())))
		}
		return t.print(a.Out)
	}
	return c
}

func (a *app) archives(ctx context.Context) ([]*carrelv1.Archive, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	res, err := client.Archives().ListArchives(ctx, connect.NewRequest(&carrelv1.ListArchivesRequest{}))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetArchives(), nil
}

// completeArchive completes the id of an archive.
func (a *app) completeArchive(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.archives(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids := make([]string, 0, len(list))
	for _, x := range list {
		ids = append(ids, x.GetId()+"\t"+printable(x.GetKey()))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) archiveReadCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "read [flags] ARCHIVE",
		Short: "Write an archive that the daemon keeps to a file",
		Long: `Write an archive that the daemon keeps to a file, or to stdout. ARCHIVE is its id, or
the key or name of a workspace for its newest. Its sum is checked on the way.`,
		Example:           "  carrel archive read --file demo.tar.zst demo\n  carrel archive read demo | tar t --zstd",
		Args:              exactly("ARCHIVE"),
		ValidArgsFunction: a.completeArchive,
	}
	c.Flags().StringVarP(&file, "file", "f", "-", "the file to write; - is stdout")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		return a.writeFile(file, func(w io.Writer) error {
			s, err := client.Archives().ReadArchive(c.Context(), connect.NewRequest(&carrelv1.ReadArchiveRequest{Archive: args[0]}))
			if err != nil {
				return err
			}
			defer s.Close()
			done := false
			for s.Receive() {
				if s.Msg().GetArchive() != nil {
					done = true
				} else if _, err := w.Write(s.Msg().GetData()); err != nil {
					return fmt.Errorf("cannot write the archive: %w", err)
				}
			}
			return whole(s.Err(), done)
		})
	}
	return c
}

func (a *app) archiveRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm ARCHIVE...",
		Aliases:           []string{"remove"},
		Short:             "Remove archives for good",
		Example:           "  carrel archive rm ws-2a97516c-20260102T030405.000000",
		Args:              atLeast("ARCHIVE"),
		ValidArgsFunction: a.completeArchive,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			for _, ref := range args {
				if _, err := client.Archives().RemoveArchive(c.Context(), connect.NewRequest(&carrelv1.RemoveArchiveRequest{Archive: ref})); err != nil {
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
		Use:   "restore [flags] [ARCHIVE]",
		Short: "Make a workspace from an archive",
		Long: `Make a workspace from an archive that the daemon keeps: by its id, or by the key or
name of the workspace that it is of, for its newest. With --file it is made from a
file of yours; - is stdin. It gets the key, limits and profile that it had, unless
flags say otherwise, and it is there only when all of it is. Project mounts are no part of
an archive: what is restored has none.`,
		Example: `  carrel restore demo
  carrel restore --key copy ws-2a97516c-20260102T030405.000000
  carrel restore --file demo.tar.zst --key demo`,
		ValidArgsFunction: a.completeArchive,
	}
	f := c.Flags()
	l.add(f, false)
	f.StringVarP(&file, "file", "f", "", "restore from this file; - is stdin")
	f.StringVar(&start.Key, "key", "", "the key of the new workspace")
	f.StringVar(&start.Profile, "profile", "", "the profile of the new workspace")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case len(args) > 1 || len(args) == 1 && file != "":
			return usage(c, "cannot restore from more than one archive: name one, or --file")
		case len(args) == 0 && file == "":
			return usage(c, "cannot tell what to restore: name an archive, or --file")
		case file != "" && start.Key == "":
			return usage(c, "cannot restore from a file without --key: it does not say whose it is")
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
			opened, err := os.Open(file)
			if err != nil {
				return fmt.Errorf("cannot read the archive: %w", err)
			}
			defer opened.Close()
			in = opened
		}
		w, err := a.restore(c.Context(), &start, in)
		if err != nil {
			return err
		}
		if *out == asJSON {
			return a.printJSON(viewOf(w))
		}
		a.progress("It has no project mounts, as an archive has none.")
		_, err = fmt.Fprintln(a.Out, w.GetName())
		return err
	}
	return c
}

// restore sends in, if it is not nil, and waits for the workspace.
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
			cancel() // what was sent is not all
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
			// An error of Send is told by Receive, and better.
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

// bar shows how far something is, on a terminal only.
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
	fmt.Fprintf(b.a.Err, "\r\x1b[K%s: %d entries, %s", b.what, p.GetEntries(), bytesText(p.GetBytes()))
}

func (b *bar) end() {
	if b.shown {
		fmt.Fprint(b.a.Err, "\r\x1b[K")
	}
}
