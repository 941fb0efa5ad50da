// Command testsum runs groups of tests and sums them up: what failed, what was skipped
// and why, and as its last line "N passed, N failed, N skipped". It exits with 1 if a test failed,
// if a package could not be built, or if nothing passed.
//
//	go run ./test/testsum NAME [VAR=VALUE…] ARGS… [-- NAME …]
//
// Each group is a name, variables for its environment, and the arguments of a go test.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/test/testsum/summary"
)

// slowest is how many packages and tests are named that took longest.
const slowest = 12

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (bool, error) {
	s := summary.Summary{Trim: "github.com/carrel-dev/carrel/"}
	start := time.Now()
	for len(args) > 0 {
		group := args
		if i := slices.Index(args, "--"); i >= 0 {
			group, args = args[:i], args[i+1:]
		} else {
			args = nil
		}
		if len(group) < 2 {
			return false, fmt.Errorf("cannot run group %q: give a name and the arguments of go test", group)
		}
		if err := runGroup(ctx, &s, group[0], group[1:], out); err != nil {
			s.Close(out)
			return false, err
		}
	}
	s.Slowest(out, slowest)
	fmt.Fprintf(out, "\nin %v\n", time.Since(start).Round(time.Second))
	return s.Close(out), nil
}

func runGroup(ctx context.Context, s *summary.Summary, name string, args []string, out io.Writer) error {
	env := os.Environ()
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && strings.Contains(args[0], "=") {
		env, args = append(env, args[0]), args[1:]
	}
	fmt.Fprintf(out, "\n== %s: go test %s\n", name, shorten(args))
	if slices.Contains(args, "-race") {
		if why := noRace(ctx, env); why != "" {
			s.Skip(name, why)
			fmt.Fprintln(out, "skipped:", why)
			return nil
		}
	}
	before, start := s.Failed, time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Env, cmd.Stderr = env, os.Stderr
	// The tests clean up after themselves when they are interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot run go test: %w", err)
	}
	rerr := s.Read(stdout, out)
	werr := cmd.Wait()
	// A group that takes much longer than it computes waits for something.
	busy := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	fmt.Fprintf(out, "== %s: %v, of processors %v\n", name, time.Since(start).Round(time.Second), busy.Round(time.Second))
	if exit, ok := errors.AsType[*exec.ExitError](werr); ok && rerr == nil {
		if s.Failed > before && ctx.Err() == nil {
			return nil // said already
		}
		return fmt.Errorf("cannot finish group %s: go test: %w", name, exit)
	}
	return errors.Join(rerr, werr)
}

// shorten is args as a line, without a list of packages that is too long to read.
func shorten(args []string) string {
	const most = 15
	n := len(args)
	for n > 0 && !strings.HasPrefix(args[n-1], "-") {
		n--
	}
	if len(args)-n <= most {
		return strings.Join(args, " ")
	}
	return fmt.Sprintf("%s … %d packages", strings.Join(args[:n], " "), len(args)-n)
}

// noRace says why the race detector cannot be used here, or "". It needs a C compiler.
func noRace(ctx context.Context, env []string) string {
	cmd := exec.CommandContext(ctx, "go", "list", "-race", "-export", "runtime/cgo")
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err == nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return "the race detector needs gcc and libc6-dev: " + lines[min(1, len(lines)-1)]
}
