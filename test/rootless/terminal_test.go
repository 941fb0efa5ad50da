package rootless_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// on runs a command of u's on a new terminal of 24 rows and 80 columns.
func (u *user) on(answers bool, name string, args ...string) *ptytest.Terminal {
	u.t.Helper()
	return ptytest.Start(u.t, u.command("project", name, args...), 24, 80, answers)
}

func (u *user) runOn(args ...string) *ptytest.Terminal {
	u.t.Helper()
	return u.on(false, filepath.Join(programs, "carrel"), append([]string{"run", "-i", "-t"}, args...)...)
}

// nothing sees that no process of u's is left, where it is nobody else's.
func (u *user) nothing() {
	u.t.Helper()
	if os.Geteuid() == 0 {
		until(u.t, "the end of every process", func() bool { return len(u.processes()) == 0 })
	}
}

// loop is a shell that waits for signals.
const loop = "; echo ready; while :; do sleep 0.05; done"

// Exit codes on a terminal are those without one.
func TestTerminalExitCodes(t *testing.T) {
	u := newUser(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && exit 7"}, 7, ""},
		{[]string{"--", "sh", "-c", "kill -TERM $$"}, 143, ""},
		{[]string{"--", "sh", "-c", "kill -SEGV $$"}, 139, ""},
		{[]string{"--", "/etc/passwd"}, 126, "permission denied"},
		{[]string{"--", "no-such-program"}, 127, "not found in PATH"},
		{[]string{"--allow", "https://example.org/x", "--", "true"}, 125, "https://example.org/x"},
		{[]string{"--", "stty", "size"}, 0, "24 80"},
		{[]string{"--", "sh", "-c", "tty; ls /dev/pts"}, 0, "/dev/pts/0"},
	} {
		u.t = t
		x := u.runOn(c.args...)
		if code := x.Wait(); code != c.code {
			t.Errorf("%q: exit code %d: %q", c.args, code, x.Screen())
		}
		if c.says != "" {
			x.Expect(c.says)
		}
	}
	u.nothing()
}

// Keys that mean something to a terminal mean it to that inside: carrel passes them on.
func TestTerminalKeys(t *testing.T) {
	u := newUser(t)
	t.Run("Ctrl-C", func(t *testing.T) {
		u.t = t
		x := u.runOn("--", "sh", "-c", "echo ready; exec sleep 600")
		x.Expect("ready")
		x.Type("\x03")
		if code := x.Wait(); code != 130 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("Ctrl-C handled", func(t *testing.T) {
		u.t = t
		x := u.runOn("--", "sh", "-c", "trap 'echo handled; exit 3' INT"+loop)
		x.Expect("ready")
		x.Type("\x03")
		if code := x.Wait(); code != 3 || !strings.Contains(x.Screen(), "handled") {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("Ctrl-\\", func(t *testing.T) {
		u.t = t
		x := u.runOn("--", "sh", "-c", "trap 'echo handled; exit 4' QUIT"+loop)
		x.Expect("ready")
		x.Type("\x1c")
		if code := x.Wait(); code != 4 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("Ctrl-D", func(t *testing.T) {
		u.t = t
		x := u.runOn("--", "sh", "-c", "echo ready; cat; exit 5")
		x.Expect("ready")
		x.Type("line\r\x04")
		if code := x.Wait(); code != 5 || strings.Count(x.Screen(), "line") != 2 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("Ctrl-Z", func(t *testing.T) {
		u.t = t
		x := u.runOn("--", "bash", "--norc", "--noprofile", "-i")
		x.Expect("$ ")
		x.Type("sh -c 'echo runs-$((1+1)); exec sleep 600'\r")
		x.Expect("runs-2")
		x.Type("\x1a")
		x.Expect("Stopped")
		x.Type("echo went-$((40+2))\r")
		x.Expect("went-42")
		x.Type("exit 6\rexit 6\r") // at the first it says that a job is stopped
		if code := x.Wait(); code != 6 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("resize", func(t *testing.T) {
		u.t = t
		x := u.runOn("--", "sh", "-c", "trap 'stty size; exit 0' WINCH"+loop)
		x.Expect("ready")
		x.Resize(41, 99)
		if code := x.Wait(); code != 0 || !strings.Contains(x.Screen(), "41 99") {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	})
	t.Run("hang-up", func(t *testing.T) {
		u.t = t
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		c := u.command("project", filepath.Join(programs, "carrel"), "run", "-it", "--here", "--", "sh", "-c",
			"trap 'echo hung up > told; exit 8' HUP; (setsid sleep 600 &)"+loop)
		c.ExtraFiles = []*os.File{w} // open while the process lives
		x := ptytest.Start(t, c, 24, 80, false)
		w.Close()
		x.Expect("ready")
		x.HangUp()
		if code := x.Wait(); code != 8 {
			t.Errorf("exit code %d", code)
		}
		if _, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
		if got := u.sh("cat project/told; rm -f project/told; ls -A project").out; got != "hung up\n.git\n" {
			t.Errorf("%q", got)
		}
	})
	u.t = t
	u.nothing()
}

// Signals to carrel run are the command's.
func TestRunSignals(t *testing.T) {
	u := newUser(t)
	for s, code := range map[syscall.Signal]int{
		unix.SIGINT: 130, unix.SIGTERM: 143, unix.SIGHUP: 129, unix.SIGQUIT: 131, unix.SIGUSR1: 138, unix.SIGUSR2: 140,
	} {
		for _, handled := range []bool{false, true} {
			t.Run(fmt.Sprint(unix.SignalName(s), handled), func(t *testing.T) {
				u.t = t
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				script, want := "echo ready; exec sleep 600", code
				if handled {
					script, want = "trap 'exit 9' "+strings.TrimPrefix(unix.SignalName(s), "SIG")+loop, 9
				}
				c := u.command("project", filepath.Join(programs, "carrel"), "run", "--", "sh", "-c", script)
				c.Stdout = w
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				w.Close()
				if _, err := r.Read(make([]byte, 16)); err != nil {
					t.Fatal(err)
				}
				if err := c.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				_ = c.Wait()
				if got := c.ProcessState.ExitCode(); got != want {
					t.Errorf("exit code %d, not %d", got, want)
				}
			})
		}
	}
	u.t = t
	u.nothing()
}

// What is typed and printed goes between the terminal here and that inside, and no other
// way: the command has no descriptor of the terminal here, cannot type into either, and what
// the terminal answers is the command's while it runs. The terminal here is as it was afterwards.
func TestTerminalIsKeptApart(t *testing.T) {
	u := newUser(t)
	carrel := filepath.Join(programs, "carrel")
	t.Run("settings", func(t *testing.T) {
		u.t = t
		x := u.on(
			false, "sh", "-c", `a=$(stty -g); "$0" run -it -- sh -c 'stty raw -echo; exit 3'; echo "code $?"; [ "$a" = "$(stty -g)" ] &&
				echo as-before`, carrel,
		)
		x.Expect("code 3")
		x.Expect("as-before")
		x.Wait()
	})
	t.Run("descriptors", func(t *testing.T) {
		u.t = t
		x := u.runOn(
			"--", "sh", "-c", `for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null; done | grep -o '/dev/pts/[0-9]*\|/dev/tty[0-9]*' | sort -u;
				ls /dev/pts | tr '\n' ' '; echo end`,
		)
		x.Expect("end")
		if got := x.Screen(); got != "/dev/pts/0\r\n0 ptmx end\r\n" {
			t.Errorf("%q", got)
		}
		x.Wait()
	})
	t.Run("injection", func(t *testing.T) {
		u.t = t
		needsPython(t, "python3")
		x := u.runOn("--", "python3", "-c", `
import fcntl,termios,os
for fd in 0,1,2,os.open('/dev/tty',os.O_RDWR),os.open('/dev/pts/0',os.O_RDWR):
  for nr in 0x5412,0x5412|1<<32,0x541c:
    try: fcntl.ioctl(fd,nr-(1<<32) if nr>1<<31 and nr<1<<32 else nr,b'x'); print('REACHED',fd,nr)
    except (OSError,OverflowError): pass
print('tried')`)
		x.Expect("tried")
		if strings.Contains(x.Screen(), "REACHED") {
			t.Errorf("%q", x.Screen())
		}
		x.Wait()
	})
	t.Run("answers", func(t *testing.T) {
		u.t = t
		// The command asks for the position of the cursor; the reader of the terminal gets the answer.
		ask := `stty -echo -icanon; printf '\033[6n'; IFS= read -rsn 6 a; printf %s "$a" | od -An -c | tr -d ' '; stty sane`
		x := u.on(true, "bash", "-c", `"$0" run -it -- bash -c "$1"; read -t 0.2 -rsn 1 b; echo "here:[$b]"`, carrel, ask)
		x.Expect("here:[")
		if got := x.Screen(); !strings.Contains(got, `033[1;1R`) || !strings.Contains(got, "here:[]") {
			t.Errorf("%q", got)
		}
		x.Wait()
	})
	u.t = t
	u.nothing()
}
