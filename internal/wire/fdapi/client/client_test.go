package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/internal/wire/fdapi/client"
)

// dialAs names the socket that this program connects to when it is started as somebody else, whom no mode lets pass.
const dialAs = "CARREL_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(dialAs); socket != "" {
		fmt.Println("begins")
		c, err := client.Dial(context.Background(), socket)
		if err == nil {
			_ = c.Close()
		}
		fmt.Println(err)
		return
	}
	os.Exit(m.Run())
}

// A client that comes while the daemon opens its socket to those who may use it waits for that. One that may not use it is told so.
func TestDialWhileItStarts(t *testing.T) {
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "program") // where somebody else can start it
	self, err := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(program, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		before, then os.FileMode
		want         string
	}{
		"opened to it":     {0, 0o666, "<nil>"},
		"not opened to it": {0, 0o400, "permission denied"},
		"closed to it":     {0o400, 0o400, "permission denied"},
		"open":             {0o666, 0o666, "<nil>"},
	} {
		socket := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(socket, c.before); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = []string{dialAs + "=" + socket}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan()
		if err := os.Chmod(socket, c.then); err != nil {
			t.Fatal(err)
		}
		lines.Scan()
		if got := lines.Text(); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = l.Close()
	}
}
