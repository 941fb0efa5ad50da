package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/vm/job"
)

// Where a guest with systemd has this program and its plan, and the unit that runs the jobs.
const (
	ownDir  = "/var/lib/carrel-vm"
	ownUnit = `[Unit]
Description=The jobs of the guest
DefaultDependencies=yes

[Service]
ExecStart=` + ownDir + `/init -jobs
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
`
	// No getty: without udev there is no device unit that it would not wait for.
	ownTarget = `[Unit]
Description=The guest
Requires=basic.target carrel-vm.service
After=basic.target
AllowIsolate=yes
`
)

// handOver makes systemd PID 1 in the place of this program, which it runs again for the jobs. self and plan are
// the bytes of both, from before the root was changed.
func handOver(self, plan []byte) error {
	if err := os.MkdirAll(ownDir, 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		path string
		text []byte
		mode os.FileMode
	}{
		{ownDir + "/init", self, 0o755},
		{ownDir + "/plan.json", plan, 0o644},
		{"/etc/systemd/system/carrel-vm.service", []byte(ownUnit), 0o644},
		{"/etc/systemd/system/default.target", []byte(ownTarget), 0o644},
	} {
		if err := os.WriteFile(f.path, f.text, f.mode); err != nil {
			return err
		}
	}
	return unix.Exec("/lib/systemd/systemd", []string{"/lib/systemd/systemd"}, []string{"container="})
}

// underSystemd runs the jobs of a guest with systemd. Unlike elsewhere other processes run, and what a job
// leaves is not looked at.
func underSystemd() error {
	plan, err := readPlan(ownDir + "/plan.json")
	if err != nil {
		return err
	}
	return report(plan, func(r *reporter) func(job.Job) {
		return func(j job.Job) { plainly(r, j) }
	})
}

func plainly(r *reporter, j job.Job) {
	r.send(job.Event{Kind: job.Start, Job: j.Name})
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(j.Seconds)*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, j.Argv[0], j.Argv[1:]...)
	c.Dir, c.Env, c.WaitDelay = j.Dir, j.Env, afterQuit
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	out, in, err := os.Pipe()
	var problems []string
	if err == nil {
		c.Stdout, c.Stderr = in, in
		err = c.Start()
		in.Close()
	}
	if err == nil {
		// Daemons that the job started may hold the pipe.
		go (&runner{report: r}).copyLines(j.Name, out)
		err = c.Wait()
	}
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		problems = append(problems, "it ended with "+status(unix.WaitStatus(ended.Sys().(syscall.WaitStatus))))
	} else if err != nil {
		problems = append(problems, err.Error())
	}
	if ctx.Err() != nil {
		problems = append(problems, fmt.Sprintf("it ran out of its %d seconds", j.Seconds))
	}
	time.Sleep(100 * time.Millisecond) // for the last lines: nothing says that they are read
	r.send(job.Event{Kind: job.End, Job: j.Name, Problems: problems})
}

func readPlan(path string) (plan job.Plan, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &plan)
	}
	if err != nil {
		return plan, fmt.Errorf("cannot read the plan: %w", err)
	}
	return plan, nil
}
