package cli_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/ptytest"
)

// asCLI has this test program be carrel: signals are for a process of its own.
const asCLI = "CARREL_TEST_AS_CLI"

func TestMain(m *testing.M) {
	if os.Getenv(asCLI) != "" {
		os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Exit))
	}
	os.Exit(m.Run())
}

// client is a carrel of its own process.
type client struct {
	*exec.Cmd
	err  bytes.Buffer
	done chan error
}

func startClient(t *testing.T, socket string, args ...string) *client {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &client{Cmd: exec.CommandContext(t.Context(), self, args...), done: make(chan error, 1)}
	c.Env = append(os.Environ(), asCLI+"=1", carrel.HostEnv+"=unix://"+socket)
	c.Stderr = &c.err
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.done <- c.Wait() }()
	return c
}

func (c *client) send(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the end that a signal was sent for.
func (c *client) ends(t *testing.T, s syscall.Signal) {
	t.Helper()
	select {
	case err := <-c.done:
		if err == nil {
			t.Errorf("%v: it ended as if all was well", s)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("%v did not end %q", s, c.Args[1:])
		_ = c.Process.Kill()
		<-c.done
	}
}

// deaf takes commands, and answers nothing else about them.
type deaf struct{ *apitest.Gate }

func (d *deaf) Signal(ctx context.Context, _ principal.Principal, _ string, _ execapi.StopTaskParams) error {
	<-ctx.Done()
	return ctx.Err()
}

var ending = []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP}

// A daemon that answers nothing holds nobody who wants to leave.
func TestSignalsEndWhatWaitsForTheDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan net.Conn, 64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked <- c
		}
	}()
	for _, args := range [][]string{
		{"exec", "demo", "--", "true"},
		{"exec", "--wait", "5m", "demo", "--", "true"},
		{"exec", "-d", "demo", "--", "true"},
		{"create", "--wait", "5m", "demo"},
		{"ls"},
		{"logs", "demo"},
		{"audit", "tail"},
		{"destroy", "demo"},
	} {
		for _, s := range ending {
			c := startClient(t, socket, args...)
			conn := <-asked
			c.send(t, s)
			c.ends(t, s)
			conn.Close()
			if said := c.err.String(); s == syscall.SIGQUIT && (!strings.Contains(said, "quit") || strings.Contains(said, "goroutine ")) {
				t.Errorf("Ctrl-\\ in %q: it said %.300q", args, said)
			}
		}
	}
}

// A person who waits for a daemon that answers nothing is told so, and a program is not.
func TestWaitingForTheDaemonIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	silent := startClient(t, socket, "ls")
	var terminals []*ptytest.Terminal
	for _, args := range [][]string{{"ls"}, {"exec", "demo", "--", "true"}, {"destroy", "demo"}} {
		c := exec.CommandContext(t.Context(), self, args...)
		c.Env = append(os.Environ(), asCLI+"=1", carrel.HostEnv+"=unix://"+socket)
		terminals = append(terminals, ptytest.Start(t, c, 24, 200, false))
	}
	const text = "has not answered for 3s"
	for _, x := range terminals[:2] {
		x.Expect("carrel: waiting for the daemon at unix://" + socket + ", which " + text)
	}
	for _, x := range terminals {
		x.Type("\x03")
		if code := x.Wait(); code == 0 {
			t.Errorf("it ended well: %s", x.Screen())
		}
	}
	if s := terminals[2].Screen(); strings.Contains(s, text) {
		t.Errorf("what takes as long as it takes: %s", s)
	}
	silent.send(t, syscall.SIGINT)
	silent.ends(t, syscall.SIGINT)
	if s := silent.err.String(); strings.Contains(s, text) {
		t.Errorf("a program was told %s", s)
	}
}

// Nor does one that took the command and then answers nothing any more.
func TestSignalsEndWhoIsAttached(t *testing.T) {
	g := &apitest.Gate{}
	caller := principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	socket, _ := apitest.Serve(t, &deaf{g}, &caller, api.Options{})
	t.Cleanup(g.Close)
	if c := startClient(t, socket, "create", "demo"); <-c.done != nil {
		t.Fatal(c.err.String())
	}
	clients := map[*client]syscall.Signal{}
	for _, s := range ending {
		before := g.Last().ID
		c := startClient(t, socket, "exec", "demo", "--", "sleep", "600")
		if err := g.Await(t.Context(), func(last execapi.ExecParams, _ execapi.ResizeParams) bool { return last.ID != before }); err != nil {
			t.Fatal(err)
		}
		clients[c] = s
	}
	for c, s := range clients {
		c.send(t, s)
	}
	for c, s := range clients {
		c.ends(t, s)
		if said := c.err.String(); !strings.Contains(said, "carrel doctor") && !strings.Contains(said, "cannot go on") {
			t.Errorf("%v: it said %q", s, said)
		}
	}
}

// What a person may have to approve can be told how long to wait for that: the request, and the command that sends it.
func TestWhatAsksCanWait(t *testing.T) {
	byHelp := map[string]*cobra.Command{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		byHelp[c.Short] = c
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(cli.Command())
	services, seen := carrelv1.File_carrel_v1_carrel_proto.Services(), 0
	for _, r := range operation.Table {
		if len(r.Calls) == 0 || !r.Judged.Command && !slices.ContainsFunc(r.Judged.Rules, func(u operation.Rule) bool { return u.Asks }) {
			continue
		}
		if c := byHelp[r.Help]; c == nil || c.Flags().Lookup("wait") == nil {
			t.Errorf("%s: its command has no --wait", r.Name)
		}
		if r.Judged.Command {
			continue // Command.approval_wait_ms
		}
		for _, call := range r.Calls {
			service, name, _ := strings.Cut(call.Path, "/")
			in := services.ByName(protoreflect.Name(service)).Methods().ByName(protoreflect.Name(name)).Input()
			if in.Fields().ByName("approval_wait_ms") == nil {
				t.Errorf("%s has no approval_wait_ms", in.Name())
			}
			seen++
		}
	}
	if seen == 0 {
		t.Error("no operation but commands asks a person")
	}
}
