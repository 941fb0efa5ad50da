package hostrun_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
)

// repository makes one that belongs to the user.
func (u *user) repository(t *testing.T, name string) string {
	t.Helper()
	dir := u.in(t, name)
	c := exec.Command("git", "init", "-q", dir)
	c.Env = []string{"HOME=" + u.home, "PATH=" + os.Getenv("PATH")}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: credential(u)}
	if out, err := c.CombinedOutput(); err != nil {
		t.Skipf("SKIP: git: %v: %s", err, out)
	}
	return dir
}

// A command changes its directory, and nothing there by which programs of the user run something.
func TestWorkspaceWrite(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		dir := u.repository(t, "project")
		before, err := os.ReadFile(dir + "/.git/config")
		if err != nil {
			t.Fatal(err)
		}
		for script, fails := range map[string]bool{
			"echo x > new && mkdir -p a/b && mv new a/b/ && rm -r a": false,
			"echo '#!/bin/sh' > tool && chmod 755 tool && ./tool":    false,
			"git status && git diff":                                 false,
			"touch /tmp/x /var/tmp/x && rm /tmp/x":                   false,
			"echo x >> .git/config":                                  true,
			"echo x > .git/hooks/pre-commit":                         true,
			"echo x > .git/commondir":                                true,
			"rm -rf .git":                                            true,
			"mv .git git && mkdir -p .git/hooks":                     true,
			"mv .git/hooks .git/h":                                   true,
			"ln -sf /tmp .git":                                       true,
			"git config core.fsmonitor x":                            true,
			"echo x > .envrc":                                        true,
			"mkdir .vscode/x":                                        true,
			"rmdir .claude":                                          true,
			"mv ../project ../else":                                  true,
			"echo x > ../outside":                                    true,
			"cp tool suid && chmod u+s suid":                         true,
			"cp tool sgid && chmod g+s sgid":                         true,
			"ln " + u.home + "/program hard":                         true,
			"ln -s " + u.home + " out && echo x > out/outside":       true,
		} {
			a := u.run(t, hostrun.Command{Argv: []string{"sh", "-ec", script}, Profile: hostrun.WorkspaceWrite, Dir: dir})
			if a.Error != "" || (a.Result.Code != 0) != fails {
				t.Errorf("%s: %s, code %d, %s", script, a.Error, a.Result.Code, a.Result.Stderr.Text())
			}
		}
		after, err := os.ReadFile(dir + "/.git/config")
		if err != nil || string(before) != string(after) {
			t.Errorf("the repository has another configuration: %v, %s", err, after)
		}
		if _, err := os.Lstat(u.home + "/outside"); err == nil {
			t.Error("something was made outside of the directory")
		}
		var suid []string
		err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if i, ierr := d.Info(); ierr == nil && i.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
				suid = append(suid, path)
			}
			return err
		})
		if err != nil || suid != nil {
			t.Errorf("set-id files were made: %v, %v", suid, err)
		}
		if left := placed(t, dir); left != nil {
			t.Errorf("%v are left", left)
		}
	})
}

// A command changes the directories that are named and not the one in which it begins, also where they lie below a private
// directory.
func TestSeveralDirectories(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		tmp, err := os.MkdirTemp("/tmp", "carrel-hostrun-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(tmp) })
		if err := errors.Join(os.Chmod(tmp, 0o755), os.Chown(tmp, int(u.id), -1)); err != nil {
			t.Fatal(err)
		}
		one, two := u.in(t, "one"), u.in(t, "two")
		begins, below := u.in(t, "begins"), u.in(t, "one/below")
		link := u.home + "/link"
		if err := os.Symlink(two, link); err != nil {
			t.Fatal(err)
		}
		for script, fails := range map[string]bool{
			"touch " + one + "/x " + two + "/x " + tmp + "/x":            false,
			"touch " + below + "/x " + link + "/y":                       false,
			"touch " + one + "/m && mv " + one + "/m " + one + "/below/": false,
			"touch " + below + "/c && cat " + begins + "/../one/below/c": false,
			"touch x":                     true,
			"touch " + u.home + "/x":      true,
			"rm " + link:                  true,
			"mkdir " + one + "/.git/x":    true,
			"mkdir " + two + "/.git/x":    true,
			"echo x > " + tmp + "/.envrc": true,
			"touch " + two + "/v && mv " + two + "/v " + two + "/.vscode/": true,
			"touch " + u.home + "/program /etc/hostname":                   true,
		} {
			a := u.run(t, hostrun.Command{
				Argv: []string{"sh", "-ec", script}, Profile: hostrun.WorkspaceWrite, Dir: begins, Writes: []string{one, link, below, tmp},
			})
			if a.Error != "" || (a.Result.Code != 0) != fails {
				t.Errorf("%s: %s, code %d, %s", script, a.Error, a.Result.Code, a.Result.Stderr.Text())
			}
		}
		for _, dir := range []string{one, two, tmp} {
			if left := placed(t, dir); left != nil {
				t.Errorf("%v are left in %s", left, dir)
			}
		}
		entries, err := os.ReadDir(begins)
		if err != nil || len(entries) > 0 {
			t.Errorf("something was made where it began: %v, %v", err, entries)
		}
	})
}

// placed are the directories that keep a name.
func placed(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if i, err := e.Info(); err == nil && i.IsDir() && i.Mode().Perm() == 0o550 {
			names = append(names, e.Name())
		}
	}
	return names
}

// What keeps a name stays as long as a command runs that needs it, and goes with the last; also what a killed caller
// left. An empty directory of the user's own stays.
func TestNamesAreKept(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		dir := u.in(t, "project")
		own := u.in(t, "project/.idea")
		fifo := u.home + "/began"
		if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.Chown(fifo, int(u.id), -1)); err != nil {
			t.Fatal(err)
		}
		begin := func() *exec.Cmd {
			script := "read x < " + fifo + "; read x < " + fifo
			c := u.caller(t, hostrun.Command{Argv: []string{"sh", "-c", script}, Profile: hostrun.WorkspaceWrite, Dir: dir})
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			return c
		}
		step := func() { let(t, fifo) }
		first := begin()
		step()
		all := placed(t, dir)
		if !slices.Contains(all, ".git") || slices.Contains(all, ".idea") {
			t.Errorf("placed: %v", all)
		}
		a := u.run(t, hostrun.Command{Argv: []string{"sh", "-c", "! mkdir .git/hooks"}, Profile: hostrun.WorkspaceWrite, Dir: dir})
		if a.Error != "" || a.Result.Code != 0 {
			t.Errorf("%s, code %d", a.Error, a.Result.Code)
		}
		if now := placed(t, dir); !slices.Equal(now, all) {
			t.Errorf("%v were removed to %v while a command needs them", all, now)
		}
		step()
		if err := first.Wait(); err != nil {
			t.Error(err)
		}
		if now := placed(t, dir); now != nil {
			t.Errorf("%v are left", now)
		}
		killed := begin()
		step()
		if err := killed.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = killed.Wait()
		if now := placed(t, dir); len(now) == 0 {
			t.Error("a killed caller removed what it placed, so that this test shows nothing")
		}
		// One may begin while the killed one's command still ends: it shares the directory.
		a = u.run(t, hostrun.Command{Argv: []string{"true"}, Profile: hostrun.WorkspaceWrite, Dir: dir})
		if a.Error != "" {
			t.Error(a.Error)
		}
		if now := placed(t, dir); now != nil {
			t.Errorf("%v are left of the killed one", now)
		}
		if _, err := os.Stat(own); err != nil {
			t.Errorf("the user's own directory: %v", err)
		}
	})
}

// What inspection needs is in sight, and what it does not need is not in reach.
func TestInspect(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		self := strconv.Itoa(os.Getpid())
		for p, want := range map[hostrun.Profile][2]string{
			hostrun.SystemInspect: {"cat /proc/" + self + "/comm && test -e /dev/null && test -d /proc/1 && test -e /dev/ptmx", "seen"},
			hostrun.ReadOnly:      {"test ! -e /proc/" + self + " && test -d /proc/1 && test $(ls -d /proc/[0-9]* | wc -l) -lt 6", "seen"},
		} {
			r := u.sh(t, p, want[0]+" && echo "+want[1])
			if !strings.HasSuffix(r.Stdout.Text(), want[1]+"\n") {
				t.Errorf("%s: %s%s", p, r.Stdout.Text(), r.Stderr.Text())
			}
		}
		r := u.sh(t, hostrun.SystemInspect, "wc -l < /proc/net/tcp; cat /etc/hostname; ls /var/log >/dev/null && echo logs")
		if r.Code != 0 || !strings.Contains(r.Stdout.Text(), "logs") || strings.HasPrefix(r.Stdout.Text(), "0") {
			t.Errorf("code %d: %s%s", r.Code, r.Stdout.Text(), r.Stderr.Text())
		}
		seen, err := os.CreateTemp("/tmp", "carrel-hostrun-")
		if err != nil {
			t.Fatal(err)
		}
		seen.Close()
		t.Cleanup(func() { os.Remove(seen.Name()) })
		r = u.sh(t, hostrun.SystemInspect, "test -e "+seen.Name()+" && ! touch /tmp/x && ! touch /var/tmp/x && touch $TMPDIR/x && ls $TMPDIR")
		if r.Code != 0 || r.Stdout.Text() != "x\n" {
			t.Errorf("code %d: %s%s", r.Code, r.Stdout.Text(), r.Stderr.Text())
		}
		secret := u.home + "/secret"
		if err := os.WriteFile(secret, []byte("for root"), 0o600); err != nil {
			t.Fatal(err)
		}
		r = u.sh(t, hostrun.SystemInspect, "cat "+secret)
		if reads := r.Code == 0; os.Geteuid() == 0 && reads != (u.id == 0) {
			t.Errorf("it reads a file of root's: %t", reads)
		}
	})
}

// A directory below one that is private is in sight, with nothing beside it.
func TestDirectoryInTmp(t *testing.T) {
	each(t, heldProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		dir, err := os.MkdirTemp("/tmp", "carrel-hostrun-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		for _, d := range []string{dir, dir + "/in", dir + "/beside"} {
			if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755), os.Chown(d, int(u.id), -1)); err != nil {
				t.Fatal(err)
			}
		}
		script := "pwd; ls -A ..; touch x 2>/dev/null && echo made"
		a := u.run(t, hostrun.Command{Argv: []string{"sh", "-c", script}, Profile: p, Dir: dir + "/in"})
		want := dir + "/in\nin\n"
		if p == hostrun.SystemInspect { // which sees the host's temporary files
			want = dir + "/in\nbeside\nin\n"
		}
		if p == hostrun.WorkspaceWrite {
			want += "made\n"
		}
		if a.Error != "" || a.Result.Stdout.Text() != want {
			t.Errorf("%s %q", a.Error, a.Result.Stdout.Text())
		}
		_, err = os.Stat(dir + "/in/x")
		if (err == nil) != (p == hostrun.WorkspaceWrite) {
			t.Errorf("made outside: %v", err)
		}
	})
}

// A command begins in any directory that is there under a profile that changes nothing.
func TestDirectories(t *testing.T) {
	each(t, []hostrun.Profile{hostrun.ReadOnly, hostrun.SystemInspect}, func(t *testing.T, u *user, p hostrun.Profile) {
		for _, dir := range []string{"/", "/tmp", "/var", "/var/tmp", "/usr/bin", "/proc", "/sys", "/dev", "/dev/shm"} {
			a := u.run(t, hostrun.Command{Argv: []string{"pwd"}, Profile: p, Dir: dir})
			if a.Error != "" || a.Result.Stdout.Text() != dir+"\n" {
				t.Errorf("%s: %s %q", dir, a.Error, a.Result.Stdout.Text())
			}
		}
	})
}
