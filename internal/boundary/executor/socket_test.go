package executor_test

import (
	"bytes"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// socketOf is the daemon's end of a command's socket.
func socketOf(t *testing.T, far []*os.File) net.Conn {
	t.Helper()
	if len(far) != 1 {
		t.Fatalf("%d descriptors came back, want the socket alone", len(far))
	}
	conn, err := net.FileConn(far[0])
	if err != nil {
		t.Fatal(err)
	}
	far[0].Close() // the connection has its own
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A command with a socket has it as the descriptor that was asked for, knows the number whatever its variables say, and has no
// other descriptor but its streams. What it prints is kept, and shown after its end.
func TestSocket(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, far := c.start(execapi.ExecParams{
			Argv: []string{"/usr/bin/perl", "-e", `syswrite STDOUT, "printed\n"; syswrite STDERR, "said\n";
				open S, "+<&=7" or die; $line = <S>; syswrite S, "$ENV{CARREL_TASK_FD} $line";
				for (0..255) { $l = readlink "/proc/self/fd/$_" or next; $l =~ s/:.*//; syswrite S, "$_ $l\n" } exit 4`},
			Socket: 7, Env: []string{execapi.SocketVariable + "=9"},
		}, execapi.MethodExec)
		conn := socketOf(t, far)
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "7 hello\n0 /dev/null\n1 pipe\n2 pipe\n7 socket\n" {
			t.Errorf("%q, %v", got, err)
		}
		if s := c.wait(n); s.Code != 4 {
			t.Errorf("%+v", s)
		}
		var l execapi.ListResult
		if _, err := c.Call(t.Context(), execapi.MethodList, nil, &l); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(l.Commands, func(x execapi.Command) bool { return x.ID == n })
		if i < 0 || l.Commands[i].Detached || l.Commands[i].Status == nil || l.Commands[i].Status.Code != 4 {
			t.Errorf("list: %+v", l)
		}
		if out := c.kept(n); out != "printed\nsaid\n" {
			t.Errorf("kept: %q", out)
		}
	})
}

func (c *client) kept(n id.Command) string {
	c.t.Helper()
	far, err := c.Call(c.t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer far[0].Close()
	all, err := io.ReadAll(far[0])
	if err != nil {
		c.t.Fatal(err)
	}
	return string(all)
}

// It is an attached command all the same: it ends with the connection that started it. Its output is bounded.
func TestSocketEndsWithItsClient(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		_, far := c.start(execapi.ExecParams{
			Argv: []string{"/bin/sh", "-c", "setsid sleep 300 & echo ready >&3; sleep 300"}, Socket: 3,
		}, execapi.MethodExec)
		conn := socketOf(t, far)
		if _, err := io.ReadFull(conn, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if _, err := io.Copy(io.Discard, conn); err != nil { // until every holder has ended
			t.Error(err)
		}
		noneLeft(t, w, dial(t, w, execapi.Control))
	})
}

func TestSocketOutputIsBounded(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n, _ := c.start(execapi.ExecParams{
		Argv: []string{"/bin/sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo end"}, Socket: 3, OutputLimit: 100_000,
	}, execapi.MethodExec)
	if s := c.wait(n); s.Code != 0 {
		t.Errorf("%+v", s)
	}
	if kept := c.kept(n); len(kept) > 100_000 || !bytes.HasSuffix([]byte(kept), []byte("xend\n")) {
		t.Errorf("%d bytes are kept", len(kept))
	}
}

// What a socket is impossible with is refused, and nothing runs.
func TestSocketRefused(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		touch := []string{"/bin/touch", "ran"}
		for text, p := range map[string]execapi.ExecParams{
			"cannot be the descriptor 2":  {Argv: touch, Socket: 2},
			"cannot be the descriptor 64": {Argv: touch, Socket: execapi.MaxSocket + 1},
			"cannot be the descriptor -1": {Argv: touch, Socket: -1},
			"is attached, has":            {Argv: touch, Socket: 3, Detach: true},
			"and is not waited for":       {Argv: touch, Socket: 3, Wait: true},
			"no streams of its own":       {Argv: touch, Socket: 3, Stdout: execapi.Pipe},
			"streams of its own, and":     {Argv: touch, Socket: 3, Stdin: execapi.FD},
		} {
			p.ID = id.NewCommand()
			if _, err := c.Call(t.Context(), execapi.MethodExec, p, nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", text, err)
			}
		}
		p := execapi.ExecParams{ID: id.NewCommand(), Argv: touch, Socket: 3, Rows: 24, Cols: 80}
		if _, err := c.Call(t.Context(), execapi.MethodSpawnTerminal, p, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a terminal: %v", err)
		}
		if _, err := os.Lstat(w.Home + "/ran"); err == nil {
			t.Error("something that was refused ran")
		}
	})
}
