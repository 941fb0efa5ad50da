// Command carrel-archive packs and unpacks a workspace's home, and as "carrel-archive files" works on
// its files, with the workspace's own id and inside its boundary. As "carrel-archive mcp SOCKET" it is what an agent
// in a workspace starts to reach carrel's tools.
package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/files/archive"
	"github.com/carrel-dev/carrel/internal/files/program"
	"github.com/carrel-dev/carrel/internal/wire/bridge"
)

func init() { build.Program("carrel-archive") }

// Signals keep their default action: the caller removes what is incomplete.
func main() {
	if len(os.Args) == 3 && os.Args[1] == "mcp" { // a command of the workspace, without rights to give up
		if err := bridge.Run(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "carrel-mcp:", err)
			os.Exit(archive.ExitFailed)
		}
		return
	}
	if err := archive.TakeFileID(); err != nil {
		fmt.Fprintln(os.Stderr, "carrel-archive:", err)
		os.Exit(archive.ExitFailed)
	}
	if len(os.Args) == 2 && os.Args[1] == "files" {
		os.Exit(program.Run(context.Background(), os.Stdin, os.Stdout, direct()))
	}
	os.Exit(archive.Run(context.Background(), build.Version(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// direct is the third descriptor under another number: at the end of a pipe that is the second or the third, Go ends a program.
func direct() *os.File {
	fd, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, unix.Stderr+1)
	if err != nil {
		return os.Stderr
	}
	return os.NewFile(uintptr(fd), "direct")
}
