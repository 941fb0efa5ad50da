package hostrun_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
)

// setScene starts a victim of the user's own.
func setScene(t *testing.T, u *user) *scene {
	t.Helper()
	s := &scene{
		Home: u.in(t, "scene-"+strconv.Itoa(len(t.Name()))), Abstract: fmt.Sprintf("carrel-hostrun-%d-%s", os.Getpid(), t.Name()),
		Key: os.Getpid()<<12 | int(u.id)&0xf<<8 | len(t.Name()),
	}
	s.Home = u.in(t, filepath.Base(s.Home))
	s.Project = u.in(t, filepath.Base(s.Home)+"/project")
	victim := u.in(t, filepath.Base(s.Home)+"/victim")
	for _, name := range []string{"file", "cut", "old", "gone"} {
		path := victim + "/" + name
		if err := errors.Join(os.WriteFile(path, []byte(name), 0o600), os.Chown(path, int(u.id), -1)); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		b, err := os.ReadFile(program(t, u))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(s.Home+"/suid", b, 0o755), os.Chmod(s.Home+"/suid", 0o755|os.ModeSetuid)); err != nil {
			t.Fatal(err)
		}
	}
	s.Terminal = terminal(t, u)

	c := exec.Command(program(t, u), s.text(t)) // it ends when its input does
	c.Env = []string{acting + "=victim", "GORACE=atexit_sleep_ms=0"}
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Credential: credential(u)}
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Errorf("the victim: %v", err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the victim: %q, %v", line, err)
	}
	s.Victim = c.Process.Pid
	return s
}

func (s *scene) text(t *testing.T) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// terminal is the path of one of the user's.
func terminal(t *testing.T, u *user) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	path := "/dev/pts/" + strconv.Itoa(n)
	if err := errors.Join(err, os.Chown(path, int(u.id), -1)); err != nil {
		t.Fatal(err)
	}
	return path
}

// state is all that an attacker should not change.
func (s *scene) state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(s.Home, func(path string, _ os.DirEntry, err error) error {
		if path == s.Project {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
			return err
		}
		n, _ := unix.Listxattr(path, nil)
		fmt.Fprintf(&b, "%s %o %d %d %d links %d xattr %d time %v %v\n", path, st.Mode, st.Uid, st.Gid, st.Size, st.Nlink, n, st.Mtim, st.Ctim)
		return nil
	})
	nice, nerr := unix.Getpriority(unix.PRIO_PROCESS, s.Victim)
	if err := errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "the victim's priority %d\n", nice)
	return b.String()
}

// attack has the user run the attacker under a profile.
func attack(t *testing.T, u *user, s *scene, p hostrun.Profile) map[string]string {
	t.Helper()
	s.Plain = p == hostrun.None
	cmd := u.caller(t, hostrun.Command{Argv: []string{program(t, u), s.text(t)}, Env: []string{acting, "GORACE"}, Profile: p, Dir: s.Project})
	cmd.Env = append(cmd.Env, acting+"=attacker")
	leak, err := os.OpenFile(s.Home+"/victim/file", os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	cmd.ExtraFiles = []*os.File{leak, leak, leak, leak, leak} // more than the socket takes the place of
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the caller: %v", err)
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatal(err)
	}
	came := map[string]string{}
	if err := json.Unmarshal(a.Result.Stdout.Head, &came); err != nil || a.Error != "" {
		t.Fatalf("%v, %s, code %d: %s%s", err, a.Error, a.Result.Code, a.Result.Stdout.Text(), a.Result.Stderr.Text())
	}
	return came
}

// An attacker succeeds with nothing under a profile that holds it.
func TestAttacks(t *testing.T) {
	each(t, heldProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		s := setScene(t, u)
		before := s.state(t)
		came := attack(t, u, s, p)
		for _, a := range attacks {
			if why, tried := came[a.name]; !tried || why == "" {
				t.Errorf("%s: tried %t, and it succeeded", a.name, tried)
			} else if testing.Verbose() {
				t.Logf("%s: %s", a.name, why)
			}
		}
		if after := s.state(t); after != before {
			t.Errorf("something was changed:\n%s\nwas\n%s", after, before)
		}
	})
}

// Where nothing holds it, it succeeds: the attacks are real ones.
func TestAttacksAreReal(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		s := setScene(t, u)
		came := attack(t, u, s, hostrun.None)
		yama, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope") // absent without it
		for _, a := range attacks {
			why, tried := came[a.name]
			switch {
			case a.plain == notTried, a.plain == root && u.id != 0, a.plain == ordinaryUser && (u.id == 0 || os.Geteuid() != 0):
				continue
			case len(yama) > 0 && yama[0] != '0' && strings.Contains("ptrace, process_vm_readv, the victim's memory, by pidfd", a.name):
				t.Logf("SKIP: %s: the host's Yama refuses it", a.name)
			case !tried || why != "":
				t.Errorf("%s: %s", a.name, why)
			}
		}
		for _, name := range []string{"touched-socket", "touched-abstract", "touched-datagram", "made", "new", "hard", "dir", "fifo"} {
			if _, err := os.Lstat(s.Home + "/victim/" + name); err != nil {
				t.Errorf("the victim was not reached: %v", err)
			}
		}
	})
}
