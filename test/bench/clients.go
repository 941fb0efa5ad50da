package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/terminal"
)

// echoes is what the terminals run: it sends back each key that is typed.
var echoes = []string{"/bin/sh", "-c", "stty raw -echo; echo ready; exec cat"}

// clients measures what the clients that people have do beside what they have now.
func (b *bench) clients() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	if _, err := h.workspace("demo"); err != nil {
		return err
	}
	return errors.Join(b.keys(h), b.watched(h), b.transfers(h), b.ports(h), b.tools(h))
}

// between is how long a typist waits between two keys: less than a quick one does, and more than a session's pause between two
// drawings, which keys that follow at once would measure.
const between = 25 * time.Millisecond

// typed times one key and its echo, without the wait before.
func typed(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		time.Sleep(between)
		return measure.Timed(f)()
	}
}

// nextKey returns keys that are in no escape sequence, each another one than the last.
func nextKey() func() string {
	n := 0
	return func() string {
		n++
		return []string{"#", "%", "&", "~"}[n%4]
	}
}

// keys measures from a key that is typed to its echo, by a session of carrel's API beside a client of tmux on a terminal.
func (b *bench) keys(h *carrelHost) error {
	t, err := h.client.OpenTerminal(b.ctx, "demo", carrel.TerminalOptions{
		Session: "bench", Command: carrel.Spec{Argv: echoes}, Size: carrel.WindowSize{Rows: 24, Cols: 80},
	})
	if err != nil {
		return err
	}
	defer t.Close()
	buf := make([]byte, 64<<10)
	until := func(text string) error {
		for {
			_ = t.File.SetReadDeadline(time.Now().Add(terminal.Patience))
			n, err := t.File.Read(buf)
			if err != nil || bytes.Contains(buf[:n], []byte(text)) {
				return err
			}
		}
	}
	if err := until("ready"); err != nil {
		return err
	}
	key := nextKey()
	contestants := []measure.Contestant{{Name: "key to echo, by the API", Op: typed(func() error {
		k := key()
		if _, err := t.File.WriteString(k); err != nil {
			return err
		}
		return until(k)
	})}}
	op, end, err := b.tmux()
	if err != nil {
		b.Miss(report.Tmux, err)
	} else {
		defer end()
		contestants = append(contestants, measure.Contestant{Name: report.Tmux, Op: typed(op)})
	}
	got := measure.Interleave(b.ctx, b.pace(between), contestants)
	return b.times(report.ClientsKey, time.Millisecond, got[0], got[1:])
}

// tmux is a client of a tmux server of its own.
func (b *bench) tmux() (op func() error, end func(), err error) {
	path, err := exec.LookPath("tmux")
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(b.dir, "tmux.sock")
	args := append([]string{"-S", socket, "-f", "/dev/null", "new-session"}, echoes...)
	c := exec.CommandContext(b.ctx, path, args...)
	c.Env = append(os.Environ(), "TERM=xterm")
	x, err := terminal.Start(c, 24, 80, true)
	if err != nil {
		return nil, nil, err
	}
	end = func() {
		_ = exec.CommandContext(b.ctx, path, "-S", socket, "kill-server").Run() // it is this run's alone
		x.End()
	}
	if err = x.Until("the start of tmux", func(all string) bool { return strings.Contains(all, "ready") }); err == nil {
		err = exec.CommandContext(b.ctx, path, "-S", socket, "set", "-g", "status", "off").Run()
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	key, seen := nextKey(), 0
	return func() error {
		k := key()
		from := seen
		if err := x.Type(k); err != nil {
			return err
		}
		return x.Until("the echo of a key", func(all string) bool {
			at := strings.Index(all[from:], k)
			seen = len(all)
			return at >= 0
		})
	}, end, nil
}

// apart is more than a watch waits for what else there is to tell in a stream of changes.
const apart = 60 * time.Millisecond

// watched measures from a file that is made in the workspace to its event at the client.
func (b *bench) watched(h *carrelHost) error {
	w, err := h.workspace("demo")
	if err != nil {
		return err
	}
	_, err = h.client.Files().MakeDirectory(b.ctx, connect.NewRequest(&carrelv1.MakeDirectoryRequest{Workspace: "demo", Path: "watched"}))
	if err != nil {
		return fmt.Errorf("cannot make a directory in %s: %w", w.GetName(), err)
	}
	stream, err := h.client.Files().WatchFiles(b.ctx, connect.NewRequest(&carrelv1.WatchFilesRequest{Workspace: "demo", Path: "watched"}))
	if err != nil {
		return err
	}
	defer stream.Close()
	dir, n := filepath.Join(w.GetHome(), "watched"), 0
	op := func() error { // changes in a stream are told together, every 50 ms: see apart
		n++
		name := fmt.Sprint("f", n)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			return err
		}
		for stream.Receive() {
			for _, e := range stream.Msg().GetEvents() {
				if e.GetWhat() == "create" && filepath.Base(e.GetPath()) == name {
					return nil
				}
			}
		}
		return errors.Join(errors.New("the watch has ended"), stream.Err())
	}
	got := measure.Interleave(b.ctx, b.pace(apart), []measure.Contestant{{Name: "file to event", Op: func() (time.Duration, error) {
		time.Sleep(apart)
		return measure.Timed(op)()
	}}})
	return b.times(report.ClientsWatch, time.Millisecond, got[0], nil)
}
