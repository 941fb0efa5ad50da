// Package fleet runs commands on remote hosts over SSH, in the process of the calling user and with that user's keys.
// An Inventory says which hosts there are, the user's ssh configuration how they are reached, and known_hosts which of
// them are genuine. Run runs one Step on one host; who goes through many, and in which order, is for the caller to say.
//
// It must not run anything on this machine, fall back to another host, accept a host key that known_hosts does not have,
// ask for a password, forward an agent, open a terminal, or run a step twice. It decides nothing: whoever calls it has
// had each step judged. It still refuses what it can see is wrong, such as sudo that the inventory does not list.
//
// Everything that a host sends is hostile: it is bounded, and returned as bytes. Whoever prints it escapes it.
package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Host is one host of an inventory. Its zero values leave a setting to the ssh configuration, and then to a default.
type Host struct {
	// Name is its name in the inventory.
	Name string
	// Address is the name or the IP address that the ssh configuration is asked for. It is not empty.
	Address string
	// Port is 0 or 1 to 65535.
	Port int
	// User logs in.
	User string
	// IdentityFiles are paths of private keys. "~/" is the caller's home directory. A file that cannot be read is an error.
	IdentityFiles []string
	// Jump are the hosts on the way to it, the nearest first.
	Jump []Host
	// NoJump ignores ProxyJump of the ssh configuration. Jump does so too.
	NoJump bool
	// Cwd is the absolute directory in which steps start that name none; "" is the user's home directory.
	Cwd string
	// Env is the environment of a step.
	Env Env
	// Sudo are the prefixes of argument vectors that may run by sudo. Each word must match exactly.
	Sudo [][]string
	// Labels and Groups are what Resolve finds it by.
	Labels map[string]string
	Groups []string
}

// Env is the environment in which a step starts.
type Env struct {
	// Inherit passes on what the login gives. Otherwise HOME, LOGNAME, PATH, SHELL and USER are passed on, and Keep.
	Inherit bool
	// Keep are names of variables that are passed on if they are set, beside those.
	Keep []string
	// Set are variables and their values, as "NAME=value".
	Set []string
}

// Bounds of what a caller or a file states.
const (
	// MaxHosts bounds the hosts of an inventory.
	MaxHosts = 4096
	// MaxJumps bounds the hosts on the way to one.
	MaxJumps = 8
	maxName  = 253 // of a host, RFC 1035
	maxVars  = 256
	// MaxCommand bounds what a step runs in bytes, with its environment: a kernel passes 128 KiB in one argument.
	MaxCommand = 96 << 10
)

// invalid returns an error of what a caller or a file states.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

// Validate checks a host that was not read from an inventory.
func (h *Host) Validate() error {
	err := h.validate(0)
	if err != nil {
		return fmt.Errorf("cannot use host %.80q: %w", h.Name, err)
	}
	return nil
}

func (h *Host) validate(depth int) error {
	if depth > 1 {
		return invalid("a host on the way has hosts on its own way; list all of them with the last host")
	}
	if len(h.Jump) > MaxJumps {
		return invalid("there are more than %d hosts on the way", MaxJumps)
	}
	for _, err := range []error{
		checkName(h.Name), checkAddress(h.Address), checkPort(h.Port), checkCwd(h.Cwd), h.Env.check(), checkSudo(h.Sudo),
	} {
		if err != nil {
			return err
		}
	}
	if h.User != "" {
		if err := checkUser(h.User); err != nil {
			return err
		}
	}
	for _, f := range h.IdentityFiles {
		if err := checkPath(f); err != nil {
			return err
		}
	}
	for i := range h.Jump {
		if err := h.Jump[i].validate(depth + 1); err != nil {
			return fmt.Errorf("host on the way %.80q: %w", h.Jump[i].Name, err)
		}
	}
	return nil
}

func letters(s, more string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return s != ""
}

// checkName checks the name of a host, a group or a label.
func checkName(s string) error {
	if len(s) > maxName || !letters(s, "._-") || strings.IndexByte("._-", s[0]) >= 0 {
		return invalid("%.80q is no name: use letters, digits and . _ - after a letter or digit, at most %d", s, maxName)
	}
	return nil
}

func checkAddress(s string) error {
	if len(s) > maxName || !letters(s, "._-:%") || s[0] == '-' || s[0] == '%' {
		return invalid("%.80q is no address: give a host name or an IP address without a port", s)
	}
	return nil
}

func checkUser(s string) error {
	if len(s) > 256 || !letters(s, "._-@+$\\") || s[0] == '-' {
		return invalid("%.80q is no name of a user", s)
	}
	return nil
}

func checkPort(n int) error {
	if n < 0 || n > 65535 {
		return invalid("%d is no port: give 1 to 65535", n)
	}
	return nil
}

func checkPath(s string) error {
	if s == "" || len(s) > 4096 || strings.ContainsAny(s, "\x00\n\r") {
		return invalid("%.80q is no path", s)
	}
	return nil
}

func checkCwd(s string) error {
	if s == "" {
		return nil
	}
	if s[0] != '/' {
		return invalid("%.80q is no absolute path", s)
	}
	return checkPath(s)
}

// evil are variables by which a shell or the loader runs something else than the step.
func evil(name string) bool {
	return strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "DYLD_") || strings.HasPrefix(name, "BASH_") ||
		slices.Contains([]string{"ENV", "IFS", "PS4", "SHELLOPTS", "BASHOPTS", "GCONV_PATH", "_"}, name)
}

func checkVar(name string) error {
	if len(name) > 128 || !letters(name, "_") || name[0] >= '0' && name[0] <= '9' {
		return invalid("%.80q is no name of a variable", name)
	}
	if evil(name) {
		return invalid("%s may not be set: it makes a shell or the loader run something else; set it within the command", name)
	}
	return nil
}

// checkVars checks a list of "NAME=value".
func checkVars(list []string) error {
	if len(list) > maxVars {
		return invalid("there are more than %d variables", maxVars)
	}
	seen := map[string]bool{}
	for _, v := range list {
		name, value, ok := strings.Cut(v, "=")
		if !ok {
			return invalid("%.80q has no =: give NAME=value", v)
		}
		if err := checkVar(name); err != nil {
			return err
		}
		if seen[name] {
			return invalid("%s is set twice", name)
		}
		seen[name] = true
		if strings.IndexByte(value, 0) >= 0 || len(value) > MaxCommand {
			return invalid("the value of %s has a NUL byte or more than %d bytes", name, MaxCommand)
		}
	}
	return nil
}

func (e *Env) check() error {
	if len(e.Keep) > maxVars {
		return invalid("there are more than %d variables", maxVars)
	}
	for _, name := range e.Keep {
		if err := checkVar(name); err != nil {
			return err
		}
	}
	return checkVars(e.Set)
}

// clone returns a host of which nothing is shared.
func (h *Host) clone() Host {
	c := *h
	c.IdentityFiles, c.Groups = slices.Clone(h.IdentityFiles), slices.Clone(h.Groups)
	c.Env.Keep, c.Env.Set = slices.Clone(h.Env.Keep), slices.Clone(h.Env.Set)
	c.Labels = maps.Clone(h.Labels)
	c.Sudo = make([][]string, len(h.Sudo))
	for i := range h.Sudo {
		c.Sudo[i] = slices.Clone(h.Sudo[i])
	}
	c.Jump = make([]Host, len(h.Jump))
	for i := range h.Jump {
		c.Jump[i] = h.Jump[i].clone()
	}
	return c
}
