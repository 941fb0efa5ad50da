package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

func listed() *fleet.Host {
	return &fleet.Host{
		Name: "web", Address: "web", Sudo: [][]string{{"id"}, {"systemctl", "restart", "nginx"}, {"/usr/bin/apt-get", "update"}},
	}
}

func TestSudoArgv(t *testing.T) {
	for text, ok := range map[string]bool{
		"id": true, "sudo -n id": true, "sudo -n id -u": true, "sudo -n -- id": true, "/usr/bin/sudo -n id": true, "env sudo -n id": true,
		"env -i A=b nice -n 5 sudo -n systemctl restart nginx": true, "env -uA sudo -n id": true, "timeout -k 5 -s TERM 10 sudo -n id": true,
		"env --unset=A -- sudo -n id": true, "nohup setsid -w stdbuf -oL sudo -n id": true, "grep sudo /etc/group": true, "which sudo": true,
		"apt-get install sudo": true, "find / -name x": true, "command -v sudo": true, "ls su": true, "bash script.sh": true,

		"sudo id": false, "sudo -n cat": false, "sudo": false, "sudo -n": false, "sudo -n systemctl restart": false,
		"sudo -n -u root id": false,
		"sudo -n -E id":      false, "sudo -ni": false, "sudo -n -s id": false, "sudo -n A=b id": false, "sudo -n /usr/bin/id": false,
		"sudo -n env id":  false,
		"env sudo -n cat": false, "env -S sudo -n id": false, "env -i -x sudo -n id": false, "nice -10 sudo -n id": false,
		"timeout --what 5 sudo -n id": false,
		"su -c id":                    false, "doas id": false, "pkexec id": false, "env su": false, "./su": false, "systemd-run id": false,
		"xargs sudo -n id": false, "find / -exec sudo -n id ;": false, "ssh other sudo -n id": false, "busybox su": false,
		"xargs -I{} sh -c sudo":    false,
		"env PATH=/tmp sudo -n id": false, "sudo -n sudo -n id": false,
	} {
		s := fleet.Step{Argv: strings.Split(text, " ")}
		if err := s.Check(listed()); (err == nil) != ok || err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSudoText(t *testing.T) {
	for text, ok := range map[string]bool{
		"id; ls | wc -l": true, "if true; then sudo -n id; fi": true, "sudo -n systemctl restart nginx && echo done": true, "echo sudo": true,
		"for i in 1 2; do sudo -n id; done": true, "sh -c 'sudo -n id'": true, "exec sudo -n id": true, "sudo -n id $x": true,
		"A=1 sudo -n id": true,
		"PATH=/tmp sudo -n /usr/bin/apt-get update": true, "cat <<E\nsudo\nE": true,

		"sudo id": false, "true; sudo -n cat": false, "echo $(sudo -n cat)": false, "sh -c 'sudo -n cat'": false,
		"env sh -c 'sudo -n cat'":       false,
		"sh -c \"sh -c 'sudo -n cat'\"": false, "sh -c \"$x\"": false, "$x id": false, "s=sudo; $s id": false, "eval 'sudo -n cat'": false,
		"f() { sudo -n \"$@\"; }; f cat": false, "sudo -n $x": false, "sudo $n id": false, "sudo -n systemctl $x nginx": false,
		"su''do -n cat":   false,
		"su\\\ndo -n cat": false, "\\sudo -n cat": false, "command sudo -n cat": false, "exec -a x sudo -n cat": false,
		"alias s='sudo -n'\ns cat": false,
		"PATH=/tmp sudo -n id":     false, "export PATH=/tmp; sudo -n id": false, "if": false,
		"su*do id": false, "trap 'sudo -n cat' EXIT": false,
		"x | sudo -n cat": false, "(doas id)": false, "`su`": false, "while sudo -n cat; do :; done": false,
	} {
		s := fleet.Step{Shell: true, ShellText: text}
		if err := s.Check(listed()); (err == nil) != ok || err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCheck(t *testing.T) {
	long := strings.Repeat("x", fleet.MaxCommand)
	for name, s := range map[string]fleet.Step{
		"nothing":              {},
		"text without Shell":   {ShellText: "id"},
		"Shell without text":   {Shell: true},
		"both":                 {Shell: true, ShellText: "id", Argv: []string{"id"}},
		"sudo of a text":       {Shell: true, ShellText: "id", Sudo: true},
		"NUL":                  {Argv: []string{"echo", "a\x00b"}},
		"NUL in a text":        {Shell: true, ShellText: "echo a\x00b"},
		"no program":           {Argv: []string{""}},
		"an option":            {Argv: []string{"-i", "sh"}},
		"an assignment":        {Argv: []string{"A=b", "sh"}},
		"relative directory":   {Argv: []string{"id"}, Cwd: "tmp"},
		"a loader's variable":  {Argv: []string{"id"}, Env: []string{"LD_PRELOAD=/x"}},
		"a shell's variable":   {Argv: []string{"id"}, Env: []string{"BASH_ENV=/x"}},
		"a function of a bash": {Argv: []string{"id"}, Env: []string{"BASH_FUNC_id%%=() { :; }"}},
		"no variable":          {Argv: []string{"id"}, Env: []string{"-i"}},
		"no name":              {Argv: []string{"id"}, Env: []string{"=x"}},
		"twice":                {Argv: []string{"id"}, Env: []string{"A=1", "A=2"}},
		"NUL in a variable":    {Argv: []string{"id"}, Env: []string{"A=\x00"}},
		"too long":             {Argv: []string{"echo", long}},
		"too long in all":      {Argv: []string{"echo", long[:len(long)/2]}, Env: []string{"A=" + long[:len(long)/2]}},
		"too long quoted":      {Argv: []string{"echo", strings.Repeat("'", fleet.MaxCommand/2)}},
		"no timeout":           {Argv: []string{"id"}, Timeout: -1},
		"too long a timeout":   {Argv: []string{"id"}, Timeout: fleet.MaxTimeout + 1},
		"too much output":      {Argv: []string{"id"}, MaxOutput: fleet.MaxOutput + 1},
	} {
		if err := s.Check(listed()); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&fleet.Step{Argv: []string{"cat"}, Sudo: true}).Check(listed()); !errdefs.IsPermissionDenied(err) {
		t.Errorf("%v", err)
	}
	if err := (&fleet.Step{Argv: []string{"id"}, Sudo: true}).Check(listed()); err != nil {
		t.Error(err)
	}
	if err := (&fleet.Step{Argv: []string{"id"}, Sudo: true, Env: []string{"PATH=/tmp"}}).Check(listed()); !errdefs.IsPermissionDenied(err) {
		t.Errorf("%v", err)
	}
}

// A stand-in for sudo tells what it was started with: what the host runs is "sudo -n -- ARGV", and nothing where it is not listed.
func TestSudoRuns(t *testing.T) {
	t.Parallel()
	_, c, h := one(t)
	bin := t.TempDir()
	ran := filepath.Join(bin, "ran")
	write(t, filepath.Join(bin, "sudo"), []byte("#!/bin/sh\necho x >>"+ran+"\nprintf '%s|' \"$@\"\n"), 0o755)
	h.Sudo = [][]string{{"systemctl", "restart"}}
	h.Env.Set = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	r := run(t, c, h, fleet.Step{Argv: []string{"systemctl", "restart", "a b"}, Sudo: true})
	if got := string(r.Stdout.Bytes()); got != "-n|--|systemctl|restart|a b|" {
		t.Errorf("%q %q", got, r.Stderr.Bytes())
	}
	for _, s := range []fleet.Step{{Argv: []string{"systemctl", "stop", "x"}, Sudo: true}, {Argv: []string{"env", "sudo", "-n", "id"}}} {
		if _, err := c.Run(t.Context(), h, s); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%q: %v", s.Argv, err)
		}
	}
	if b, err := os.ReadFile(ran); err != nil || string(b) != "x\n" {
		t.Errorf("sudo ran as often as %q: %v", b, err)
	}
}
