package conf_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// mockRunner answers for programs by their command lines. What it does not have is not installed.
type mockRunner map[string]string

func (m mockRunner) Run(_ context.Context, env []string, argv ...string) (string, error) {
	line := strings.Join(argv, " ")
	if strings.HasPrefix(line, "python3 -E -c") {
		line = "pip's default"
	}
	if argv[0] == "go" && !slices.Contains(env, "GOTOOLCHAIN=local") {
		return "", errors.New("go could fetch a toolchain")
	}
	out, ok := m[line]
	if !ok {
		return "", fmt.Errorf("there is no program %s in PATH: %w", argv[0], errdefs.ErrNotFound)
	}
	return out, nil
}

const pipList = "python3 -E -m pip --disable-pip-version-check config list"

// host is a mock of a host: its root is a directory of the test, with home in it.
func host(t *testing.T, runner mockRunner, env []string, files map[string]string) *conf.Clients {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &conf.Clients{Runner: runner, Root: root, Environment: append([]string{"HOME=" + root + "/home"}, env...)}
}

func TestClientsReadTheirSettings(t *testing.T) {
	for _, c := range []struct {
		name, set string
		runner    mockRunner
		env       []string
		files     map[string]string
		want      string // hosts, or what the error has
	}{
		{
			name: "go asked", set: "go",
			runner: mockRunner{"go env GOPROXY GOSUMDB": "https://go.example.org/x,direct\nsum.example.org\n"},
			want:   "go.example.org:443 sum.example.org:443",
		},
		{
			name: "go by environment", set: "go",
			env:  []string{"GOPROXY=http://a.example.org|https://b.example.org:8443,off", "GOSUMDB=off"},
			want: "a.example.org:80 b.example.org:8443",
		},
		{name: "go without a scheme", set: "go", env: []string{"GOPROXY=a.example.org/path", "GOSUMDB=off"}, want: "a.example.org:443"},
		{
			name: "go with the URL of sums", set: "go",
			env:  []string{"GOPROXY=https://a.example.org", "GOSUMDB=sum.example.org+1+k https://b.example.org/x"},
			want: "a.example.org:443 b.example.org:443",
		},
		{
			name: "go with the key of sums", set: "go",
			env:  []string{"GOPROXY=https://a.example.org", "GOSUMDB=sum.example.org+1+k"},
			want: "a.example.org:443 sum.example.org:443",
		},
		{name: "go direct", set: "go", env: []string{"GOPROXY=direct", "GOSUMDB=sum.example.org"}, want: `"direct" has no host of its own`},
		{name: "go of files", set: "go", env: []string{"GOPROXY=file:///srv/go,off", "GOSUMDB=off"}, want: "nothing on this host names one"},
		{name: "no go", set: "go", want: "no program go in PATH"},

		{
			name: "npm asked", set: "npm",
			runner: mockRunner{"npm config get registry": "https://npm.example.org/\n"},
			want:   "npm.example.org:443",
		},
		{
			name: "npm by environment", set: "npm",
			env:  []string{"npm_config_registry=http://npm.example.org:4873"},
			want: "npm.example.org:4873",
		},
		{
			name: "npm with scopes", set: "npm", runner: mockRunner{"npm config get registry": "https://npm.example.org/"},
			files: map[string]string{"home/.npmrc": "; x\n@a:registry = https://a.example.org/${PART}/\n" +
				"//a.example.org/:_authToken=secret\n@b:registry=\"https://b.example.org:1\"\n"},
			want: "a.example.org:443 b.example.org:1 npm.example.org:443",
		},
		{
			name: "npm by its file", set: "npm",
			env:   []string{"WHERE=npm.example.org"},
			files: map[string]string{"home/.npmrc": "registry=https://${WHERE}/\n"},
			want:  "npm.example.org:443",
		},
		{name: "no npm", set: "npm", want: "no program npm in PATH"},
		{name: "npm says nothing", set: "npm", runner: mockRunner{"npm config get registry": "undefined\n" +
			""}, want: "set npm_config_registry"},

		{
			name: "pip asked", set: "pip",
			runner: mockRunner{pipList: "", "pip's default": "https://pip.example.org/simple\nhttps://files.example.org\n"},
			want:   "pip.example.org:443 files.example.org:443",
		},
		{
			name: "pip configured", set: "pip",
			runner: mockRunner{pipList: ":env:.cert='/x'\nglobal.extra-index-url='https://a.example.org/s\\n" +
				"https://b.example.org/s'\nglobal.index-url='https://u:secret@pip.example.org/simple'\n"},
			want: "pip.example.org:443 a.example.org:443 b.example.org:443",
		},
		{
			name: "pip by environment", set: "pip",
			env:  []string{"PIP_INDEX_URL=https://pip.example.org/s", "PIP_EXTRA_INDEX_URL=http://a.example.org http://b.example.org"},
			want: "pip.example.org:443 a.example.org:80 b.example.org:80",
		},
		{
			name: "pip by its files", set: "pip", env: []string{"XDG_CONFIG_HOME=relative"},
			files: map[string]string{
				"etc/pip.conf": "[global]\nindex-url = https://pip.example.org/simple\nextra-index-url =\n" +
					"    https://a.example.org\n    https://b.example.org\n",
				"home/.config/pip/pip.conf": "[install]\nextra-index-url: no\nextra-index-url=https://c.example.org\n",
			},
			want: "pip.example.org:443 a.example.org:443 b.example.org:443 c.example.org:443",
		},
		{name: "no pip", set: "pip", want: "no program python3 in PATH"},

		{
			name: "apt", set: "apt", files: map[string]string{
				"etc/apt/sources.list": "# deb http://no.example.org x main\n" +
					"deb http://a.example.org/debian x main # y\n" +
					"deb-src [arch=amd64 signed-by=/k] https://b.example.org:8443/debian x main\ndeb cdrom:[x]/ x main\ndeb file:/srv x main\n",
				"etc/apt/sources.list.d/c.list":  "deb  [ trusted=yes ]  https://c.example.org x main\n",
				"etc/apt/sources.list.d/d.saved": "deb https://no.example.org x main\n",
				"etc/apt/sources.list.d/e.sources": "Types: deb\n# comment\nURIs: http://e.example.org/debian\n" +
					"  https://f.example.org/x\nSuites: x\n\n" +
					"Types: deb\nEnabled: no\nURIs: http://no.example.org\n\nuris: http://g.example.org\nEnabled: yes",
			},
			want: "a.example.org:80 b.example.org:8443 c.example.org:443 e.example.org:80 f.example.org:443 g.example.org:80",
		},
		{name: "no apt", set: "apt", want: "add a source"},

		{
			name: "cargo", set: "cargo", env: []string{"CARGO_REGISTRIES_MINE_INDEX=sparse+https://mine.example.org:81/index/"},
			files: map[string]string{"home/.cargo/config.toml": "[build]\nregistry = \"https://no.example.org\"\n" +
				"[source.crates-io]\nreplace-with = 'mirror'\n[source.mirror]\n" +
				"registry = \"sparse+https://a.example.org/index/\" # x\n[registries.b]\nindex = 'https://b.example.org/git'\n"},
			want: "mine.example.org:81 a.example.org:443 b.example.org:443",
		},
		{name: "cargo without", set: "cargo", want: "name its index and download hosts with --allow HOST"},
		{name: "cargo elsewhere", set: "cargo", env: []string{"CARGO_HOME=/nowhere"}, want: "nothing on this host names one"},

		{name: "no star", set: "npm", env: []string{"npm_config_registry=https://*/"}, want: "no host that can be used"},
		{name: "no stars below", set: "npm", env: []string{"npm_config_registry=https://*.example.org/"}, want: "no host that can be used"},
		{name: "no network", set: "npm", env: []string{"npm_config_registry=https://10.0.0.0%2f8/"}, want: "cannot be read"},
		{name: "no range of ports", set: "npm", env: []string{"npm_config_registry=https://example.org:1-65535/"}, want: "cannot be read"},
		{name: "an address", set: "npm", env: []string{"npm_config_registry=http://[2001:db8::1]/"}, want: "[2001:db8::1]:80"},
		{name: "not a URL", set: "npm", env: []string{"npm_config_registry=https://u:secret@ex ample/"}, want: "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hosts, err := host(t, c.runner, c.env, c.files).Lookup(t.Context())(c.set)
			got := strings.Join(hosts, " ")
			if err != nil {
				got = err.Error()
				if hosts != nil || strings.Contains(got, "secret") {
					t.Errorf("%q, %v", hosts, err)
				}
			}
			if err == nil && got != c.want || !strings.Contains(got, c.want) {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
}

// A command may have written its project: nothing there says what the next command may reach.
func TestClientsAvoidProjects(t *testing.T) {
	c := host(t, mockRunner{"npm config get registry": "https://npm.example.org/"}, nil, map[string]string{
		"project/npmrc": "@a:registry=https://bad.example.org\n", "project/bin/npm": "", "home/bin/x": "",
	})
	project := filepath.Join(c.Root, "project")
	c.Avoid = []string{project}
	c.Environment = append(
		c.Environment, "npm_config_userconfig="+project+"/npmrc", "NODE_OPTIONS=--require "+project+"/x.js",
		"PATH="+project+"/bin:bin:"+c.Root+"/link:"+c.Root+"/home/bin", "PWD="+project, "GOPROXY=https://go.example.org", "GOSUMDB=off",
	)
	if err := os.Symlink(project+"/bin", c.Root+"/link"); err != nil {
		t.Fatal(err)
	}
	var seen []string
	c.Runner = spy{c.Runner, func(env []string) { seen = env }}
	hosts, err := c.Lookup(t.Context())("npm")
	if err != nil || !slices.Equal(hosts, []string{"npm.example.org:443"}) {
		t.Errorf("%q, %v", hosts, err)
	}
	want := []string{c.Environment[0], "PATH=" + c.Root + "/home/bin", "GOPROXY=https://go.example.org", "GOSUMDB=off"}
	if !slices.Equal(seen, want) {
		t.Errorf("the client had %q, not %q", seen, want)
	}
	// A file of the home that leads into the project is that of the project.
	if err := os.Symlink(project+"/npmrc", c.Root+"/home/.npmrc"); err != nil {
		t.Fatal(err)
	}
	if hosts, err := c.Lookup(t.Context())("npm"); err != nil || len(hosts) != 1 {
		t.Errorf("%q, %v", hosts, err)
	}
}

// spy shows the environment that a client has.
type spy struct {
	conf.Runner
	see func([]string)
}

func (s spy) Run(ctx context.Context, env []string, argv ...string) (string, error) {
	s.see(env)
	return s.Runner.Run(ctx, env, argv...)
}

// Each client is asked once for a set.
func TestClientsAreAskedOnce(t *testing.T) {
	n := 0
	c := host(t, nil, nil, nil)
	c.Runner = spy{mockRunner{"npm config get registry": "https://npm.example.org/"}, func([]string) { n++ }}
	lookup := c.Lookup(t.Context())
	for range 3 {
		if _, err := lookup("npm"); err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 {
		t.Errorf("asked %d times", n)
	}
	if _, err := lookup("nothing"); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

func TestReadExpandsClients(t *testing.T) {
	lookup := host(t, mockRunner{"npm config get registry": "https://npm.example.org/"}, nil, nil).Lookup(t.Context())
	c, err := conf.ParseWith("f", []byte("allow: ['@npm']\n"), lookup)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Rules) != 1 || c.Rules[0].Text != "@npm: npm.example.org:443" || c.Rules[0].Action != netrule.Allow {
		t.Errorf("%+v", c.Rules)
	}
	denied, err := c.Read(conf.Texts{Deny: []string{"@npm"}})
	if err != nil || len(denied) != 1 || denied[0].Action != netrule.Deny {
		t.Errorf("%+v, %v", denied, err)
	}
	if _, err := c.Read(conf.Texts{Allow: []string{"@pip"}}); err == nil || !strings.Contains(err.Error(), "@pip") {
		t.Error(err)
	}
	if _, err := c.Read(conf.Texts{Allow: []string{"@nothing"}}); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "@cargo, @github") {
		t.Error(err)
	}
	// The caller's own set wins, and nothing is asked.
	c, err = conf.ParseWith("f", []byte("sets: {npm: [mine.example.org]}\nallow: ['@npm']\n"), func(string) ([]string, error) {
		return nil, errors.New("asked")
	})
	if err != nil || len(c.Rules) != 1 || c.Rules[0].Text != "@npm: mine.example.org" {
		t.Errorf("%+v, %v", c, err)
	}
	// Without clients the sets are unknown.
	if _, err := conf.Parse("f", []byte("allow: ['@npm']\n")); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	for _, name := range conf.ClientNames() {
		if _, ok := netrule.BuiltIn()[name]; ok {
			t.Errorf("@%s is built in", name)
		}
	}
}

// slow never answers.
type slow struct{}

func (slow) Run(ctx context.Context, _ []string, _ ...string) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func TestClientsThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := conf.Clients{Runner: slow{}, Environment: []string{"HOME=/nonexistent"}}
		start := time.Now()
		_, err := c.Lookup(t.Context())("npm")
		if d := time.Since(start); d != 20*time.Second || !errdefs.IsUnavailable(err) ||
			!strings.Contains(err.Error(), "npm did not answer within 20s") {
			t.Errorf("after %v: %v", d, err)
		}
	})
}

// What a program says is bounded, and what it started does not outlive it.
func TestProgramsAreBounded(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("where", "pwd; cat")
	write("much", "yes | head -c 200000")
	write("fails", "printf 'one\\033[1m\\ntwo' >&2; exit 3")
	write("stays", "sleep 1000 & sleep 1000")
	env := []string{"PATH=relative:" + dir + ":/usr/bin:/bin"}
	run := func(ctx context.Context, name string) (string, error) {
		return conf.Programs{}.Run(ctx, env, name)
	}
	if out, err := run(t.Context(), "where"); out != "/\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := run(t.Context(), "much"); err == nil || !strings.Contains(err.Error(), "more than 65536 bytes") {
		t.Error(err)
	}
	if _, err := run(t.Context(), "fails"); err == nil || !strings.HasSuffix(err.Error(), "exit status 3: one [1m") {
		t.Error(err)
	}
	if _, err := run(t.Context(), "no-such-program"); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := run(ctx, "stays"); err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// The clients of this host answer. What they answer is theirs, so only its form is checked.
func TestClientsOfThisHost(t *testing.T) {
	lookup := conf.HostClients(nil).Lookup(t.Context())
	for set, program := range map[string]string{"apt": "apt-get", "cargo": "cargo", "go": "go", "npm": "npm", "pip": "python3"} {
		t.Run(set, func(t *testing.T) {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("skipped: no %s on this host", program)
			}
			hosts, err := lookup(set)
			switch {
			case errdefs.IsNotFound(err) || set == "pip" && err != nil && strings.Contains(err.Error(), "No module named"):
				t.Skipf("skipped: it is configured with no host: %v", err)
			case err != nil:
				t.Fatal(err)
			}
			t.Logf("%s: %d hosts", set, len(hosts))
			for _, h := range hosts {
				if r, err := netrule.ParseRule(netrule.Allow, h); err != nil || r.Text != h || r.Any || r.Below || r.Ports.First != r.Ports.Last {
					t.Errorf("%q: %+v, %v", h, r, err)
				}
			}
		})
	}
}
