//go:build linux

package rootless_test

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

const secretValue = "sk-ant-api03-FvTm8qLx2WcZp5RkUy7HdNs3"

// keyed is a web server for names below "test", whose certificates are of an authority that the host of u trusts
// by its variables. It remembers the keys that it got.
type keyed struct {
	port string
	// serve answers, if it is set.
	serve http.HandlerFunc

	mu   sync.Mutex
	keys []string
}

func (k *keyed) got() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.keys)
}

func newKeyed(t *testing.T, u *user, names ...string) *keyed {
	t.Helper()
	authority, err := ca.Make("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	k := &keyed{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		k.keys = append(k.keys, r.Host+" "+cmp.Or(r.Header.Get("X-Api-Key"), r.Header.Get("Authorization")))
		k.mu.Unlock()
		if k.serve != nil {
			k.serve(w, r)
			return
		}
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprintf(w, "%s %s key %s\n", r.Proto, r.Host, r.Header.Get("X-Api-Key"))
	}))
	s.EnableHTTP2 = true
	leaves := authority.Leaves(func(netrule.Host) bool { return true })
	s.TLS = serverTLS(leaves)
	s.StartTLS()
	t.Cleanup(s.Close)
	k.port = s.Listener.Addr().String()[len("127.0.0.1:"):]
	zone := map[string]string{}
	for _, n := range names {
		zone[n] = "127.0.0.1"
	}
	u.network(zone, fmt.Sprintf("allow: [\"127.0.0.1:%s\"]\n", k.port))
	// carrel-egress trusts what the host trusts, and the host of this user trusts the test's authority.
	if r := finish(u.command("", "/bin/sh", "-c", "umask 022; cat > authority.pem"), string(authority.PEM())); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	u.env = append(u.env, "SSL_CERT_FILE="+filepath.Join(u.home, "authority.pem"), "ANTHROPIC_API_KEY="+secretValue)
	return k
}

// A command has a placeholder, the host that the secret is for gets the secret, and no other.
func TestSecretIsSwapped(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	k := newKeyed(t, u, "api.test", "other.test")
	script := fmt.Sprintf(`
		echo env $ANTHROPIC_API_KEY
		curl -sS -H "X-Api-Key: $ANTHROPIC_API_KEY" https://api.test:%[1]s/v1
		curl -sS --http1.1 -H "X-Api-Key: $ANTHROPIC_API_KEY" https://api.test:%[1]s/v1
		curl -sS -L -H "X-Api-Key: $ANTHROPIC_API_KEY" "https://api.test:%[1]s/v1?to=https://other.test:%[1]s/x" -k -o /dev/null
		curl -sS -k -H "X-Api-Key: $ANTHROPIC_API_KEY" https://other.test:%[1]s/ -o /dev/null
		curl -sS -H "X-Api-Key: $ANTHROPIC_API_KEY" "https://api.test:%[1]s/$ANTHROPIC_API_KEY" -o /dev/null
		env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; cat /etc/carrel/*; ls -la ~`, k.port)
	if has("python3") {
		script += fmt.Sprintf(`
		python3 -c "import os, urllib.request as u; print('python', u.urlopen(u.Request('https://api.test:%[1]s/v1',
			headers={'X-Api-Key': os.environ['ANTHROPIC_API_KEY']})).status)"`, k.port)
	}
	if has("node") {
		script += fmt.Sprintf(`
		node -e "fetch('https://api.test:%[1]s/v1', {headers: {'X-Api-Key': process.env.ANTHROPIC_API_KEY}}).then(r => console.log('node', r.status))"`, k.port)
	}
	r := u.run("--here", "--allow", "api.test:"+k.port, "--allow", "other.test:"+k.port, "--secret", "ANTHROPIC_API_KEY@api.test:"+k.port,
		"--", "bash", "-c", script)
	if strings.Contains(r.out+r.err, secretValue) {
		t.Errorf("the command saw the secret: %s%s", r.out, r.err)
	}
	_, placeholder, _ := strings.Cut(r.out, "env ")
	placeholder, _, _ = strings.Cut(placeholder, "\n")
	if len(placeholder) != len(secretValue) || !strings.HasPrefix(placeholder, "sk-ant-api03-") {
		t.Errorf("the placeholder is %q", placeholder)
	}
	// The host echoes the secret, and that is masked.
	for _, want := range []string{"HTTP/2.0 api.test:" + k.port + " key " + placeholder, "HTTP/1.1 api.test:" + k.port + " key " + placeholder} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in %s\n%s", want, r.out, r.err)
		}
	}
	for _, p := range []string{"python3", "node"} {
		if name := strings.TrimSuffix(p, "3"); has(p) && !strings.Contains(r.out, name+" 200") {
			t.Errorf("%s did not reach it: %s\n%s", p, r.out, r.err)
		}
	}
	for _, got := range k.got() {
		host, key, _ := strings.Cut(got, " ")
		if want := map[bool]string{true: secretValue, false: placeholder}[strings.HasPrefix(host, "api.test")]; key != want {
			t.Errorf("%s got %q", host, key)
		}
	}
	if n := len(k.got()); n < 6 {
		t.Errorf("only %d requests arrived: %s", n, r.err)
	}
	used := 0
	for _, c := range u.connections() {
		if slices.Contains(c.Secrets, "ANTHROPIC_API_KEY") {
			used++
			if c.Host != "api.test" {
				t.Errorf("the secret went to %s", c.Host)
			}
		}
	}
	if used == 0 {
		t.Error("no record names the secret")
	}
	u.holdsNowhere(secretValue)
}

// holdsNowhere looks for a secret in every file that carrel keeps for u.
func (u *user) holdsNowhere(secret string) {
	u.t.Helper()
	files := 0
	err := filepath.WalkDir(u.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secret)) {
			u.t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil || files == 0 {
		u.t.Errorf("%d files, %v", files, err)
	}
}

// While a command runs, the secret is in no argument, variable or file of a process, but for the caller's own variable.
func TestSecretShowsNowhere(t *testing.T) {
	u := newUser(t)
	k := newKeyed(t, u, "api.test")
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--allow", "api.test:"+k.port, "--secret",
		"ANTHROPIC_API_KEY@api.test:"+k.port, "--", "sleep", "100000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	until(t, "carrel-egress", func() bool { return len(u.egressPIDs()) == 1 })
	until(t, "the command", func() bool {
		return slices.ContainsFunc(u.processes(), func(pid int) bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return string(b) == "sleep\n"
		})
	})
	for _, pid := range u.processes() {
		for _, f := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, f))
			if err == nil && bytes.Contains(b, []byte(secretValue)) && (pid != c.Process.Pid || f != "environ") {
				t.Errorf("the secret is in /proc/%d/%s", pid, f)
			}
		}
	}
	u.holdsNowhere(secretValue)
}

// What is wrong is one line without the secret, and nothing runs.
func TestSecretsThatAreWrong(t *testing.T) {
	u := newUser(t)
	u.env = append(u.env, "MY_KEY="+secretValue, "SHORT=abc", "ANTHROPIC_API_KEY="+secretValue, "ODD=with a line\nand more")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--secret", "ANTHROPIC_API_KEY"}, "add --allow api.anthropic.com"},
		{[]string{"--allow", "example.com", "--secret", "MY_KEY"}, "MY_KEY@HOST"},
		{[]string{"--allow", "example.com", "--secret", "GITHUB_TOKEN"}, "is not set here"},
		{[]string{"--allow", "example.com", "--secret", secretValue}, "not the name of a variable"},
		{[]string{"--allow", "example.com", "--secret", "MY_KEY@*"}, "named"},
		{[]string{"--allow", "example.com", "--secret", "SHORT@example.com"}, "too short"},
		{[]string{"--allow", "example.com", "--secret", "ODD@example.com"}, "ODD"},
	} {
		began := time.Now()
		r := u.run(append(c.args, "--", "echo", "ran")...)
		if r.code != 125 || r.out != "" || !strings.Contains(r.err, c.want) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%q: %+v after %v", c.args, r, time.Since(began))
		}
		if strings.Contains(r.err, secretValue) {
			t.Errorf("%q shows the secret: %s", c.args, r.err)
		}
	}
}

// serverTLS serves any name with a certificate of its own.
func serverTLS(leaves *ca.Leaves) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			host, err := netrule.ParseHost(h.ServerName)
			if err != nil {
				return nil, err
			}
			return leaves.Leaf(host)
		},
	}
}
