//go:build linux

package rootless_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// packageClients fetch something small from the mirrors that this host's clients are configured with. A script runs in a
// new directory, on the host and then in a workspace. It does not try again what fails.
var packageClients = []struct {
	set     string
	needs   string // a condition of the shell
	version string
	// script runs in a directory beside /etc/apt as apt, which a workspace does not have.
	script string
	want   string
}{
	{
		"npm", "command -v npm", "npm --version",
		`export npm_config_cache=$PWD/cache npm_config_fetch_retries=0 npm_config_update_notifier=false
		npm view is-number@7.0.0 version && npm pack --silent is-number@7.0.0 && tar tzf is-number-7.0.0.tgz | grep index.js`,
		"7.0.0\nis-number-7.0.0.tgz\npackage/index.js\n",
	},
	{
		"pip", "/usr/bin/python3 -m pip --version", "/usr/bin/python3 -m pip --version",
		`export PIP_CONFIG_FILE=/dev/null PIP_CACHE_DIR=$PWD/cache
		/usr/bin/python3 -m pip download -q --retries 0 --timeout 20 --disable-pip-version-check --no-deps --only-binary :all: six==1.16.0 && ls *.whl`,
		"six-1.16.0-py2.py3-none-any.whl\n",
	},
	{
		"go", "command -v go", "go version",
		`export GOFLAGS=-mod=mod GOTOOLCHAIN=local GOMODCACHE=$PWD/mod GOCACHE=$PWD/cache
		go mod download -modcacherw golang.org/x/mod@v0.20.0 && ls mod/golang.org/x mod/cache/download/sumdb > /dev/null && ls mod/golang.org/x`,
		"mod@v0.20.0\n",
	},
	{
		"apt", "command -v apt-get", "apt-get --version | head -1",
		`mkdir -p state/lists/partial cache/archives/partial && touch status
		apt() { APT_CONFIG=/dev/null apt-get -qq -o Dir::Etc=$PWD/../apt -o Dir::State=$PWD/state -o Dir::State::status=$PWD/status -o Dir::Cache=$PWD/cache -o Acquire::Retries=0 \
			-o Acquire::Languages=none -o APT::Update::Post-Invoke::= -o APT::Sandbox::User=root "$@"; }
		apt update && apt download hello && ls *.deb | sed 's/_.*//'`,
		"hello\n",
	},
}

// handed are variables that a client may need to trust the mirror, where they name a file that a workspace has.
var handed = []string{"NODE_EXTRA_CA_CERTS", "PIP_CERT", "SSL_CERT_FILE"}

// The sets of package clients are enough for the clients, which have no other setting. Whether the host itself reaches
// a mirror is tried first.
func TestEgressPackageClients(t *testing.T) {
	u := newUser(t)
	path := "PATH=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin"
	u.env = append(slices.DeleteFunc(u.env, func(v string) bool { return strings.HasPrefix(v, "PATH=") }), path)
	flags := []string{"--here", "--env", path}
	for _, name := range handed {
		if v := os.Getenv(name); strings.HasPrefix(v, "/etc/") || strings.HasPrefix(v, "/usr/") {
			u.env = append(u.env, name+"="+v)
			flags = append(flags, "--env", name+"="+v)
		}
	}
	u.sh("cp -rL /etc/apt project/apt; chmod -R u+w project/apt; rm -rf project/apt/apt.conf.d/*")
	for _, c := range packageClients {
		t.Run(c.set, func(t *testing.T) {
			u.t = t
			if r := u.sh(c.needs); r.code != 0 {
				t.Skipf("skipped: no %s in %s", c.set, path)
			}
			t.Log(strings.TrimSpace(u.sh(c.version).out))
			hosts, err := (&conf.Clients{Runner: asUser{u}, Environment: u.env}).Lookup(t.Context())(c.set)
			if err != nil {
				t.Skipf("skipped: %v", err)
			}
			u.network(nil, "")
			if r := finish(u.command("", "/bin/sh", "-c", "umask 022; cat > .config/carrel/egress.yaml"), u.treatAsPublic(hosts)); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			script := "set -e; rm -rf %[1]s; mkdir %[1]s; cd %[1]s\n" + c.script
			direct := fmt.Sprintf(script, "direct-"+c.set)
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			if r, ok := u.within(ctx, "project", "bash", "-c", direct); !ok || r.code != 0 || r.out != c.want {
				t.Skipf("skipped: this host's own %s does not reach its mirror: %+v", c.set, r)
			}
			args := slices.Concat(flags, []string{"--allow", "@" + c.set, "--", "bash", "-c", fmt.Sprintf(script, "inside-"+c.set)})
			if r := u.run(args...); r.code != 0 || r.out != c.want {
				t.Errorf("%+v", r)
			}
			reached := map[string]int64{}
			for _, x := range u.connections() {
				if x.Refused == "" && strings.HasPrefix(x.Rule, "@"+c.set+": ") {
					reached[fmt.Sprint(x.Host, ":", x.Port)] += x.ReceivedBytes
				}
			}
			if len(reached) == 0 {
				t.Error("no connection is recorded")
			}
			for host, n := range reached {
				if !slices.Contains(hosts, host) || n == 0 {
					t.Errorf("reached %d bytes of a host that is not of the set", n)
				}
			}
			t.Logf("%d of %d hosts of the set were reached", len(reached), len(hosts))
			args = slices.Concat(flags, []string{"--allow", "unrelated.example.org", "--", "bash", "-c", fmt.Sprintf(script, "refused-"+c.set)})
			if r := u.run(args...); r.code == 0 || !strings.Contains(r.err, " is not allowed: no rule allows any port of it") {
				t.Errorf("without the set: %+v", r)
			}
		})
	}
}

// asUser asks a client as u.
type asUser struct{ u *user }

func (a asUser) Run(ctx context.Context, _ []string, argv ...string) (string, error) {
	r, ok := a.u.within(ctx, "", argv[0], argv[1:]...)
	if !ok || r.code != 0 {
		return "", fmt.Errorf("%s ended with %d: %s", argv[0], r.code, r.err)
	}
	return r.out, nil
}

// within runs a program of the host as u until ctx ends. It is false if there is no such program.
func (u *user) within(ctx context.Context, dir, name string, args ...string) (r result, ok bool) {
	c := u.command(dir, "/usr/bin/env", append([]string{name}, args...)...)
	stop := context.AfterFunc(ctx, func() {
		if c.Process != nil {
			_ = c.Process.Kill()
		}
	})
	defer stop()
	c.WaitDelay = time.Second
	r = finish(c, "")
	return r, r.code != 127 && ctx.Err() == nil
}

// treatAsPublic is a file of network rules by which hosts are reached whose addresses here are for another use, as
// those of a mirror in a range for documentation.
func (u *user) treatAsPublic(hosts []string) string {
	u.t.Helper()
	text := "treat_as_public: ["
	for _, h := range hosts {
		rule, err := netrule.ParseRule(netrule.Allow, h)
		if err != nil {
			u.t.Fatal(err)
		}
		rules, err := netrule.New([]netrule.Rule{rule}, netrule.Options{})
		if err != nil {
			u.t.Fatal(err)
		}
		target, err := netrule.ParseTarget(h)
		if err != nil {
			u.t.Fatal(err)
		}
		all, err := new(net.Resolver).LookupNetIP(u.t.Context(), "ip", target.Host.String())
		if e := (*net.DNSError)(nil); errors.As(err, &e) {
			continue // the client says what it lacks
		}
		for _, a := range all {
			if a = a.Unmap(); rules.Address(target, a) != nil {
				text += netip.PrefixFrom(a, a.BitLen()).String() + ", "
			}
		}
	}
	return text + "]\n"
}

// What a command wrote in its project does not say what the next one may reach, and is not run on the host.
func TestEgressClientsAvoidTheProject(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	s := newSite(t, u)
	u.network(map[string]string{"good.example.org": "127.0.0.1", "bad.example.org": "127.0.0.1"}, "")
	r := u.sh(fmt.Sprintf(`mkdir bin project/bin project/sub
		npm() { mkdir -p $1; printf '#!/bin/sh\ntouch '$HOME'/ran-%%s\n[ -e .npmrc ] || echo http://%%s.example.org:%%s/\n' $2 $2 %s > $1/npm; chmod +x $1/npm; }
		npm bin good; npm project/bin bad; npm project/sub/bin bad
		echo registry=http://bad.example.org:%[1]s/ | tee project/.npmrc > project/sub/.npmrc`, s.plain))
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	u.env = append(
		slices.DeleteFunc(u.env, func(v string) bool { return strings.HasPrefix(v, "PATH=") }),
		"PATH="+u.home+"/project/bin:"+u.home+"/project/sub/bin:bin:"+u.home+"/bin:/usr/bin:/bin",
		"npm_config_userconfig="+u.home+"/project/.npmrc",
	)
	for _, dir := range []string{"project", "project/sub"} {
		r := finish(u.command(dir, filepath.Join(programs, "carrel"), "run", "--here", "--allow", "@npm", "--allow", "127.0.0.1:"+s.plain, "--",
			"bash", "-c", fmt.Sprintf("for n in good bad; do curl -sS -m 5 http://$n.example.org:%s/$n; done; true", s.plain)), "")
		if r.code != 0 || r.out != "good.example.org:"+s.plain+" at /good\n" || !strings.Contains(r.err, "bad.example.org is not allowed") {
			t.Errorf("in %s: %+v", dir, r)
		}
	}
	if r := u.sh("ls -d ran-*"); r.out != "ran-good\n" {
		t.Errorf("run on the host: %+v", r)
	}
	// What does not answer, or not with a host, is one line, and nothing runs.
	u.sh("printf '#!/bin/sh\nexit 1\n' > bin/npm")
	if r := u.run("--allow", "@npm", "--", "echo", "ran"); r.code != 125 || r.out != "" || !strings.Contains(r.err, "cannot read the hosts of @npm") ||
		strings.Count(r.err, "\n") != 1 {
		t.Errorf("%+v", r)
	}
}

// cargo fetches from a mirror that only its configuration names: a registry of the test's.
func TestEgressCargo(t *testing.T) {
	u := newUser(t)
	// A cargo of rustup is a link to what chooses one.
	cargo, err := exec.CommandContext(t.Context(), "cargo", "--version").Output()
	if err != nil {
		t.Skipf("skipped: no cargo on this host: %v", err)
	}
	t.Log(strings.SplitN(string(cargo), "\n", 2)[0])
	program, err := exec.LookPath("cargo")
	if out, serr := exec.CommandContext(t.Context(), "rustc", "--print", "sysroot").Output(); serr == nil {
		program = filepath.Join(strings.TrimSpace(string(out)), "bin/cargo")
	}
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(program)
	if err != nil {
		t.Skipf("skipped: the cargo of this host cannot be copied: %v", err)
	}
	defer from.Close()
	c := u.command("project", "/bin/sh", "-c", "cat > cargo && chmod +x cargo")
	c.Stdin = from
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	var crate bytes.Buffer
	z := gzip.NewWriter(&crate)
	w := tar.NewWriter(z)
	for _, f := range [][2]string{{"Cargo.toml", "[package]\nname = \"small\"\nversion = \"0.1.0\"\n"}, {"src/lib.rs", "// small\n"}} {
		if err := w.WriteHeader(&tar.Header{Name: "small-0.1.0/" + f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2, server.TLS = true, newAuthority(t, u)
	server.StartTLS()
	t.Cleanup(server.Close)
	port := portOf(t, server.Listener.Addr())
	url := "https://" + serverNames[0] + ":" + port
	for path, text := range map[string]string{
		"/index/config.json": fmt.Sprintf(`{"dl": "%s/dl"}`, url),
		"/index/sm/al/small": fmt.Sprintf(`{"name":"small","vers":"0.1.0","deps":[],"cksum":"%x","features":{},"yanked":false}`,
			sha256.Sum256(crate.Bytes())),
		"/dl/small/0.1.0/download": crate.String(),
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	u.network(map[string]string{serverNames[0]: "127.0.0.1"}, "")
	if r := u.sh(fmt.Sprintf(`mkdir -p .cargo project/src && cd project && touch src/lib.rs
		printf '[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\nregistry = "sparse+%s/index/"\n' > ../.cargo/config.toml
		printf '[package]\nname = "a"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nsmall = "0.1"\n' > Cargo.toml`, url)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	config, err := os.ReadFile(filepath.Join(u.home, ".cargo/config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	script := "mkdir -p ~/.cargo && cat > ~/.cargo/config.toml <<'END'\n" + string(config) +
		"END\nCARGO_HTTP_CAINFO=$PWD/ca.pem CARGO_NET_RETRY=0 ./cargo vendor -q --respect-source-config > /dev/null && cat vendor/small/src/lib.rs"
	if r := u.reach(script, "@cargo", "127.0.0.1:"+port); r.code != 0 || r.out != "// small\n" {
		t.Errorf("%+v", r)
	}
	if r := u.reach("rm -r vendor Cargo.lock 2>/dev/null; "+script, "127.0.0.1:"+port); r.code == 0 || !strings.Contains(r.err, serverNames[0]+" is not allowed") {
		t.Errorf("without the set: %+v", r)
	}
}
