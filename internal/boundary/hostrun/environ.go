package hostrun

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
)

// base are the caller's variables that every command gets.
var base = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ"}

// defaultPath is PATH where the caller has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// fixed are set for every command, so that what would ask somebody fails at once.
var fixed = []string{
	"PAGER=cat", "GIT_PAGER=cat", "MANPAGER=cat", "SYSTEMD_PAGER=", "SYSTEMD_LESS=", "EDITOR=false", "VISUAL=false", "GIT_EDITOR=false",
	"GIT_TERMINAL_PROMPT=0", "DEBIAN_FRONTEND=noninteractive", "TERM=dumb",
}

// never are names of programs that ask for passwords. They are not passed on.
var never = []string{"SSH_ASKPASS", "SUDO_ASKPASS", "GIT_ASKPASS", "SSH_ASKPASS_REQUIRE"}

// environment is a command's: the base, the names that are passed on, and what is fixed, which cannot be passed on.
func environment(names []string, lookup func(string) (string, bool)) ([]string, error) {
	if len(names) > MaxNames {
		return nil, bad("cannot pass on %d variables: at most %d are taken", len(names), MaxNames)
	}
	var env []string
	size := 0
	taken := map[string]bool{}
	add := func(name, value string) {
		env = append(env, name+"="+value)
		size += len(name) + len(value) + 2
	}
	for _, f := range fixed {
		name, value, _ := strings.Cut(f, "=")
		taken[name] = true
		add(name, value)
	}
	for i, name := range append(slices.Clone(base), names...) {
		passed := i >= len(base)
		switch {
		case passed && !isName(name):
			return nil, bad("cannot pass on %.40q: it is not the name of a variable", name)
		case passed && slices.Contains(never, name):
			return nil, bad("cannot pass on %s: it names a program that asks for a password, and nobody could answer", name)
		case passed && slices.Contains(fixedNames(), name):
			return nil, bad("cannot pass on %s: it is set for every command, so that none waits for an answer", name)
		case taken[name]:
			continue
		}
		taken[name] = true
		value, ok := lookup(name)
		if name == "PATH" && value == "" {
			value, ok = defaultPath, true
		}
		if ok {
			add(name, value)
		}
	}
	if size > MaxEnvBytes {
		return nil, bad("cannot pass on variables of %d bytes: at most %d are taken", size, MaxEnvBytes)
	}
	return env, nil
}

func fixedNames() (names []string) {
	for _, f := range fixed {
		name, _, _ := strings.Cut(f, "=")
		names = append(names, name)
	}
	return names
}

func isName(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789") == "" &&
		(s[0] < '0' || s[0] > '9')
}

// valueOf returns the value of a variable in an environment.
func valueOf(env []string, name string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// passwdHome is a user's home as /etc/passwd has it (passwd(5)), "" if it has none: HOME can be set to anything.
func passwdHome(uid int) string {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if p := strings.Split(lines.Text(), ":"); len(p) > 5 && p[2] == strconv.Itoa(uid) {
			return p[5]
		}
	}
	return ""
}
