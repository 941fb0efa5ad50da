package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// stream measures how fast a command's stdout comes through: through "carrel exec", into
// /dev/null and into a pipe that is read here, and through the API's Stream, each beside
// the same command's through cat into the same sink.
func (b *bench) stream() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	if _, err := h.workspace("demo"); err != nil {
		return err
	}
	size, rounds := int64(2<<30), 9
	if b.quick {
		size, rounds = 512<<20, 3
	}
	source := []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}
	env := append(os.Environ(), carrel.HostEnv+"="+h.address())
	cli := func(sink *os.File) error {
		c := exec.CommandContext(b.ctx, h.program, append([]string{"exec", "demo", "--"}, source...)...)
		c.Env, c.Stdout = env, sink
		return c.Run()
	}
	cat := func(sink *os.File) error { return throughCat(b.ctx, source, sink) }
	p := measure.Pace{Rounds: rounds, Warm: 0}
	for _, f := range []struct {
		id, name string
		ours     func() error
		cat      func() error
	}{
		{report.StreamNull, "stdout to /dev/null", intoNull(cli), intoNull(cat)},
		{report.StreamPipe, "stdout to a pipe", intoPipe(cli, size), intoPipe(cat, size)},
		{report.StreamAPI, "stdout by the API's Stream", func() error { return h.streamed(source, size) }, intoPipe(cat, size)},
	} {
		// One operation a block: each is long, and its start is part of it.
		got := measure.Interleave(b.ctx, p, []measure.Contestant{
			{Name: f.name, Op: measure.Timed(f.ours)}, {Name: report.Cat, Op: measure.Timed(f.cat)},
		})
		for i := range got {
			for _, r := range got[i].Rounds {
				got[i].Rates = append(got[i].Rates, float64(size)/1e9/r[0].Seconds())
			}
		}
		if err := b.rates(f.id, "GB/s", got[0], got[1:]); err != nil {
			return err
		}
	}
	return nil
}

func intoNull(f func(sink *os.File) error) func() error {
	return func() error {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer null.Close()
		return f(null)
	}
}

// intoPipe reads what f writes, to the last byte.
func intoPipe(f func(sink *os.File) error, size int64) func() error {
	return func() error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		done := make(chan error, 1)
		go func() {
			err := f(w)
			w.Close()
			done <- err
		}()
		n, err := drain(r)
		if err := errors.Join(err, <-done); err != nil {
			return err
		}
		return whole(n, size)
	}
}

func drain(r io.Reader) (n int64, err error) {
	buf := make([]byte, 256<<10)
	for {
		k, err := r.Read(buf)
		n += int64(k)
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

func whole(got, want int64) error {
	if got != want {
		return fmt.Errorf("%d bytes came of %d", got, want)
	}
	return nil
}

// throughCat runs source with its stdout going through cat into sink.
func throughCat(ctx context.Context, source []string, sink *os.File) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	from, cat := exec.CommandContext(ctx, source[0], source[1:]...), exec.CommandContext(ctx, "cat")
	from.Stdout, cat.Stdin, cat.Stdout = w, r, sink
	err = from.Start()
	w.Close()
	if err == nil {
		err = errors.Join(cat.Run(), from.Wait())
	}
	r.Close()
	return err
}

// streamed receives a command's output through CommandService.Stream.
func (h *carrelHost) streamed(argv []string, size int64) error {
	ctx, cancel := context.WithTimeout(h.b.ctx, 5*time.Minute)
	defer cancel()
	s := h.client.Commands().Stream(ctx)
	defer func() { _ = s.CloseResponse() }() // what there was to learn has come by then
	err := s.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{
		Workspace: "demo", Command: &carrelv1.Command{Argv: argv},
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // the reason of an EOF comes with Receive
		return err
	}
	var n int64
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		n += int64(len(m.GetStdout()))
		if e := m.GetExited(); e != nil {
			if e.GetCode() != 0 {
				return fmt.Errorf("%s ended with code %d", argv[0], e.GetCode())
			}
			return errors.Join(whole(n, size), s.CloseRequest())
		}
	}
}
