package steps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

// ended waits for the end of a job, and returns it and its output.
func ended(t *testing.T, j *steps.Jobs, job id.Command) (x jobs.Job, out string) {
	t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(time.Minute); ; <-again.C {
		var err error
		if x, err = j.Show(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		if x.State.Over() {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it does not end: %+v", x)
		}
	}
	c, err := j.Output(t.Context(), x, jobs.Stdout, 0)
	if err != nil {
		t.Fatal(err)
	}
	return x, string(c.Data)
}

func inBackground(c runtime.HostCommand) runtime.HostCommand {
	c.Job = id.NewCommand()
	return c
}

// A command in the background is there when its result is, goes on alone, and is held as every other.
func TestBackground(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	open := func() (*steps.Jobs, error) { return steps.OpenJobs(dir) }
	run := steps.Background(open, nil, "", steps.Holding{AsRoot: asRoot()})
	c := inBackground(here("echo done; exit 4"))
	got, err := run(t.Context(), c)
	if err != nil || got.Status == nil || got.Status.Code != 0 || !strings.HasPrefix(got.Held, "profile none") {
		t.Fatalf("%+v, %v", got, err)
	}
	j, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if x, out := ended(t, j, c.Job); x.Status() != "exited 4" || out != "done\n" {
		t.Errorf("%+v, %q", x, out)
	}
	left := filepath.Join(t.TempDir(), "left")
	c = inBackground(here("echo held; touch " + left))
	c.ReadOnly = true
	if got, err = run(t.Context(), c); err != nil || !strings.HasPrefix(got.Held, "profile system_inspect") {
		t.Fatalf("%+v, %v", got, err)
	}
	if x, out := ended(t, j, c.Job); x.State != jobs.Exited || x.End.Code == 0 || out != "held\n" {
		t.Errorf("%+v, %q", x, out)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a job that only reads has written")
	}
	// One that may change something is held by the profile that the person chose.
	c = inBackground(here("echo held; touch " + left))
	run = steps.Background(open, nil, "", steps.Holding{Profile: hostrun.ReadOnly, AsRoot: asRoot()})
	if got, err = run(t.Context(), c); err != nil || !strings.HasPrefix(got.Held, "profile read_only") {
		t.Fatalf("%+v, %v", got, err)
	}
	if x, out := ended(t, j, c.Job); x.State != jobs.Exited || x.End.Code == 0 || out != "held\n" || x.Profile != "read_only" {
		t.Errorf("%+v, %q", x, out)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a job under read_only has written")
	}
	run = steps.Background(open, nil, "", steps.Holding{AsRoot: asRoot()})
	// It is for the host that it names, or for none.
	for _, name := range []string{"web-9", ""} {
		c := inBackground(there("touch " + left))
		c.Name = name
		if got, err := run(t.Context(), c); err == nil || got.Status != nil {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a job for another host ran here")
	}
}

// Over SSH it goes on when the connection has gone, and is found again by another.
func TestBackgroundOverSSH(t *testing.T) {
	file, connect := overSSH(t)
	r := connect()
	dir := filepath.Join(t.TempDir(), "jobs")
	open := func() (*steps.Jobs, error) { return steps.OpenJobs(dir) }
	run := steps.Background(open, r, file, steps.Holding{AsRoot: asRoot()})
	go1 := filepath.Join(t.TempDir(), "go")
	c := inBackground(there("while [ ! -e " + go1 + " ]; do sleep 0.05; done; echo there; exit 5"))
	if got, err := run(t.Context(), c); err != nil || got.Status == nil || !strings.Contains(got.Held, "nothing but") {
		t.Fatalf("%+v, %v", got, err)
	}
	_ = r.Close() // the connection that began it
	if err := os.WriteFile(go1, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	// The inventory is not the caller's own, so it cannot be opened by its name alone: the host is not known.
	if x, err := j.Show(t.Context(), c.Job); err != nil || x.State != jobs.Unknown || x.Why == "" {
		t.Errorf("%+v, %v", x, err)
	}
	again := connect()
	j.Use(file, again)
	if x, out := ended(t, j, c.Job); x.Status() != "exited 5" || out != "there\n" {
		t.Errorf("%+v, %q", x, out)
	}
	// One that runs by sudo what the inventory does not list is refused before anything begins.
	run = steps.Background(open, again, file, steps.Holding{AsRoot: asRoot()})
	if _, err := run(t.Context(), inBackground(there("sudo -n true"))); err == nil || !strings.Contains(err.Error(), "sudo") {
		t.Errorf("%v", err)
	}
	c = inBackground(there("sleep 1000"))
	if _, err := run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if x, err := j.Stop(t.Context(), c.Job); err != nil || x.State != jobs.Stopped {
		t.Errorf("%+v, %v", x, err)
	}
	if err := j.Remove(t.Context(), c.Job); err != nil {
		t.Error(err)
	}
}
