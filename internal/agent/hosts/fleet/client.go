package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Config is what a Client depends on. FromUser fills it in for the calling user.
type Config struct {
	// User and Home are the name and home directory of the calling user. Required.
	User, Home string
	// SSH is the ssh configuration. Optional.
	SSH *SSHConfig
	// AgentSocket is the socket of the caller's agent. Optional.
	AgentSocket string
	// KnownHosts and SystemKnownHosts are used where the ssh configuration names no files. Optional: nil is those of
	// OpenSSH.
	KnownHosts, SystemKnownHosts []string
	// ConnectTimeout is for one host on the way or the host itself, from the connection to the login. The default is 15 s.
	ConnectTimeout time.Duration
	// KeepAlive is how often a connection is tried, unless ServerAliveInterval says so. The default is 15 s.
	KeepAlive time.Duration
	// Idle is how long a connection without use is kept. The default is 60 s.
	Idle time.Duration
	// KillGrace is how long processes have between TERM and KILL. The default is 2 s.
	KillGrace time.Duration
	// MaxConnections bounds the open connections. The default is 128.
	MaxConnections int
}

// FromUser returns the configuration of the calling user: ~/.ssh/config, /etc/ssh/ssh_config and SSH_AUTH_SOCK.
func FromUser() (Config, error) {
	u, err := user.Current()
	if err != nil {
		return Config{}, fmt.Errorf("cannot find out who runs this: %w", err)
	}
	c, err := LoadSSHConfig(filepath.Join(u.HomeDir, ".ssh", "config"), "/etc/ssh/ssh_config")
	return Config{User: u.Username, Home: u.HomeDir, SSH: c, AgentSocket: os.Getenv("SSH_AUTH_SOCK")}, err
}

// Client runs steps on hosts, over one connection a host. It is safe for concurrent use. Close it.
type Client struct {
	config Config
	by     caller
	pool   pool
}

// New returns a client. It connects to nothing yet.
func New(config Config) (*Client, error) {
	if config.User == "" || !filepath.IsAbs(config.Home) {
		return nil, invalid("cannot reach hosts: the caller has no name or no home directory")
	}
	if config.SSH == nil {
		config.SSH = &SSHConfig{}
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&config.ConnectTimeout, 15*time.Second)
	def(&config.KeepAlive, 15*time.Second)
	def(&config.Idle, time.Minute)
	def(&config.KillGrace, 2*time.Second)
	if config.MaxConnections <= 0 {
		config.MaxConnections = 128
	}
	dot := filepath.Join(config.Home, ".ssh")
	if config.KnownHosts == nil {
		config.KnownHosts = []string{filepath.Join(dot, "known_hosts"), filepath.Join(dot, "known_hosts2")}
	}
	if config.SystemKnownHosts == nil {
		config.SystemKnownHosts = []string{"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"}
	}
	c := &Client{config: config, by: caller{config.User, config.Home}}
	c.pool.init(config.MaxConnections, config.Idle)
	return c, nil
}

// Close ends every connection and waits until nothing of the client runs. Steps that still run are Lost: end their contexts
// first.
func (c *Client) Close() error {
	c.pool.close()
	return nil
}

// target is all that is known about how to reach one host. Two with the same key share a connection.
type target struct {
	name           string // for people
	host           string
	port           int
	user           string
	alias          string
	identityFiles  []string
	identitiesOnly bool
	strictKeys     bool // an identity file that cannot be used is an error
	agent          string
	known, system  []string
	timeout        time.Duration
	alive          time.Duration
	aliveMax       int
	network        string
	algorithms     map[string]string
	by             caller
	via            *target
}

func (t *target) key() string {
	var b strings.Builder
	for ; t != nil; t = t.via {
		fmt.Fprintf(&b, "%q %d %q %q %q %t %t %q %q %q %v %v %d %q %q\n", t.host, t.port, t.user, t.alias, t.identityFiles, t.identitiesOnly,
			t.strictKeys, t.agent, t.known, t.system, t.timeout, t.alive, t.aliveMax, t.network, fmt.Sprint(t.algorithms))
	}
	return b.String()
}

func (t *target) hops() (n int) {
	for ; t != nil; t = t.via {
		n++
	}
	return n
}

// target finds out how a host is reached.
func (c *Client) target(h *Host) (*target, error) {
	t, jumps, err := c.hop(h)
	if err != nil {
		return nil, err
	}
	if len(h.Jump) > 0 {
		for i := range h.Jump {
			on, _, err := c.hop(&h.Jump[i])
			if err != nil {
				return nil, err
			}
			on.via, t.via = t.via, on
		}
	} else if !h.NoJump {
		if t.via, err = c.way(jumps, 0); err != nil {
			return nil, fmt.Errorf("cannot find the way to %s: %w", h.Name, err)
		}
	}
	if n := t.hops() - 1; n > MaxJumps {
		return nil, invalid("cannot find the way to %s: there are more than %d hosts on it", h.Name, MaxJumps)
	}
	return t, nil
}

// As says as whom and where steps run on a host, as a person reads it: user, address, port, directory, and whether sudo may be used. It
// connects to nothing.
func (c *Client) As(h Host) (string, error) {
	t, err := c.target(&h)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s at %s, in %s", Named(t.user), net.JoinHostPort(t.host, strconv.Itoa(t.port)), cmp.Or(h.Cwd, "the home directory"))
	if len(h.Sudo) > 0 {
		var list []string
		for _, s := range h.Sudo {
			list = append(list, strings.Join(s, " "))
		}
		text += ", root by sudo for: " + strings.Join(list, "; ")
	}
	if len(text) > maxAs {
		text = strings.ToValidUTF8(text[:maxAs], "") + "…"
	}
	return text, nil
}

// maxAs bounds what As says, in bytes.
const maxAs = 512

// Named is a user's name, with what root is in words.
func Named(user string) string {
	if user == "root" {
		return "root, who may do everything,"
	}
	return user
}

// way returns the last host of ProxyJump. The first has a way of its own in the ssh configuration, as OpenSSH has it.
func (c *Client) way(jumps []string, depth int) (last *target, err error) {
	if len(jumps) > MaxJumps || depth > MaxJumps {
		return nil, invalid("there are more than %d hosts on it, or it leads in a circle", MaxJumps)
	}
	for i, j := range jumps {
		h, err := jumpHost(j)
		if err != nil {
			return nil, err
		}
		t, own, err := c.hop(&h)
		if err != nil {
			return nil, err
		}
		if t.via = last; i == 0 {
			if t.via, err = c.way(own, depth+1); err != nil {
				return nil, err
			}
		}
		last = t
	}
	return last, nil
}

// jumpHost reads one host of ProxyJump: [user@]host[:port], or ssh://[user@]host[:port].
func jumpHost(s string) (h Host, err error) {
	rest := strings.TrimPrefix(strings.TrimSpace(s), "ssh://")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if h.User, rest = rest[:i], rest[i+1:]; checkUser(h.User) != nil {
			return h, checkUser(h.User)
		}
	}
	if host, port, err := net.SplitHostPort(rest); err == nil {
		n, err := strconv.Atoi(port)
		if err != nil || n == 0 || checkPort(n) != nil {
			return h, invalid("%.80q has no port", s)
		}
		h.Port, rest = n, host
	}
	h.Address = strings.Trim(rest, "[]")
	h.Name = h.Address
	return h, checkAddress(h.Address)
}

// hop asks the ssh configuration for one host, and returns its ProxyJump too.
func (c *Client) hop(h *Host) (*target, []string, error) {
	s, err := c.config.SSH.lookup(h.Address, h.User, h.Port, c.by)
	if err != nil {
		return nil, nil, err
	}
	t := &target{
		name: h.Name, host: s.host, port: s.port, user: s.user, alias: s.alias, identityFiles: s.identityFiles, identitiesOnly: s.identitiesOnly,
		known: s.knownHosts, system: s.systemHosts, agent: s.agent, timeout: s.timeout, alive: s.alive, aliveMax: cmp.Or(s.aliveMax, 3),
		network: cmp.Or(s.network, "tcp"), algorithms: s.algorithms, by: c.by,
	}
	if len(h.IdentityFiles) > 0 {
		t.identityFiles, t.strictKeys = slices.Clone(h.IdentityFiles), true
		for i, f := range t.identityFiles {
			if t.identityFiles[i], err = c.by.path(f); err != nil {
				return nil, nil, err
			}
		}
	}
	if t.agent == "" || t.agent == "SSH_AUTH_SOCK" {
		t.agent = c.config.AgentSocket
	}
	if t.known == nil {
		t.known = c.config.KnownHosts
	}
	if t.system == nil {
		t.system = c.config.SystemKnownHosts
	}
	if t.timeout <= 0 {
		t.timeout = c.config.ConnectTimeout
	}
	if !s.aliveSet {
		t.alive = c.config.KeepAlive
	}
	return t, s.jump, nil
}

// said returns what another party said in an error, bounded and without characters that act on a terminal.
func said(err error) error {
	if err == nil {
		return nil
	}
	return &saidError{plain(err.Error()), err}
}

type saidError struct {
	text string
	err  error
}

func (e *saidError) Error() string { return e.text }
func (e *saidError) Unwrap() error { return e.err }

// plain returns a text of another party as one short line.
func plain(s string) string {
	const most = 400
	cut := len(s) > most
	s = strings.TrimSpace(s[:min(len(s), most)])
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if cut {
		s += "…"
	}
	return s
}

// LoadSSHConfig reads the user's and the system's ssh configuration. A file that is absent is empty; one that another user
// could have written is an error.
func LoadSSHConfig(users, systems string) (*SSHConfig, error) {
	own := map[string]bool{users: true} // the files that the user's file includes
	var files []File
	for _, name := range []string{users, systems} {
		f, err := configFile(name)
		if errors.Is(err, errdefs.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return ParseSSHConfig(files, func(from, pattern string) ([]File, error) {
		base := filepath.Dir(systems)
		if own[from] {
			base = filepath.Dir(users)
		}
		if rest, ok := strings.CutPrefix(pattern, "~/"); ok && own[from] {
			pattern = filepath.Join(filepath.Dir(filepath.Dir(users)), rest)
		}
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(base, pattern)
		}
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("it is no pattern: %w", err)
		}
		if len(names) > maxConfigFiles {
			return nil, invalid("it is more than %d files", maxConfigFiles)
		}
		var found []File
		for _, name := range names {
			f, err := configFile(name)
			if err != nil {
				return nil, err
			}
			own[name] = own[name] || own[from]
			found = append(found, f)
		}
		return found, nil
	})
}
