package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Unpacking bounds what an archive may become. Zero fields are the archiver's defaults.
type Unpacking struct {
	Bytes, Entries, Ratio int64
}

// report is a line that the archiver writes beside its stream. It runs inside, so that
// what it says is shown and not relied on: docs/protocols/archive.md.
type report struct {
	Progress *workspace.Progress `json:"progress"`
	Summary  *struct {
		Entries int64 `json:"entries"`
		Bytes   int64 `json:"bytes"`
	} `json:"summary"`
	Error string `json:"error"`
	Kind  string `json:"kind"`
}

// maxReport bounds one line of it in bytes.
const maxReport = 16 << 10

// pack writes the home of a live workspace to w, as the archiver packs it inside.
func (g *Gate) pack(ctx context.Context, name id.Workspace, w io.Writer, progress func(workspace.Progress)) (workspace.Progress, error) {
	return g.archiver(ctx, name, []string{"pack", "/home/" + string(name)}, progress, func(files []*os.File) (*os.File, error) {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{files[0]}, make([]byte, 256<<10))
		return files[1], err
	}, false)
}

// unpack has the archiver make the home of a live workspace from r.
// With durable it returns once a loss of power would lose nothing.
func (g *Gate) unpack(ctx context.Context, name id.Workspace, r io.Reader, durable bool, progress func(workspace.Progress)) (workspace.Progress, error) {
	u := g.cfg.Unpacking
	args := []string{"unpack"}
	if durable {
		args = append(args, "--sync")
	}
	for flag, v := range map[string]int64{"--max-bytes": u.Bytes, "--max-entries": u.Entries, "--max-ratio": u.Ratio} {
		if v > 0 {
			args = append(args, flag+"="+strconv.FormatInt(v, 10))
		}
	}
	return g.archiver(ctx, name, append(args, "/home/"+string(name)), progress, func(files []*os.File) (*os.File, error) {
		_, err := io.CopyBuffer(struct{ io.Writer }{files[0]}, struct{ io.Reader }{r}, make([]byte, 256<<10))
		return files[1], errors.Join(err, files[0].Close())
	}, true)
}

// archiver runs the archiver inside and has copy move the stream, while its reports are
// read. copy gets the stream and the reports.
func (g *Gate) archiver(ctx context.Context, name id.Workspace, args []string, progress func(workspace.Progress),
	copy func([]*os.File) (*os.File, error), in bool,
) (done workspace.Progress, err error) {
	program, err := g.cfg.Archiver()
	if err != nil {
		return done, err
	}
	defer program.Close()
	e := execapi.ExecParams{ID: id.NewCommand(), Argv: append([]string{"carrel-archive"}, args...), Program: true, Stdout: execapi.Pipe, Stderr: execapi.Pipe}
	if in {
		e.Stdin, e.Stdout = execapi.Pipe, execapi.Null
	}
	proc, err := g.cfg.Runtime.Spawn(ctx, name, e, false, program)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, proc.Close()) }()
	files := proc.Files()
	defer func() {
		for _, f := range files {
			_ = f.Close() // one of them has been already
		}
	}()
	// When the caller goes, the archiver does, and what is copied ends.
	defer context.AfterFunc(ctx, func() { _ = proc.Close() })()
	var last report
	read := make(chan struct{})
	go func() {
		defer close(read)
		last = reports(files[1], progress)
	}()
	_, cerr := copy(files)
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
	case last.Error != "":
		return done, fmt.Errorf("the archiver says: %s: %w", clipTo(strconv.QuoteToGraphic(last.Error), maxError), kindFrom(last.Kind))
	case cerr != nil:
		return done, cerr
	case status.Code != 0:
		return done, fmt.Errorf("the archiver ended with code %d (killed for memory: %v) and without a reason: %w", status.Code, status.OOM, errdefs.ErrInternal)
	}
	return done, nil
}

// reports reads the lines of the archiver to their end and returns the last that says how
// it ended. Lines of another form are passed over: others inside can write there too.
func reports(r io.Reader, progress func(workspace.Progress)) (last report) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxReport)
	for s.Scan() {
		var line report
		if json.Unmarshal(s.Bytes(), &line) != nil {
			continue
		}
		if line.Progress != nil && progress != nil {
			progress(*line.Progress)
		}
		if line.Summary != nil || line.Error != "" {
			last = line
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line that was too long: what follows must not block it
	return last
}

// kindFrom is the kind of error that a report names.
func kindFrom(word string) error {
	for _, k := range []error{errdefs.ErrResourceExhausted, errdefs.ErrDataLoss, errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition, errdefs.ErrPermissionDenied} {
		if kindOf(k) == word {
			return k
		}
	}
	return errdefs.ErrInternal
}
