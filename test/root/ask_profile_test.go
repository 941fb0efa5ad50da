package root_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// Steps on this machine that do not only read change nothing but the directory where the person is, or those that they named, where
// they say so by the flag or in their settings. The question shows the profile of each step, and what it kept a step from is said
// with what the person can do.
func TestAskUnderAProfile(t *testing.T) {
	m, o, carrel := newPerson(t)
	// Not below /var/tmp, as the homes of these tests are: there a command has a directory of its own.
	work, err := os.MkdirTemp("/opt", "crt-ask-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	for _, d := range []string{work, work + "/project", work + "/other"} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chown(d, int(o.Uid), int(o.Gid))); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(dir, script string, args ...string) (screen, told string) {
		s := m.script(t, always(planOf("host", script, false)), always(directly("it is over")))
		c := carrel(append([]string{"ask", "--model", "house", "--on", "host"}, append(args, "do it")...)...)
		c.Dir = filepath.Join(work, dir)
		x := ptytest.Start(t, c, 50, 200, false)
		x.Expect(question)
		x.Type("y\n")
		x.Expect("it is over")
		x.Wait()
		said := s.said()
		return x.Screen(), said[len(said)-1]
	}
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(work, name))
		return err == nil
	}
	screen, _ := ask("project", "touch by-none ../outside-none")
	if !strings.Contains(screen, "profile none, as crt-op-") || !there("outside-none") {
		t.Errorf("%q", screen)
	}
	screen, told := ask("project", "touch made; mkdir .git/hooks; echo x > ../outside", "--profile", "workspace_write")
	if !strings.Contains(screen, "profile workspace_write, as crt-op-") || !strings.Contains(screen, "--profile none") ||
		!strings.Contains(told, "profile workspace_write, ") || !strings.Contains(told, "controls verified") {
		t.Errorf("%q\n%q", screen, told)
	}
	if !there("project/made") || there("project/.git") || there("outside") {
		t.Error("it has changed something else than its directory")
	}
	// The settings say it for all, and the flag stands above them.
	o.write(t, ".config/carrel/agent.yaml", []byte("profile: workspace_write\n"))
	screen, _ = ask("project", "touch ../outside || touch ../other/by-settings", "--files", "../other")
	if !strings.Contains(screen, "profile workspace_write, as crt-op-") || !there("other/by-settings") || there("outside") {
		t.Errorf("%q", screen)
	}
	if _, _ = ask("project", "touch ../outside", "--profile", "none"); !there("outside") {
		t.Error("--profile none has held it")
	}
	// A home, keys and settings are given to no command, and a person is told before anything is asked.
	for dir, why := range map[string]string{".": "holds the home", ".config": "what they are told to run"} {
		c := carrel("ask", "--model", "house", "--on", "host", "do it")
		c.Dir = filepath.Join(o.home, dir)
		if r := finish(c, ""); r.code == 0 || !strings.Contains(r.err, why) || !strings.Contains(r.err, "--profile none") {
			t.Errorf("%s: %+v", dir, r)
		}
	}
	c := carrel("agent", "check")
	c.Dir = filepath.Join(work, "project")
	if r := finish(c, ""); r.code != 0 || !strings.Contains(r.out, "profile workspace_write, ") || !strings.Contains(r.out, "it may change "+c.Dir) {
		t.Errorf("%+v", r)
	}
	o.write(t, ".config/carrel/agent.yaml", []byte("profile: writes\n"))
	if r := finish(carrel("agent", "check"), ""); r.code == 0 || !strings.Contains(r.err, "there is no profile") {
		t.Errorf("%+v", r)
	}
}
