//go:build linux

package rootless_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Each line is an attack that must not succeed: it prints "reached" if it does. They are tried
// on a workspace that has the caller's own id alone, and on one with a range of ids, whose
// executor has an id of its own.
func TestAttacks(t *testing.T) {
	t.Run("one id", func(t *testing.T) { attack(t, newUser(t), "--ids", "one") })
	t.Run("range", func(t *testing.T) { attack(t, newRanged(t), "--ids", "range") })
}

func attack(t *testing.T, u *user, flags ...string) {
	// What is attacked is there, and open to the user outside.
	plain := func(network, at string) string {
		l, err := net.Listen(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if network == "unix" && at[0] == '/' {
			if err := os.Chmod(at, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		return l.Addr().String()
	}
	agent := plain("unix", filepath.Join(u.home, "tmp/agent.sock"))
	abstract := plain("unix", fmt.Sprintf("@carrel-rootless-%d", os.Getpid()))
	// As an X server's, which has both: by path and abstract.
	clipboard := plain("unix", fmt.Sprintf("@/tmp/.X11-unix/X%d", os.Getpid()))
	wayland := plain("unix", filepath.Join(u.home, "tmp/wayland-0"))
	u.sh("mkdir -p .mozilla/firefox/x.default .config/chromium/Default .config/google-chrome .gnupg .aws; echo cookie > " +
		".mozilla/firefox/x.default/cookies.sqlite; echo cookie > .config/chromium/Default/Cookies; echo key > .aws/credentials; ln -s " +
		"../.ssh/id project/link; ln -s " + u.home + "/.ssh project/dir; mkdir project/.git/hooks 2>/dev/null; true")
	// Another user of the host, with a process, a world-readable home and a file in the open.
	other, err := os.MkdirTemp("/var/tmp", "carrel-rootless-other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	if err := errors.Join(os.WriteFile(other+"/open", []byte("of-another"), 0o644), os.Chmod(other, 0o777)); err != nil {
		t.Fatal(err)
	}
	tcp := plain("tcp", "127.0.0.1:0")
	u.env = append(u.env, "DISPLAY=:"+strconv.Itoa(os.Getpid()), "WAYLAND_DISPLAY="+wayland,
		"XAUTHORITY="+u.home+"/.Xauthority", "DOCKER_HOST=unix://"+agent, "GPG_AGENT_INFO="+agent,
		"SSH_AUTH_SOCK="+agent, "DBUS_SESSION_BUS_ADDRESS=unix:abstract="+abstract[1:])
	sleeper := u.command("", "/bin/sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	pid := sleeper.Process.Pid
	connect := func(family, address string) string {
		return fmt.Sprintf(`python3 -c 'import socket; s=socket.socket(socket.%s); s.settimeout(2); s.connect(%s)' 2>/dev/null && echo reached`,
			family, address)
	}
	host, port, _ := strings.Cut(tcp, ":")
	python := func(code string) string { return "exec python3 - <<'E'\n" + code + "\nE" }
	// That a file's signals go to the executor anybody may ask for. Where it has the same id as
	// the command they would come, and the asking has to fail.
	owned := "reached"
	if u.first != 0 {
		owned = "asked"
	}
	for name, script := range map[string]string{
		"own ssh key":     "cat " + u.home + "/.ssh/id && echo reached",
		"own rc":          "echo x >> " + u.home + "/.bashrc; grep rc " + u.home + "/.bashrc && echo reached", // the host's is looked at below
		"others' homes":   `for d in /root/* /home/[!w]* /var/tmp/carrel-rootless-[!h]*; do [ -e "$d" ] && echo reached; done`,
		"shadow":          "cat /etc/shadow && echo reached",
		"agent by env":    `[ -n "$SSH_AUTH_SOCK$DBUS_SESSION_BUS_ADDRESS" ] && echo reached`,
		"agent by path":   connect("AF_UNIX", `"`+agent+`"`),
		"abstract socket": connect("AF_UNIX", `"\0`+abstract[1:]+`"`),
		"loopback":        connect("AF_INET", `("`+host+`",`+port+`)`),
		"docker": "for s in /run/docker.sock /var/run/docker.sock /run/user/*/bus /run/dbus/system_bus_socket; do [ -S " +
			"$s ] && echo reached; done",
		"tmpdir":              "ls " + u.home + "/tmp && echo reached",
		"host's tmp":          `[ -n "$(ls -A /tmp)$(ls -A /var/tmp/* | grep -v '^project$')" ] && echo reached`,
		"a process":           fmt.Sprintf("kill -0 %d && echo reached; ls /proc/%d/root && echo reached", pid, pid),
		"all processes":       "kill -KILL -1; ps -eo pid= | grep -qw " + strconv.Itoa(pid) + " && echo reached",
		"git hook":            "echo x > .git/hooks/pre-commit && echo reached; echo x > .git/host/hooks/pre-commit && echo reached",
		"git config":          "git config core.fsmonitor /tmp/x; git config -f .git/host/config core.fsmonitor /tmp/x && echo reached",
		"git moved away":      "mv .git .gone && echo reached",
		"agent settings":      "mkdir -p .claude && echo x > .claude/settings.json && echo reached",
		"set-uid file":        "cp /bin/true s && chmod u+s s && echo reached",
		"namespaces":          "unshare -U true && echo reached; unshare -Ur true && echo reached",
		"executor's files":    "ls /proc/1/root/ && echo reached; cat /proc/1/environ && echo reached; ls /proc/1/fd/ && echo reached",
		"clipboard by env":    `[ -n "$DISPLAY$WAYLAND_DISPLAY$XAUTHORITY$DOCKER_HOST$GPG_AGENT_INFO" ] && echo reached`,
		"clipboard, abstract": connect("AF_UNIX", `"\0`+clipboard[1:]+`"`),
		"clipboard by path":   connect("AF_UNIX", `"`+wayland+`"`),
		"browser profiles": "cat " + u.home + "/.mozilla/firefox/*/cookies.sqlite " + u.home + "/.config/chromium/Default/Cookies " +
			"~/.config/chromium/Default/Cookies && echo reached",
		"keys of clouds":       "ls " + u.home + "/.aws " + u.home + "/.gnupg && echo reached",
		"links of the project": "cat link dir/id && echo reached; echo x > link; ls dir/ && echo reached",
		"another's files":      "cat " + other + "/open && echo reached; touch " + other + "/planted && echo reached",
		"another's processes": "for p in /proc/[0-9]*; do case $(sed -n 's/^Uid:.//p' $p/status) in $(id -u)*) ;; '') ;; *) echo " +
			"reached ;; esac; done",
		"environment of the caller": "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -E 'SSH_AUTH_SOCK|DISPLAY|TMPDIR' && echo reached",
		"a link for a protected name": "ln -sfn /tmp/x .envrc && echo reached; mv .claude c && echo reached; rmdir .vscode && echo reached; " +
			"mkdir -p a && mv a .cursor && [ -e .cursor/a ] && echo reached; rmdir a",
		"git by other names": "git init --separate-git-dir=/tmp/g . >/dev/null && echo reached; echo 'gitdir: /tmp/g' > .git && echo " +
			"reached; GIT_DIR=.git git config --local core.fsmonitor x",
		"exchanged with a protected name": python(`import ctypes,os
libc=ctypes.CDLL(None,use_errno=True)
os.mkdir("mine")
for n in (b".git",b".claude",b".envrc"):
  if libc.renameat2(-100,b"mine",-100,n,2)==0 or libc.renameat2(-100,n,-100,b"mine/x",0)==0: print("reached",n)
os.rmdir("mine")`),
		"set-uid by other calls": python(`import ctypes,os
libc=ctypes.CDLL(None,use_errno=True)
for f in (lambda: os.open("s1",os.O_CREAT|os.O_WRONLY,0o4755), lambda: os.mknod("s2",0o104755), lambda: os.mkdir("s3",0o2755), lambda: os.chmod("s",0o4755), lambda: os.open(".",os.O_TMPFILE|os.O_WRONLY,0o4755)):
  try: f()
  except OSError: pass
how=(ctypes.c_ulong*3)(os.O_CREAT|os.O_WRONLY,0o4755,0)
libc.syscall(437,-100,b"s4",how,24)
import stat
for e in os.scandir("."):
  if not e.is_symlink() and os.stat(e.path).st_mode & 0o6000: print("reached",e.name)
  if e.name in ("s1","s2","s4"): os.unlink(e.path)
  if e.name=="s3": os.rmdir(e.path)`),
		"clipboard": "ls /tmp/.X11-unix /run/user/*/wayland-0 && echo reached",
		"injection": python("import fcntl,termios\ntry:\n  fcntl.ioctl(0,termios.TIOCSTI,b'x'); print('reached')\nexcept OSError: pass"),
		"record":    "ls " + u.home + "/.local/state && echo reached",
		// Nothing that is sent to the executor may end or stop it.
		"executor": python(`import os,ctypes,fcntl,signal
libc=ctypes.CDLL(None,use_errno=True)
info=ctypes.create_string_buffer(128)
for tid in range(1,40):
  if tid==os.getpid(): continue
  for s in range(1,65):
    ctypes.memmove(info, (ctypes.c_int*3)(s,0,-1), 12)
    libc.syscall(129,tid,s,info); libc.syscall(297,1,tid,s,info); libc.syscall(200,tid,s); libc.syscall(234,1,tid,s); libc.syscall(62,tid,s)
  r,w=os.pipe()
  try:
    fcntl.fcntl(r,fcntl.F_SETOWN,tid); fcntl.fcntl(r,10,signal.SIGSEGV); fcntl.fcntl(r,fcntl.F_SETFL,os.O_ASYNC); os.write(w,b'x'); print('` + owned + `')
  except OSError: pass
  if libc.syscall(302,tid,7,(ctypes.c_ulong*2)(1,1),0)==0: print('reached')
  if libc.ptrace(0x4206,tid,0,0)==0: print('reached')
print('survived')`),
	} {
		t.Run(name, func(t *testing.T) {
			u.t = t
			needsPython(t, script)
			r := u.run(append(slices.Clone(flags), "--here", "--", "bash", "-c", script)...)
			if strings.Contains(r.out, "reached") || strings.HasPrefix(r.err, "carrel: ") {
				t.Errorf("%+v", r)
			}
			if name == "executor" && (r.code != 0 || !strings.Contains(r.out, "survived")) {
				t.Errorf("%+v", r)
			}
		})
	}
	u.t = t
	if err := sleeper.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process outside is gone: %v", err)
	}
	if got := u.sh(
		"cat .bashrc .ssh/id; ls -A project | grep -vE '^(s|link|dir)$'; git -C project config core.fsmonitor",
	).out; got != "rc\nhost-secret\n.git\n" {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(other + "/planted"); err == nil {
		t.Error("a file was left with another user")
	}
	// The attacks have their targets: outside they work.
	u.t = t
	for name, script := range map[string]string{
		"X": connect("AF_UNIX", `"\0`+clipboard[1:]+`"`), "wayland": connect("AF_UNIX", `"`+wayland+`"`),
		"cookies": "cat .mozilla/firefox/*/cookies.sqlite && echo reached",
		"link":    "cat project/link && echo reached", "another's": "cat " + other + "/open && echo reached",
		"agent": connect("AF_UNIX", `"`+agent+`"`), "abstract": connect("AF_UNIX", `"\0`+abstract[1:]+`"`),
		"key": "cat " + u.home + "/.ssh/id && echo reached",
	} {
		if strings.Contains(script, "python3") && !has("python3") {
			continue
		}
		if r := u.sh(script); !strings.Contains(r.out, "reached") {
			t.Errorf("%s cannot be reached outside either: %+v", name, r)
		}
	}
}

// A directory that is changed for a link to another while it is being mounted is never
// shown as that other.
func TestMountRace(t *testing.T) {
	u := newUser(t)
	u.sh("mkdir race race/real secret; echo secret > secret/f; ln -s ../secret race/link")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		a, b := filepath.Join(u.home, "race/real"), filepath.Join(u.home, "race/link")
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	ran, refused := 0, 0
	for range 30 {
		// The person named it by its path: what that leads to then is what may be shown.
		r := u.run("-v", u.home+"/race/real:/mnt/x:ro", "--", "sh", "-c", "grep -q /race/real /proc/self/mountinfo && ls /mnt/x")
		if strings.Contains(r.out, "f\n") {
			t.Errorf("%+v", r)
		}
		if r.code < 125 {
			ran++
		} else {
			refused++
		}
	}
	close(stop)
	<-done
	t.Logf("%d ran, %d were refused", ran, refused)
}
