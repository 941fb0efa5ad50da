// Package filerun has the program for files work in a workspace: one process inside for each request, with the rights of
// the workspace's commands.
//
// It must not open any path of a workspace itself, and what comes from there is bytes that anybody may have written.
package filerun

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// patience is how long nothing may come or go before the program is ended, and longPatience of what tells nothing
// on its way. A watch may be silent.
const (
	patience     = 2 * time.Minute
	longPatience = 15 * time.Minute
	endPatience  = 10 * time.Second
)

var errStill = fmt.Errorf("the program that works on its files did nothing for too long, so it was ended; see what runs in the "+
	"workspace: %w",
	errdefs.ErrUnavailable)

// exchange is one request to one process of the program.
type exchange struct {
	req    *fileapi.Request
	s      fileapi.Streams
	still  *time.Timer
	wait   time.Duration // Runner.Patience
	listed int
}

func (x *exchange) moved() {
	switch x.req.Op {
	case fileapi.Watch:
		x.still.Stop()
	case fileapi.Remove:
		x.still.Reset(longPatience)
	default:
		x.still.Reset(x.wait)
	}
}

// Runner runs the program.
type Runner struct {
	// Program returns carrel-archive, for Runner to close. Required.
	Program func() (*os.File, error)
	// Patience is how long nothing may come or go before the program is ended; 0 is two minutes. A watch may be silent.
	Patience time.Duration
}

// Run has the program carry out a request, which is valid, in a workspace that runs.
func (x Runner) Run(ctx context.Context, rt runtime.Runtime, p permit.Permit, r *fileapi.Request, s fileapi.Streams) (
	res fileapi.Result, err error,
) {
	program, err := x.Program()
	if err != nil {
		return res, err
	}
	defer program.Close()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	wait := cmp.Or(x.Patience, patience)
	e := &exchange{req: r, s: s, wait: wait, still: time.AfterFunc(wait, func() { give(errStill) })}
	defer e.still.Stop()
	params := execapi.ExecParams{
		ID: id.NewCommand(), Argv: []string{"carrel-archive", "files"}, Program: true, Stdin: execapi.Pipe, Stdout: execapi.Pipe,
	}
	sent := []*os.File{program}
	if r.Direct = s.Socket != nil; r.Direct {
		params.Stderr, sent = execapi.FD, append(sent, s.Socket)
	}
	proc, err := rt.Spawn(ctx, p, params, false, sent...)
	if err == nil && r.Direct {
		err = s.Socket.Close() // so that the other end sees the program's end
	}
	if err != nil {
		return res, err
	}
	defer func() { _ = proc.Close() }()
	files := proc.Files()
	var once sync.Once
	letGo := func() {
		once.Do(func() {
			for _, f := range files {
				_ = f.Close() // what waits for it ends
			}
		})
	}
	defer letGo()
	if len(files) != 2 {
		return res, fmt.Errorf("cannot use the streams of the program for files: there are %d: %w", len(files), errdefs.ErrInternal)
	}
	if err := pollfd.OpenAll(files); err != nil {
		return res, err
	}
	defer context.AfterFunc(ctx, func() { letGo(); _ = proc.Close() })()

	all := make(chan struct{})
	var sendErr error
	go func() {
		sendErr = e.send(files[0])
		broken := sendErr != nil
		close(all) // before the program hears of it, and says that it was broken off
		if broken {
			_ = files[0].Close() // what is not whole is given up
		}
	}()
	res, err = e.receive(files[1])
	var serr error
	answered := false
	select {
	case <-all:
		serr = sendErr
	default: // the answer came first, and what is still to be sent has no use
		answered = !errors.Is(err, errBroken)
		letGo()
		if s.In != nil {
			_ = s.In.Close()
		}
		<-all
	}
	switch {
	case answered: // what ends with the rest of what was to be sent, as the connection that it comes on, changes nothing
		return res, err
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	case serr != nil && !errors.Is(serr, os.ErrClosed) && (err == nil || errdefs.IsAborted(err) || errors.Is(err, errBroken)):
		return res, serr // why it was broken off
	case errors.Is(err, errBroken):
		return res, ended(ctx, proc, r)
	case err != nil:
		return res, err
	}
	return res, nil
}

// errBroken says that the program's answer has no end.
var errBroken = errors.New("the program for files broke off")

// ended says why a process ended without an answer.
func ended(ctx context.Context, proc runtime.Process, r *fileapi.Request) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	status, err := proc.Wait(ctx)
	if err != nil {
		return fmt.Errorf("cannot finish (%s of files): the workspace stopped, or its executor went away: %w", r.Op, err)
	}
	if status.Signal != 0 && !status.OOM {
		return fmt.Errorf("cannot finish (%s of files): the workspace was stopped, or its process was ended (signal %d); what was not whole is "+
			"not there: %w", r.Op, status.Signal, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("cannot finish (%s of files): its process in the workspace ended with code %d (for lack of memory: %v); "+
		"raise its limits of memory or processes: %w", r.Op, status.Code, status.OOM, errdefs.ErrUnavailable)
}

// send sends the request, and what goes with it. Its error is the caller's, or os.ErrClosed where the program has
// gone, which then says why.
func (x *exchange) send(to *os.File) error {
	w := &fileapi.Writer{W: to}
	if w.JSON(fileapi.Asked, x.req) != nil {
		return os.ErrClosed
	}
	if x.s.In == nil {
		return nil
	}
	for {
		n, err := x.fill(w.Room(fileapi.Piece))
		if n > 0 {
			if w.SendRoom(fileapi.Data, n) != nil {
				return os.ErrClosed
			}
			x.moved()
		}
		if errors.Is(err, io.EOF) {
			if w.Send(fileapi.End, nil) != nil {
				return os.ErrClosed
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fill reads until buf is full: a body comes in small pieces, and each that is sent wakes two processes. Nobody
// waits for a part of a file.
func (x *exchange) fill(buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = x.s.In.Read(buf[n:])
		n += m
		if m > 0 {
			x.moved()
		}
	}
	return n, err
}

// receive reads the answer to its end.
func (x *exchange) receive(from *os.File) (res fileapi.Result, err error) {
	frames := &fileapi.Reader{R: from}
	for {
		kind, b, err := frames.Next()
		if err != nil {
			if errdefs.IsDataLoss(err) {
				return res, err
			}
			return res, errBroken
		}
		x.moved()
		if kind == fileapi.Finished {
			if err := json.Unmarshal(b, &res); err != nil {
				return res, Unreadable(err)
			}
			if res.Error != "" {
				return res, fmt.Errorf("%s: %w", record.Clip(Shown(res.Error)), kindOf(res.Kind))
			}
			return res, nil
		}
		if err := x.take(kind, b); err != nil {
			return res, err
		}
		x.moved()
	}
}

func (x *exchange) take(kind fileapi.Kind, b []byte) error {
	switch {
	case kind == fileapi.Data && x.s.Out != nil:
		_, err := x.s.Out.Write(b)
		return err
	case kind == fileapi.Entries && x.s.Entries != nil:
		var list []fileapi.Entry
		if err := json.Unmarshal(b, &list); err != nil {
			return Unreadable(err)
		}
		for i := range list {
			x.listed += list[i].Weigh()
		}
		if x.listed > 2*fileapi.MaxListed {
			return Unreadable(errors.New("it lists more than it may"))
		}
		return x.s.Entries(list)
	case kind == fileapi.Changed && x.s.Events != nil:
		var list []fileapi.Event
		if err := json.Unmarshal(b, &list); err != nil {
			return Unreadable(err)
		}
		return x.s.Events(list)
	case kind == fileapi.Moved:
		var p fileapi.Progress
		if err := json.Unmarshal(b, &p); err != nil {
			return Unreadable(err)
		}
		if x.s.Progress != nil {
			x.s.Progress(p)
		}
		return nil
	}
	return Unreadable(fmt.Errorf("a message of kind %q has no place here", byte(kind)))
}

// Unreadable is the error of an answer that the program would not give.
func Unreadable(err error) error {
	return fmt.Errorf("cannot use the answer of the program for files: %w: %w", err, errdefs.ErrDataLoss)
}

// Shown is what the program says, without what a terminal would obey.
func Shown(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsGraphic(r) }) {
		return strconv.QuoteToGraphic(s)
	}
	return s
}

// kindOf is the kind of error that the program names, of those that it may.
func kindOf(word string) error {
	switch word {
	case "not_found", "already_exists", "resource_exhausted", "invalid_argument", "failed_precondition", "permission_denied", "aborted":
		return record.KindNamed(word)
	}
	return errdefs.ErrInternal
}
