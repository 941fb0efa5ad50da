package executor_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// connects is a script that connects to a socket and sends it a word.
const connects = `use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) or die; ` +
	`connect(S, pack_sockaddr_un("\0" . substr($ARGV[0], 1))) or die "connect: $!"; syswrite(S, "from inside")`

// A socket of a task is reached from inside, and by nobody else; it is there as long as whoever asked for it has it.
func TestListen(t *testing.T) {
	bothRoles(t, func(t *testing.T, _ *launchtest.Workspace, c *client) {
		task := id.NewCommand()
		name := execapi.Listening(task)
		files, err := c.Call(t.Context(), execapi.MethodListen, execapi.ListenParams{Task: task}, nil)
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %d descriptors", err, len(files))
		}
		l, err := net.FileListener(files[0])
		files[0].Close()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if l.Addr().String() != name {
			t.Errorf("it listens at %q", l.Addr())
		}
		said := make(chan string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				said <- err.Error()
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			b, _ := io.ReadAll(conn)
			said <- string(b)
		}()
		perl := func() execapi.ExecResult {
			res, err := c.run(execapi.ExecParams{
				Argv: []string{"/usr/bin/perl", "-e", connects, name}, Stderr: execapi.Capture,
			})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		if conn, err := new(net.Dialer).DialContext(t.Context(), "unix", name); err == nil {
			conn.Close()
			t.Error("it is reached from outside of the workspace")
		}
		if res := perl(); res.Status.Code != 0 {
			t.Fatalf("from inside: %+v %s", res.Status, res.Stderr)
		}
		if s := <-said; s != "from inside" {
			t.Errorf("it heard %q", s)
		}
		if _, err := c.Call(t.Context(), execapi.MethodListen, execapi.ListenParams{Task: task}, nil); err == nil {
			t.Error("a second socket of the same name was opened")
		}
		l.Close()
		if res := perl(); res.Status.Code == 0 {
			t.Error("it is there when whoever had it closed it: the executor has kept it")
		}
		for _, bad := range []id.Command{"", "x", "../x"} {
			if _, err := c.Call(t.Context(), execapi.MethodListen, execapi.ListenParams{Task: bad}, nil); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: %v", bad, err)
			}
		}
	})
}
