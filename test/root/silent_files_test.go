package root_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// filePrograms counts the programs for files that work in a workspace.
func (d *desk) filePrograms(t *testing.T) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if b, err := os.ReadFile(name); err != nil || string(b) != "carrel-archive\x00files\x00" { // or it has gone
			continue
		}
		var st syscall.Stat_t
		if syscall.Stat(filepath.Dir(name), &st) == nil && st.Uid == d.ExecutorUID {
			n++
		}
	}
	return n
}

// Clients on the daemon's host that bring a socket and then neither read nor write hold the places of one workspace, and nothing
// else: others are served, commands run, and a client that goes gives its place back. With CARREL_TEST_SILENT=1 the test waits
// for the deadline of two minutes; package compose has it with a shorter one.
func TestSilentFileClients(t *testing.T) {
	h := newHostFor(t)
	d, other := h.desk(t), h.desk(t)
	text := strings.Repeat("0123456789abcdef", 256<<10) // 4 MiB, more than what is between them holds
	for _, x := range []*desk{d, other} {
		if r := h.try(nil, text, "files", "write", x.Key, "file"); r.code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	type client struct {
		end   func()
		ended chan struct{}
	}
	begun := time.Now()
	var clients []client
	for i := range 8 {
		args := []string{"files", "cat", d.Key, "file"}
		if i%2 == 1 {
			args = []string{"files", "write", d.Key, "file"}
		}
		c := h.command(t.Context(), nil, args...)
		x := client{ended: make(chan struct{})}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		x.end = func() { _ = c.Process.Signal(syscall.SIGTERM) }
		go func() { _, _ = c.Process.Wait(); close(x.ended) }()
		t.Cleanup(func() { _ = c.Process.Kill(); <-x.ended; in.Close(); out.Close() })
		clients = append(clients, x)
	}
	until(t, "all eight at work", func() bool { return d.filePrograms(t) == 8 })
	if r := h.try(nil, "", "files", "cat", other.Key, "file"); r.code != 0 || r.out != text {
		t.Errorf("another workspace: %d, %d bytes, %s", r.code, len(r.out), r.err)
	}
	if r := h.try(nil, "", "exec", d.Key, "--", "true"); r.code != 0 {
		t.Errorf("a command beside them: %+v", r)
	}
	if r := h.try(nil, "", "files", "stat", d.Key, "file"); r.code == 0 || !strings.Contains(r.err, "8 requests are under way") {
		t.Errorf("a ninth request: %+v", r)
	}
	clients[0].end()
	<-clients[0].ended
	if r := h.try(nil, "", "files", "cat", d.Key, "file"); r.code != 0 || r.out != text {
		t.Errorf("after one has gone: %d, %d bytes, %s", r.code, len(r.out), r.err)
	}
	if os.Getenv("CARREL_TEST_SILENT") == "" {
		return
	}
	// The clients themselves may go on to wait for their own stdin and stdout; what counts is the program and its place.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ; d.filePrograms(t) > 0; <-tick.C {
		if time.Since(begun) > 3*time.Minute {
			t.Fatal("clients that do nothing are not ended")
		}
	}
	if after := time.Since(begun); after < 2*time.Minute {
		t.Errorf("they were ended after %v", after)
	}
	if r := h.try(nil, "", "files", "cat", d.Key, "file"); r.code != 0 || r.out != text {
		t.Errorf("after their end: %d, %d bytes, %s", r.code, len(r.out), r.err)
	}
}
