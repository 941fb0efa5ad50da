package executor_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func TestTerminal(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, far := c.start(execapi.ExecParams{
			Argv: []string{"/bin/sh", "-c", "tty; stty size; read x; stty size; echo \"got $x\"; exit 5"}, Rows: 33, Cols: 99,
		}, execapi.MethodSpawnTerminal)
		if len(far) != 1 {
			t.Fatalf("%d descriptors", len(far))
		}
		got := readUntil(t, far[0], "33 99")
		if !strings.Contains(got, "/dev/pts/0") {
			t.Errorf("terminal: %q", got)
		}
		if _, err := c.Call(t.Context(), execapi.MethodResize, execapi.ResizeParams{ID: n, Rows: 40, Cols: 120}, nil); err != nil {
			t.Fatal(err)
		}
		io.WriteString(far[0], "word\n")
		if got := readUntil(t, far[0], "got word"); !strings.Contains(got, "40 120") {
			t.Errorf("the new size is not seen: %q", got)
		}
		if s := c.wait(n); s.Code != 5 {
			t.Errorf("%+v", s)
		}
	})
}

func readUntil(t *testing.T, f *os.File, want string) string {
	t.Helper()
	var got strings.Builder
	b := make([]byte, 1024)
	for !strings.Contains(got.String(), want) {
		n, err := f.Read(b)
		got.Write(b[:n])
		if errors.Is(err, unix.EAGAIN) {
			unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 5000)
			continue
		}
		if err != nil {
			t.Fatalf("waiting for %q, got %q: %v", want, got.String(), err)
		}
	}
	return got.String()
}

func TestDetachedOutlivesItsClient(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, _ := c.start(execapi.ExecParams{
			Argv: []string{"/bin/sh", "-c", "echo first; while [ ! -e go ]; do sleep 0.05; done; rm go; echo last; exit 6"}, Detach: true,
		}, execapi.MethodExec)
		c.Close()
		c = dial(t, w, execapi.Control)
		var l execapi.ListResult
		if _, err := c.Call(t.Context(), execapi.MethodList, nil, &l); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(l.Commands, func(x execapi.Command) bool { return x.ID == n })
		if i < 0 || !l.Commands[i].Detached || l.Commands[i].Status != nil || l.Commands[i].Processes == 0 {
			t.Fatalf("list: %+v", l)
		}
		far, err := c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer far[0].Close()
		readUntil(t, far[0], "first\n")
		c.sh("touch go")
		if rest, err := io.ReadAll(far[0]); err != nil || string(rest) != "last\n" {
			t.Errorf("%q %v", rest, err)
		}
		var o execapi.OutputResult
		far, err = c.Call(t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n}, &o)
		if err != nil {
			t.Fatal(err)
		}
		defer far[0].Close()
		if all, _ := io.ReadAll(far[0]); string(all) != "first\nlast\n" || o.Lost != 0 {
			t.Errorf("%q %+v", all, o)
		}
		if o.Status == nil || o.Status.Code != 6 {
			t.Errorf("%+v", o.Status)
		}
	})
}

// A command may close its output long before it ends: a follower still learns of its end.
func TestFollowingEndsWithTheCommand(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	script := "echo last; exec >&- 2>&-; touch closed; while [ ! -e go ]; do sleep 0.01; done; exit 6"
	n, _ := c.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", script}, Detach: true}, execapi.MethodExec)
	c.sh("while [ ! -e closed ]; do sleep 0.01; done")
	var o execapi.OutputResult
	far, err := c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n}, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer far[0].Close()
	readUntil(t, far[0], "last\n")
	if o.Status != nil {
		t.Errorf("it has ended before it was let: %+v", o.Status)
	}
	c.sh("touch go")
	if rest, err := io.ReadAll(far[0]); err != nil || len(rest) != 0 {
		t.Errorf("%q %v", rest, err)
	}
	if far, err = c.Call(t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n}, &o); err != nil {
		t.Fatal(err)
	}
	far[0].Close()
	if o.Status == nil || o.Status.Code != 6 {
		t.Errorf("%+v", o.Status)
	}
}

func TestDetachedOutputIsBounded(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n, _ := c.start(execapi.ExecParams{
		Argv: []string{"/bin/sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end"}, Detach: true, OutputLimit: 100_000,
	}, execapi.MethodExec)
	far, err := c.Call(t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n, Follow: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer far[0].Close()
	io.Copy(io.Discard, far[0])
	var o execapi.OutputResult
	if far, err = c.Call(t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n}, &o); err != nil {
		t.Fatal(err)
	}
	defer far[0].Close()
	kept, _ := io.ReadAll(far[0])
	if len(kept) > 100_000 || !bytes.HasSuffix(kept, []byte("x\nend\n")) || o.Lost+int64(len(kept)) != 20_000_005 {
		t.Errorf("kept %d, lost %d", len(kept), o.Lost)
	}
}

func TestDetachedTerminal(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n, far := c.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", "echo hello; read x; echo got $x"}, Detach: true, Rows: 24, Cols: 80},
		execapi.MethodSpawnTerminal)
	if len(far) != 0 {
		t.Fatal("a detached terminal was handed out")
	}
	if far, err = c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n}, nil); err != nil {
		t.Fatal(err)
	}
	defer far[0].Close()
	readUntil(t, far[0], "hello")
	io.WriteString(far[0], "me\n")
	readUntil(t, far[0], "got me")
}

func TestAttachedEndsWithItsClient(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		_, far := c.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", "setsid sleep 300 & echo ready; sleep 300"}, Stdout: execapi.Pipe},
			execapi.MethodExec)
		b := make([]byte, 6)
		io.ReadFull(far[0], b)
		c.Close()
		if _, err := io.Copy(io.Discard, far[0]); err != nil { // until every holder has ended
			t.Error(err)
		}
		noneLeft(t, w, dial(t, w, execapi.Control))
	})
}
