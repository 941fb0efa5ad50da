package root_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// following is a carrel under way.
type following struct {
	what  string
	stdin io.WriteCloser
	lines *bufio.Reader
	errs  bytes.Buffer
	wait  func() error
	kill  func() error
}

// follow starts a carrel that lasts, with more in its environment.
func (h *host) follow(t *testing.T, environ []string, args ...string) *following {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	c := h.command(ctx, nil, args...)
	c.Env = append(c.Env, environ...)
	c.WaitDelay = time.Second
	f := &following{what: args[0], wait: c.Wait}
	c.Stderr = &f.errs
	out, err := c.StdoutPipe()
	if err == nil {
		f.lines = bufio.NewReader(out)
		f.stdin, err = c.StdinPipe()
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	f.kill = c.Process.Kill
	return f
}

func (f *following) line(t *testing.T) string {
	t.Helper()
	s, err := f.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v\n%s", f.what, err, f.errs.String())
	}
	return s
}

// Who follows something of a workspace with a token is cut off with the reason, and without another
// byte, when the workspace is renamed out of the token's reach. A user of the host, whose right rests on
// no name, goes on; so do commands that were detached.
func TestARenameEndsStreams(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	key := []string{"CARREL_TOKEN=" + strings.TrimSpace(h.carrel(t, "token", "create", "--role", "operator", "--workspace", d.Key))}
	detached := d.detach(t, "/bin/sh", "-c",
		"echo first; while [ ! -e gate ]; do sleep 0.05; done; echo second; touch passed; exec sleep 1000")

	logs := h.follow(t, key, "logs", "--follow", d.Key, detached)
	attach := h.follow(t, key, "attach", d.Key, detached)
	for _, f := range []*following{logs, attach} {
		if s := f.line(t); s != "first\n" {
			t.Fatalf("%s: %q", f.what, s)
		}
	}
	events := h.follow(t, key, "events", "--since", "1", d.Key)
	for !strings.Contains(events.line(t), "command.exec") { // up to what was just done
	}
	echo := func(f *following, text string) {
		t.Helper()
		_, _ = io.WriteString(f.stdin, text+"\n")
		if s := f.line(t); s != text+"\n" {
			t.Fatalf("%s: %q", f.what, s)
		}
	}
	attached := h.follow(t, key, "exec", "-i", d.Key, "--", "/bin/cat")
	mine := h.follow(t, nil, "exec", "-i", d.Key, "--", "/bin/cat")
	echo(attached, "one")
	echo(mine, "one")
	wait := h.follow(t, key, "wait", d.Name)
	mark := h.mark(t)

	h.carrel(t, "update", "--key", d.Key+" private", d.Key)
	d.Key += " private"
	t.Cleanup(func() { h.try(nil, "", "destroy", "--purge", d.Name) })
	_, _ = io.WriteString(attached.stdin, "two\n") // it may have ended
	d.sh(t, "touch gate; while [ ! -e passed ]; do sleep 0.05; done")
	for _, f := range []*following{logs, attach, events, attached, wait} {
		rest, err := io.ReadAll(f.lines)
		if err != nil || len(rest) > 0 {
			t.Errorf("%s is told %q after the rename: %v", f.what, rest, err)
		}
		if err := f.wait(); err == nil || !strings.Contains(f.errs.String(), "it was renamed") && f != wait {
			t.Errorf("%s ends with %v, %q", f.what, err, f.errs.String())
		}
	}
	if !strings.Contains(wait.errs.String(), "permission denied") && !strings.Contains(wait.errs.String(), "cannot let token") {
		t.Errorf("wait ends with %q", wait.errs.String())
	}
	until(t, "the record of each refusal", func() bool {
		denials := 0
		for _, r := range h.since(t, mark) {
			if r.Type == "denial" {
				denials++
			}
		}
		return denials >= 5
	})
	// What was passed to a user of the host as descriptors stays theirs.
	echo(mine, "two")
	_ = mine.stdin.Close()
	if err := mine.wait(); err != nil {
		t.Errorf("a user's own: %v, %s", err, mine.errs.String())
	}
	// The command of the stream that was cut off is hung up, the detached one lives.
	until(t, "the end of what was attached", func() bool {
		out := h.carrel(t, "ps", d.Key)
		return !strings.Contains(out, "/bin/cat")
	})
	if out := h.carrel(t, "ps", d.Key); !strings.Contains(out, "sleep 1000") && !strings.Contains(out, detached) {
		t.Errorf("the detached command is gone:\n%s", out)
	}
	h.carrel(t, "destroy", "--purge", d.Key)
}
