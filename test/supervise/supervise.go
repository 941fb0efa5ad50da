// Package supervise runs a package's tests in a process of their own and takes away what
// they made, however that process ends: a panic, a timeout or an interrupt included. It must
// not know what they make.
package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Run starts the running test binary once more with the variable env naming a new directory,
// whose name begins with prefix and which everybody may enter, and gives the exit code for
// the tests. clean gets the directory when they have ended; what it cannot take away is a
// failure.
func Run(prefix, env string, clean func(dir string) error) int {
	dir, err := os.MkdirTemp("/var/tmp", prefix)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	tests := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	tests.Args[0] = os.Args[0]
	tests.Env = append(os.Environ(), env+"="+dir)
	tests.Stdout, tests.Stderr = os.Stdout, os.Stderr
	tests.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt comes through here once
	if err := tests.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = tests.Process.Signal(s) // it may have ended
		}
	}()
	_ = tests.Wait()
	code := tests.ProcessState.ExitCode()
	if code < 0 {
		code = 1
	}
	if err := clean(dir); err != nil {
		fmt.Fprintln(os.Stderr, "something is left:", err)
		return 1
	}
	return code
}
