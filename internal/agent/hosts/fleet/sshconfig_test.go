package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

func parse(t *testing.T, text string) *fleet.SSHConfig {
	t.Helper()
	c, err := fleet.ParseSSHConfig([]fleet.File{{Name: "config", Data: []byte(text)}}, nil)
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return c
}

// asked returns what holds for a host, as "user@host:port" and more.
func asked(t *testing.T, c *fleet.SSHConfig, name string) (string, error) {
	t.Helper()
	return c.Describe(name, "caller", "/home/caller")
}

func TestSSHConfig(t *testing.T) {
	const text = `
# a comment
User first   # and another
Host web* !web9
	HostName = %h.example.org
	Port=2200
	IdentityFile "~/.ssh/my key"
	IdentityFile %d/.ssh/%n_%r_%p_%u_%h%%
	IdentitiesOnly yes
	ConnectTimeout 1m30s
	ServerAliveInterval 7
host WEB2
	Port 1
Host web1 web2
	Port 2300
	User second
	ProxyJump a,b@c:2022
Host web2
	HostKeyAlias other
	UserKnownHostsFile ~/known /etc/known2
	GlobalKnownHostsFile none
	UnheardOf x
Match originalhost web3 user first
	HostName ten
Match host ten.example.org,web3.example.org !user x
	ServerAliveCountMax 9
Match all
	AddressFamily inet6
Match final
	User never
	Compression yes
Host h
	ProxyJump none
	proxycommand ssh -W %h:%p elsewhere
Match originalhost noexec exec "touch /tmp/x"
	User x
Match final originalhost late
	HostKeyAlias late
`
	c := parse(t, text)
	for name, want := range map[string]string{
		"web1": "first@web1.example.org:2200 keys=[/home/caller/.ssh/my key /home/caller/.ssh/web1_first_2200_caller_web1.example.org%] only " +
			"jump=[a b@c:2022] timeout=1m30s alive=7s network=tcp6",
		"web3": "first@web3.example.org:2200 keys=[/home/caller/.ssh/my key /home/caller/.ssh/web3_first_2200_caller_web3.example.org%] only " +
			"timeout=1m30s alive=7s/9 network=tcp6",
		"web9": "first@web9:22 network=tcp6",
		"h":    "first@h:22 network=tcp6",
		"late": "first@late:22 alias=late network=tcp6",
	} {
		if got, err := asked(t, c, name); err != nil || got != want {
			t.Errorf("%s:\n%s, %v\n%s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{"web2": "config:22: no setting is named \"unheardof\"", "noexec": "config:35: Match exec"} {
		if got, err := asked(t, c, name); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

// What cannot be honoured is an error with its line for the hosts that it holds for, and for no other.
func TestSSHConfigRefuses(t *testing.T) {
	for _, line := range []string{
		"ProxyCommand nc %h %p", "LocalCommand x", "PermitLocalCommand yes", "KnownHostsCommand /bin/x", "PKCS11Provider /x.so",
		"SecurityKeyProvider /x.so", "StrictHostKeyChecking no", "StrictHostKeyChecking off", "NoHostAuthenticationForLocalhost yes",
		"VerifyHostKeyDNS yes", "RevokedHostKeys /x", "CanonicalizeHostname yes", "CertificateFile /x", "RemoteCommand id",
		"BindAddress 127.0.0.1",
		"PubkeyAuthentication no", "Nonsense 1", "Port 0", "Port 65536", "Port x", "ConnectTimeout x", "ConnectTimeout 1x", "IdentityFile %C",
		"IdentityFile relative", "IdentityFile ${HOME}/x", "UserKnownHostsFile ~other/x", "HostName -oProxyCommand=x", "HostName a/b",
		"User -x", "User a b",
		"HostName %p", "AddressFamily inet7", "IdentitiesOnly perhaps", "ServerAliveCountMax 0", "HostKeyAlias a/b", "IdentityAgent $SOCK",
	} {
		c := parse(t, "Host other\n  "+line+"\nHost x\n  "+line)
		if _, err := asked(t, c, "x"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "config:4: ") {
			t.Errorf("%s: %v", line, err)
		}
		if got, err := asked(t, c, "y"); err != nil || got != "caller@y:22" {
			t.Errorf("%s: %s, %v", line, got, err)
		}
	}
	for _, line := range []string{
		"IgnoreUnknown Nonsense,X*\n Nonsense 1\n xyz 2", "ForwardAgent yes", "ProxyCommand none", "StrictHostKeyChecking accept-new",
		"RequestTTY yes", "StrictHostKeyChecking yes\nStrictHostKeyChecking no", "Ciphers +3des-cbc",
	} {
		if got, err := asked(t, parse(t, line), "y"); err != nil || got != "caller@y:22" {
			t.Errorf("%s: %s, %v", line, got, err)
		}
	}
	for text, want := range map[string]string{
		"User": "config:1: User has no value", "\n\"User\" x": "config:2: ", "User \"x": "config:1: a quote", "Match frob x": "config:1: ",
		"Match host": "config:1: ", "Include /x": "config:1: ", "User \x00": "config:1: ", strings.Repeat("x", 20000) + " 1": "config:1: ",
		"Match !all": "config:1: ", strings.Repeat("User x\n", 70000): "settings",
	} {
		if _, err := fleet.ParseSSHConfig([]fleet.File{{Name: "config", Data: []byte(text)}}, nil); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.50q: %v", text, err)
		}
	}
}

func TestSSHConfigFiles(t *testing.T) {
	home := t.TempDir()
	dot := filepath.Join(home, ".ssh")
	if err := os.MkdirAll(filepath.Join(dot, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	users, systems := filepath.Join(dot, "config"), filepath.Join(home, "ssh_config")
	write(t, users, []byte("Host web\n Include conf.d/*.conf ~/extra absent\nHost db\n Include conf.d/b.conf\n"), 0o600)
	write(t, filepath.Join(dot, "conf.d", "a.conf"), []byte("Host web db\nPort 2000\nHost other\nPort 2001\n"), 0o600)
	write(t, filepath.Join(dot, "conf.d", "b.conf"), []byte("User b\nHost other\nUser other\n"), 0o600)
	write(t, filepath.Join(home, "extra"), []byte("HostKeyAlias extra\n"), 0o600)
	write(t, systems, []byte("Port 1\nUser system\nInclude more\n"), 0o600)
	write(t, filepath.Join(home, "more"), []byte("AddressFamily inet\n"), 0o600)
	c, err := fleet.LoadSSHConfig(users, systems)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"web": "b@web:2000 alias=extra network=tcp4", "db": "b@db:1 network=tcp4", "other": "system@other:1 network=tcp4",
	} {
		if got, err := asked(t, c, name); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if c, err := fleet.LoadSSHConfig(filepath.Join(home, "none"), filepath.Join(home, "nor this")); err != nil {
		t.Error(err)
	} else if got, err := asked(t, c, "x"); err != nil || got != "caller@x:22" {
		t.Errorf("%s, %v", got, err)
	}
	if err := os.Chmod(filepath.Join(home, "extra"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.LoadSSHConfig(users, systems); !errdefs.IsFailedPrecondition(err) && !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file that others may write: %v", err)
	}
	write(t, users, []byte("Include config\n"), 0o600)
	if _, err := fleet.LoadSSHConfig(users, systems); err == nil || !strings.Contains(err.Error(), "nested more than") {
		t.Errorf("a file that includes itself: %v", err)
	}
	write(t, users, []byte("Include config config\n"), 0o600)
	if _, err := fleet.LoadSSHConfig(users, systems); err == nil {
		t.Errorf("a file that includes itself twice: %v", err)
	}
}

// The ways that ProxyJump leads are bounded, also where they lead in a circle.
func TestSSHConfigWays(t *testing.T) {
	l := newLab(t)
	l.config.SSH = parse(t, "Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost bad\n ProxyJump -oX=y\nHost many\n ProxyJump "+
		strings.Repeat("x,", fleet.MaxJumps)+"x\n")
	c := l.client()
	for _, name := range []string{"a", "bad", "many"} {
		_, err := c.Run(t.Context(), fleet.Host{Name: name, Address: name}, fleet.Step{Argv: []string{"true"}})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		"Host *\nUser x\n", "Match host a,!b user c\n Port 22", "HostName=%h.x\nIdentityFile \"a b\" ", "Match final all\nUser x", "Include x",
		"ProxyJump a@b:1,ssh://c", "IgnoreUnknown *\nx y", "ConnectTimeout 1w2d3h4m5s", "User 'a\\'b'", "Host \\\n#\n\r\n",
	} {
		f.Add([]byte(s), "a")
	}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		depth := 0
		c, err := fleet.ParseSSHConfig([]fleet.File{{Name: "config", Data: text}}, func(_, pattern string) ([]fleet.File, error) {
			if depth++; depth > 3 {
				return nil, nil
			}
			return []fleet.File{{Name: pattern, Data: text}}, nil
		})
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("%v", err)
			}
			return
		}
		got, err := c.Describe(name, "caller", "/home/caller")
		if err != nil {
			return
		}
		again, err := c.Describe(name, "caller", "/home/caller")
		if err != nil || got != again {
			t.Fatalf("%q, then %q, %v", got, again, err)
		}
		var user, host string
		var port int
		at := strings.LastIndexByte(strings.Fields(got)[0], '@')
		user = got[:max(at, 0)]
		if i := strings.LastIndexByte(strings.Fields(got)[0], ':'); i > at {
			host = got[at+1 : i]
			fmt.Sscan(strings.Fields(got)[0][i+1:], &port)
		}
		if user == "" || host == "" || user[0] == '-' || host[0] == '-' || port < 1 || port > 65535 {
			t.Fatalf("%q is taken as %q", text, got)
		}
	})
}
