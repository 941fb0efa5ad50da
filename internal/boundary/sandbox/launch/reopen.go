package launch

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// Reopen opens the sockets of package netns anew in the network namespace of an executor, which is held by a pidfd;
// those before must be closed. binary is the executor's as Seal returned it. on calls fork on a thread in the v1
// groups to which the sockets are to belong, with the directory of the v2 group: a filter of the caller's own
// group, such as IPAddressDeny of systemd, must not hold for them. log gets what the process writes to stderr.
func Reopen(
	ctx context.Context, binary, executor, log *os.File, on func(fork func(group int) error) error,
) (sockets []*os.File, err error) {
	in := &inheritance{ways: -1}
	defer in.close()
	w, err := in.openWays(&Config{Ways: func(context.Context, []*os.File) error { return nil }})
	if err != nil {
		return nil, err
	}
	defer w.close()
	if in.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	for _, f := range []*os.File{in.null, in.null, log, executor} {
		in.add(number(f)) // the last is at sandbox.ReopenFD
	}
	in.addOwned(in.ways)
	in.ways = -1
	pid := 0
	err = on(func(group int) error {
		path, files := executable(binary, in.files)
		pid, err = syscall.ForkExec(path, []string{"carrel-executor", sandbox.ReopenWays}, &syscall.ProcAttr{
			Dir: "/", Env: sandbox.Environ, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: group},
		})
		return err
	})
	in.close() // the end of the process is to be seen
	if err != nil {
		return nil, fmt.Errorf("cannot start what opens the sockets for the ways out: %w", err)
	}
	end, _ := ctx.Deadline()
	_ = w.from.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { _ = w.from.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if sockets, err = w.receive(); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // our child, not waited for
	}
	reap(pid)
	return sockets, err
}
