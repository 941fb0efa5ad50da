// Package archiver packs the home of a live workspace into an archive, unpacks one into it, and
// verifies that one could be unpacked.
// It runs the archiver program inside the workspace, with the workspace's own rights.
//
// What the program reports is shown and not relied on: docs/protocols/archive.md.
package archiver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Limits bound what an archive may become. Zero fields are the program's defaults, which are also
// those of packing: what was packed here can be unpacked with the zero Limits.
type Limits struct {
	Bytes, Entries, Ratio int64
}

// Archiver runs the archiver program.
type Archiver struct {
	// Program returns the program, for Archiver to close.
	Program func() (*os.File, error)
	// Strange bounds an archive that was not packed here.
	Strange Limits
}

// report is a line that the program writes beside its stream.
type report struct {
	Progress *workspace.Progress `json:"progress"`
	Summary  *struct {
		Entries int64 `json:"entries"`
		Bytes   int64 `json:"bytes"`
	} `json:"summary"`
	Error string `json:"error"`
	Kind  string `json:"kind"`
}

// maxReport bounds one line of it, and copySize is a buffer's, in bytes.
const (
	maxReport = 16 << 10
	copySize  = 256 << 10
)

// patience is how long nothing may move before the program is ended, and syncPatience how long it
// may take to end once all has been moved: what was unpacked still has to reach the disk.
const (
	patience     = 2 * time.Minute
	syncPatience = 15 * time.Minute
)

var errStill = fmt.Errorf("nothing moved for %v, or it did not end within %v of the last byte, so the archiver was ended: %w",
	patience, syncPatience, errdefs.ErrUnavailable)

// moving tells of each read.
type moving struct {
	r     io.Reader
	moved func()
}

func (m *moving) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.moved()
	return n, err
}

// Pack writes the home of a live workspace to w.
func (a *Archiver) Pack(ctx context.Context, rt runtime.Runtime, p permit.Permit, w io.Writer,
	progress func(workspace.Progress),
) (workspace.Progress, error) {
	e := execapi.ExecParams{Argv: []string{"pack", workspace.Home}, Stdout: execapi.Pipe}
	return a.run(ctx, rt, p, e, progress, func(files []*os.File, moves func(io.Reader) io.Reader) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{moves(files[0])}, make([]byte, copySize))
		return err
	})
}

// Unpack makes the home of a live workspace from r, within limits. With durable it returns once a
// loss of power would lose nothing.
func (a *Archiver) Unpack(ctx context.Context, rt runtime.Runtime, p permit.Permit, r io.Reader, l Limits, durable bool,
	progress func(workspace.Progress),
) (workspace.Progress, error) {
	args := []string{"unpack"}
	if durable {
		args = append(args, "--sync")
	}
	for _, o := range []struct {
		flag  string
		value int64
	}{{"--max-bytes", l.Bytes}, {"--max-entries", l.Entries}, {"--max-ratio", l.Ratio}} {
		if o.value > 0 {
			args = append(args, o.flag+"="+strconv.FormatInt(o.value, 10))
		}
	}
	return a.read(ctx, rt, p, r, append(args, workspace.Home), progress)
}

// Verify has an archive that Pack made decoded inside a live workspace, by the rules of Unpack and
// within the limits of packing, and makes nothing of it. It returns what is in it.
func (a *Archiver) Verify(ctx context.Context, rt runtime.Runtime, p permit.Permit, r io.Reader,
	progress func(workspace.Progress),
) (workspace.Progress, error) {
	return a.read(ctx, rt, p, r, []string{"verify"}, progress)
}

// read runs the program with r as its input.
func (a *Archiver) read(ctx context.Context, rt runtime.Runtime, p permit.Permit, r io.Reader, args []string,
	progress func(workspace.Progress),
) (workspace.Progress, error) {
	e := execapi.ExecParams{Argv: args, Stdin: execapi.Pipe, Stdout: execapi.Null}
	return a.run(ctx, rt, p, e, progress, func(files []*os.File, moves func(io.Reader) io.Reader) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{files[0]}, struct{ io.Reader }{moves(r)}, make([]byte, copySize))
		return errors.Join(err, files[0].Close())
	})
}

// run runs the program inside and has move the stream, which comes first among the files,
// while its reports are read. The program works for carrel, but in a workspace whose commands
// may do their worst: it is ended with ctx, and when nothing moves for a while.
func (a *Archiver) run(ctx context.Context, rt runtime.Runtime, p permit.Permit, e execapi.ExecParams,
	progress func(workspace.Progress), move func(files []*os.File, moves func(io.Reader) io.Reader) error,
) (done workspace.Progress, err error) {
	program, err := a.Program()
	if err != nil {
		return done, err
	}
	defer program.Close()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	still := time.AfterFunc(patience, func() { give(errStill) })
	defer still.Stop()
	var all atomic.Bool // has been moved; reports may still come
	moved := func() {
		if all.Load() {
			still.Reset(syncPatience)
		} else {
			still.Reset(patience)
		}
	}
	e.ID, e.Argv, e.Program, e.Stderr = id.NewCommand(), append([]string{"carrel-archive"}, e.Argv...), true, execapi.Pipe
	proc, err := rt.Spawn(ctx, p, e, false, program)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, proc.Close()) }()
	files := proc.Files()
	letGo := func() {
		for _, f := range files {
			_ = f.Close() // one of them has been already
		}
	}
	defer letGo()
	if err := pollfd.OpenAll(files); err != nil { // so that a read ends when its file is closed
		return done, err
	}
	// When the caller goes, the program does, and what is copied ends.
	defer context.AfterFunc(ctx, func() { letGo(); _ = proc.Close() })()
	var last report
	read := make(chan struct{})
	go func() {
		defer close(read)
		last = reports(files[1], func(n workspace.Progress) {
			moved()
			if progress != nil {
				progress(n)
			}
		})
	}()
	// Nobody is told anything after the end.
	defer func() { letGo(); <-read }()
	copied := move(files, func(r io.Reader) io.Reader { return &moving{r, moved} })
	if copied != nil { // nobody reads or writes the rest
		_ = files[0].Close()
		_ = proc.Close()
	}
	all.Store(true)
	moved()
	status, err := proc.Wait(ctx)
	if err != nil {
		return done, err
	}
	<-read
	if last.Summary != nil {
		done = workspace.Progress{Entries: last.Summary.Entries, Bytes: last.Summary.Bytes}
	}
	switch {
	case ctx.Err() != nil:
		return done, context.Cause(ctx)
	case errdefs.IsResourceExhausted(copied): // which the program sees as a closed stream
		return done, copied
	case last.Error != "":
		return done, fmt.Errorf("the archiver says: %s: %w", record.Clip(strconv.QuoteToGraphic(last.Error)), kindOf(last.Kind))
	case copied != nil:
		return done, copied
	case status.Code != 0:
		return done, fmt.Errorf("the archiver ended with code %d (killed for memory: %v) and without a reason: %w", status.Code, status.OOM,
			errdefs.ErrInternal)
	}
	return done, nil
}

// reports reads the lines of the program to their end and returns the last that says how it
// ended. Lines of another form are passed over: others inside can write there too.
func reports(r io.Reader, progress func(workspace.Progress)) (last report) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxReport)
	for s.Scan() {
		var line report
		if json.Unmarshal(s.Bytes(), &line) != nil {
			continue
		}
		if line.Progress != nil {
			progress(*line.Progress)
		}
		if line.Summary != nil || line.Error != "" {
			last = line
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line that was too long: what follows must not block it
	return last
}

// kindOf is the kind of error that a report names, of those that it may.
func kindOf(word string) error {
	switch word {
	case "resource_exhausted", "data_loss", "invalid_argument", "failed_precondition", "permission_denied":
		return record.KindNamed(word)
	}
	return errdefs.ErrInternal
}
