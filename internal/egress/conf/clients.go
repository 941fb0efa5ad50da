package conf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Lookup returns the hosts of a set that a package client of the host defines, in the form that netrule.ParseRule
// reads. For another name the error is of kind errdefs.ErrNotFound.
type Lookup func(set string) (hosts []string, err error)

// Clients reads from which hosts the package clients of this host fetch: the mirrors that they are configured with,
// else each client's own default, which the client is asked for. No name of a registry is built in.
//
// What the client uses inside a workspace is not read: a workspace has neither the caller's home nor its environment.
// A mirror that needs a setting has to be set there too.
type Clients struct {
	// Runner asks a client. Required.
	Runner Runner
	// Environment has the caller's variables as os.Environ returns them. Required.
	Environment []string
	// Root is where etc is; "" is /.
	Root string
	// Avoid are directories that a command in a workspace may have changed. No program there is run, no file there
	// is read, and no variable that names one is used: what a command wrote must not widen what the next may reach.
	Avoid []string
}

// Runner runs a program that is found in the PATH of env, and returns its standard output.
type Runner interface {
	Run(ctx context.Context, env []string, argv ...string) (string, error)
}

// Bounds of what a client may take and say.
const (
	askTime   = 20 * time.Second
	maxAnswer = 64 << 10
	maxSource = 1 << 20 // of a file
)

// HostClients are those of this host, run as the caller.
func HostClients(avoid []string) *Clients {
	return &Clients{Runner: Programs{}, Environment: os.Environ(), Avoid: avoid}
}

// clients are the sets by name.
var clients = map[string]struct {
	hosts func(*reading) ([]string, error)
	// remedy is what to do when there are none.
	remedy string
}{
	"apt": {(*reading).apt, "add a source with an http or https URI below /etc/apt"},
	"cargo": {
		(*reading).cargo,
		"cargo does not tell its default: name its index and download hosts with --allow HOST, or set a [source] in ~/.cargo/config.toml",
	},
	"go": {
		(*reading).golang,
		`install go, or set GOPROXY to a URL; "direct" has no host of its own: name each module's host with --allow HOST`,
	},
	"npm": {(*reading).npm, "install npm, or set npm_config_registry to a URL"},
	"pip": {(*reading).pip, "install pip for python3, or set PIP_INDEX_URL to a URL"},
}

// ClientNames are the sets that Clients knows, sorted.
func ClientNames() (names []string) {
	for name := range clients {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Lookup returns a function that reads each set once. A client that does not answer before ctx ends, or in five
// seconds, is an error.
func (c *Clients) Lookup(ctx context.Context) Lookup {
	type answer struct {
		hosts []string
		err   error
	}
	read := map[string]answer{}
	r := &reading{ctx, c, c.environment()}
	return func(set string) ([]string, error) {
		client, ok := clients[set]
		if !ok {
			return nil, fmt.Errorf("there is no package client %q: %w", set, errdefs.ErrNotFound)
		}
		if a, ok := read[set]; ok {
			return a.hosts, a.err
		}
		hosts, err := client.hosts(r)
		switch {
		case err != nil:
			err = fmt.Errorf("cannot read the hosts of @%s: %w; %s", set, err, client.remedy)
		case len(hosts) == 0:
			err = fmt.Errorf("cannot find the hosts of @%s: nothing on this host names one; %s: %w", set, client.remedy, errdefs.ErrNotFound)
		}
		read[set] = answer{hosts, err}
		return hosts, err
	}
}

// reading is one use of Clients.
type reading struct {
	ctx context.Context
	of  *Clients
	// env is the environment that Clients.Avoid leaves.
	env []string
}

// variable returns the value of a variable of the caller's, "" if it is not set.
func (r *reading) variable(name string) string {
	for _, v := range slices.Backward(r.env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// ask runs a client.
func (r *reading) ask(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(r.ctx, askTime)
	defer cancel()
	out, err := r.of.Runner.Run(ctx, r.env, argv...)
	switch {
	case err == nil:
		return strings.TrimSpace(out), nil
	case ctx.Err() != nil && r.ctx.Err() == nil:
		return "", fmt.Errorf("%s did not answer within %v: %w", argv[0], askTime, errdefs.ErrUnavailable)
	}
	return "", err
}

// home returns a path below the caller's home, "" without one.
func (r *reading) home(path string) string {
	if home := r.variable("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, path)
	}
	return ""
}

// file returns the text of a file, "" if there is none or its path is empty.
func (r *reading) file(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && within(real, r.of.Avoid) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not be waited for
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	if err == nil && len(b) > maxSource {
		err = fmt.Errorf("%s has more than %d bytes: %w", path, maxSource, errdefs.ErrInvalidArgument)
	}
	return string(b), err
}

// hosts returns the host and port of each URL of HTTP, without repeats. It skips other schemes. Its errors do not
// show the URLs, which may have passwords.
func hosts(what string, urls ...string) (all []string, err error) {
	for _, text := range urls {
		u, err := url.Parse(strings.TrimPrefix(strings.TrimSpace(text), "sparse+"))
		if err != nil {
			return nil, fmt.Errorf("a URL of %s cannot be read: %w", what, errdefs.ErrInvalidArgument)
		}
		port := u.Port()
		switch {
		case u.Scheme != "http" && u.Scheme != "https":
			continue
		case port == "" && u.Scheme == "http":
			port = "80"
		case port == "":
			port = "443"
		}
		// ParseHost knows no star, so that no URL becomes a rule for more than one host.
		h, err := netrule.ParseHost(u.Hostname())
		if err != nil {
			return nil, fmt.Errorf("a URL of %s has no host that can be used: %w", what, err)
		}
		rule, err := netrule.ParseRule(netrule.Allow, net.JoinHostPort(h.String(), port))
		if err != nil {
			return nil, fmt.Errorf("a URL of %s has no port that can be used: %w", what, err)
		}
		if !slices.Contains(all, rule.Text) {
			all = append(all, rule.Text)
		}
	}
	return all, nil
}

// environment returns the caller's variables without those that name something in Avoid, and PATH without the
// directories there.
func (c *Clients) environment() (env []string) {
	for _, v := range c.Environment {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "PATH":
			dirs := slices.DeleteFunc(filepath.SplitList(value), func(dir string) bool {
				real, err := filepath.EvalSymlinks(dir)
				return err != nil || !filepath.IsAbs(dir) || within(dir, c.Avoid) || within(real, c.Avoid)
			})
			v = name + "=" + strings.Join(dirs, string(filepath.ListSeparator))
		case name == "PWD", name == "OLDPWD", slices.ContainsFunc(c.Avoid, func(dir string) bool { return strings.Contains(value, dir) }):
			continue
		}
		env = append(env, v)
	}
	return env
}

// within reports whether a path is in one of dirs.
func within(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	})
}

// Programs is the Runner of the host's programs, which it runs as the caller.
type Programs struct{}

var _ Runner = Programs{}

// Run runs a program in /, so that no file of a project, which commands may write, says what it answers.
func (Programs) Run(ctx context.Context, env []string, argv ...string) (string, error) {
	program, err := look(env, argv[0])
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, program, argv[1:]...)
	c.Dir, c.Env = "/", env
	// What it starts ends with it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
	c.WaitDelay = time.Second
	out, said := bounded{most: maxAnswer}, bounded{most: 4 << 10}
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s failed: %w: %s", argv[0], err, firstLine(said.kept.String()))
	}
	if out.more {
		return "", fmt.Errorf("%s answered more than %d bytes: %w", argv[0], maxAnswer, errdefs.ErrInvalidArgument)
	}
	return out.kept.String(), nil
}

// look finds a program in the PATH of env. exec.LookPath would take that of this process.
func look(env []string, program string) (string, error) {
	r := reading{env: env}
	for _, dir := range filepath.SplitList(r.variable("PATH")) {
		path := filepath.Join(dir, program)
		if st, err := os.Stat(path); filepath.IsAbs(dir) && err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no program %s in PATH: %w", program, errdefs.ErrNotFound)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line, ""))
}

// bounded keeps the first bytes. It has no ReadFrom, which would take all.
type bounded struct {
	kept bytes.Buffer
	most int
	more bool
}

// Write never fails, so that the program goes on to its end.
func (b *bounded) Write(p []byte) (int, error) {
	room := min(len(p), b.most-b.kept.Len())
	b.more = b.more || room < len(p)
	_, _ = b.kept.Write(p[:room])
	return len(p), nil
}
