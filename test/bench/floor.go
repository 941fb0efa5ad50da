package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// The floor is what an exec cannot go below on this host: the same steps with nothing else in them. This program asks a
// second process over a socket, which writes a line to a file, waits until it is on the disk and asks a third, which
// starts the command and waits for its end; the answer goes back the same way. Nothing is parsed, judged, authenticated,
// confined or hashed.
const (
	floorRecordArg = "floor-record" // FILE; stdin is who asks, descriptor 3 who starts
	floorStartArg  = "floor-start"  // stdin is who asks
)

// floorLine and floorFile are as large as the two records of an exec, and as the part of the record that is zeroed ahead.
const (
	floorLine = 1200
	floorFile = 4 << 20
)

// floor starts both processes. They end with their sockets.
func (b *bench) floor() (c measure.Contestant, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return c, nil, err
	}
	near, recorder, err := socketPair()
	if err != nil {
		return c, nil, err
	}
	between, starter, err := socketPair()
	if err != nil {
		_, _ = near.Close(), recorder.Close()
		return c, nil, err
	}
	far, err := between.(*net.UnixConn).File()
	_ = between.Close()
	var all []*exec.Cmd
	stop = func() {
		_ = near.Close()
		for _, p := range all {
			_ = p.Wait() // it ends with its socket
		}
	}
	start := func(in, extra *os.File, args ...string) {
		p := exec.CommandContext(context.WithoutCancel(b.ctx), self, args...)
		p.Stdin, p.Stderr = in, os.Stderr
		if extra != nil {
			p.ExtraFiles = []*os.File{extra}
		}
		if err == nil {
			if err = p.Start(); err == nil {
				all = append(all, p)
			}
		}
	}
	start(starter, nil, floorStartArg)
	start(recorder, far, floorRecordArg, filepath.Join(b.dir, "floor"))
	_, _ = recorder.Close(), starter.Close()
	if far != nil {
		_ = far.Close()
	}
	if err != nil {
		stop()
		return c, nil, fmt.Errorf("cannot start the floor: %w", err)
	}
	answers := bufio.NewReader(near)
	return measure.Contestant{Name: report.Floor, Op: measure.Timed(func() error {
		if _, err := near.Write([]byte("run\n")); err != nil {
			return err
		}
		line, err := answers.ReadSlice('\n')
		if err == nil && string(line) != "ok\n" {
			err = fmt.Errorf("the floor says %q", line)
		}
		return err
	})}, stop, nil
}

// liveFloor is the life of one of both processes.
func liveFloor(args []string) error {
	if args[0] == floorRecordArg && len(args) == 2 {
		return recordFloor(args[1])
	}
	return startFloor()
}

// recordFloor is the life of the second process.
func recordFloor(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(make([]byte, floorFile)); err == nil { // blocks that are there need no change of the inode
		err = f.Sync()
	}
	if err != nil {
		return err
	}
	starter, err := connOf(os.NewFile(3, "starter"))
	if err != nil {
		return err
	}
	answers, line, at := bufio.NewReader(starter), make([]byte, floorLine), int64(0)
	for i := range line {
		line[i] = 'x'
	}
	return answerEach(func() error {
		if _, err := f.WriteAt(line, at); err != nil {
			return err
		}
		at = (at + floorLine) % (floorFile - floorLine)
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		if _, err := starter.Write([]byte("run\n")); err != nil {
			return err
		}
		_, err := answers.ReadSlice('\n')
		return err
	})
}

// startFloor is the life of the third process.
func startFloor() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return answerEach(func() error {
		p, err := os.StartProcess(command, []string{command}, &os.ProcAttr{Files: []*os.File{null, null, null}})
		if err != nil {
			return err
		}
		s, err := p.Wait()
		if err == nil && !s.Success() {
			err = errors.New(s.String())
		}
		return err
	})
}

// answerEach does one thing for each line on standard input and says "ok", until the end of input.
func answerEach(do func() error) error {
	c, err := connOf(os.Stdin)
	if err != nil {
		return err
	}
	for r := bufio.NewReader(c); ; {
		if _, err := r.ReadSlice('\n'); err != nil {
			return nil //nolint:nilerr // who asked is gone
		}
		if err := do(); err != nil {
			return err
		}
		if _, err := c.Write([]byte("ok\n")); err != nil {
			return err
		}
	}
}
