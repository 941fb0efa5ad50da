// Package fast is the start of the command line: it runs the plain form of "carrel exec" by itself, as scripts and
// agents do in loops, and hands everything else over to the full program. Starting takes a fifth of the full
// program's start, so it links no flags, no HTTP and no protobuf.
//
//	carrel ARGS ──► plain exec?  ──yes──► Spawn on the daemon's socket ──► copy ──► exit code
//	                     │ no: another command or flag, a terminal, a token, another daemon
//	                     └──► exec(2) of carrel-cli
//
// It must not decide anything that the full program decides otherwise: what it is not sure of it hands over before it
// has asked the daemon for anything. Its texts and codes are those of the full program.
package fast

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/linux/relay"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/fdapi/client"
)

// Run runs a command line, which begins with the program's name, and returns the exit code.
func Run(argv []string) int {
	if code, done := exec(argv[1:]); done {
		return code
	}
	fmt.Fprintln(os.Stderr, "carrel:", attach.Message(errtext.Text(handOver(argv))))
	return attach.OwnFailure
}

// exec runs a command line if it is a plain exec. done is false if it is another one, and nothing was done then.
func exec(args []string) (code int, done bool) {
	p, ok := parse(args, os.LookupEnv)
	if !ok || isTerminal(0) && isTerminal(2) { // there the policy's question is asked
		return 0, false
	}
	socket, ok := socketOf(os.LookupEnv)
	if !ok {
		return 0, false
	}
	conn, err := client.Dial(context.Background(), socket)
	if err != nil {
		return 0, false // who may use which daemon, and what to do about it
	}
	signals := attach.Signals(false)
	var x *client.Conn
	var spawned spawnResponse
	var fds []*os.File
	err = attach.Interruptible(context.Background(), signals, func(ctx context.Context) (err error) {
		if x, err = client.Open(ctx, conn, socket, client.Patience); err != nil {
			return err
		}
		fds, err = x.Call(ctx, fdapi.Spawn, p.request(), &spawned, 2)
		return err
	})
	if err != nil {
		return failed(err), true
	}
	ctx, giveUp := context.WithCancelCause(context.Background())
	go attach.PassOn(ctx, signals, func(ctx context.Context, signal int) error {
		_, err := x.Call(ctx, fdapi.Signal, signalRequest{p.workspace, spawned.CommandID, signal}, new(struct{}), 0)
		return err
	}, nil, giveUp)
	far := relay.Far{Stdout: fds[0], Stderr: fds[1]}
	defer context.AfterFunc(ctx, far.Close)()
	var end exited
	err = relay.Run(far, relay.Near{Stdout: os.Stdout, Stderr: os.Stderr}, func() error {
		if err := x.Wait(ctx, spawned.CommandID, &end); err != nil {
			return err
		}
		if end.Status == nil {
			return client.Unknown(spawned.CommandID, end.Error)
		}
		return nil
	})
	if err != nil {
		return failed(err), true
	}
	s := attach.End{Code: end.Status.Code, TimedOut: end.Status.TimedOut, OOM: end.Status.OOM, Stuck: end.Status.Stuck}
	if said := s.Said(p.workspace, p.timeout); said != "" {
		fmt.Fprint(os.Stderr, attach.Message(said))
	}
	return s.Code, true
}

// failed says why the command did not run, or how it ended is not known, and returns the exit code for that.
func failed(err error) int {
	fmt.Fprintln(os.Stderr, "carrel:", attach.Message(errtext.Text(err)))
	return attach.Failure(err, client.IsCommandError(err))
}

// system is the socket of the system's daemon.
const system = "/run/carrel/carrel.sock"

// elsewhere are the variables by which the full program chooses otherwise. CARREL_HOST is looked at by itself.
var elsewhere = []string{"CARREL_ROOTLESS", "CARREL_CONTEXT", "CARREL_TOKEN", "CARREL_TOKEN_FILE"}

// socketOf is the socket of the daemon that the environment names, or of the system's; not ok if it takes more to find out.
func socketOf(lookup func(string) (string, bool)) (socket string, ok bool) {
	for _, name := range elsewhere {
		if v, _ := lookup(name); v != "" {
			return "", false
		}
	}
	host, _ := lookup("CARREL_HOST")
	if host == "" {
		dir, err := paths.ConfigDir()
		if err == nil {
			_, err = os.Lstat(filepath.Join(dir, paths.Contexts))
		} else {
			err = fs.ErrNotExist // without a home there are no contexts
		}
		return system, errors.Is(err, fs.ErrNotExist)
	}
	socket, ok = strings.CutPrefix(host, "unix://")
	return socket, ok && strings.HasPrefix(socket, "/")
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// full is the name of the full program.
const full = "carrel-cli"

// handOver replaces this process by the full program. It returns only if it cannot.
func handOver(argv []string) error {
	dirs, err := Places()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		err = unix.Exec(dir+"/"+full, argv, os.Environ())
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("cannot start %s/%s: %w", dir, full, err)
		}
	}
	return fmt.Errorf("cannot find %s: it is in none of %s; build it with \"make build\" or install the package: %w",
		full, strings.Join(dirs, ", "), errdefs.ErrNotFound)
}
