package root_test

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/test/nameserver"
)

// keyed is a carrel of a test's own, whose workspaces may be allowed names of a server with TLS for which the host's
// authorities vouch. It keeps the keys that it gets.
type keyed struct {
	*host
	port string

	mu   sync.Mutex
	keys []string // "HOST KEY"
}

func (k *keyed) got() (all string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all = strings.Join(k.keys, "\n")
	k.keys = nil
	return all
}

func newKeyed(t *testing.T) *keyed {
	t.Helper()
	needRoot(t)
	at, stop, err := nameserver.Start(t.Context(), nameserver.Zone{"api.test": "127.0.0.1", "other.test": "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	k := &keyed{}
	web := newSecureWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := cmp.Or(r.Header.Get("X-Key"), r.Header.Get("Authorization"))
		k.mu.Lock()
		k.keys = append(k.keys, strings.TrimSuffix(r.Host, ":"+k.port)+" "+key)
		k.mu.Unlock()
		w.Header().Set("Content-Type", "text/plain") // else a key with LP at some place makes it a font, which is not masked
		fmt.Fprintln(w, "key", key)
	}))
	k.port = web.port
	public := filepath.Join(t.TempDir(), "authorities.pem")
	k.host = newHostWith(t, func(dir string) string {
		file := filepath.Join(dir, "egress.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "resolver: %s\n", at), 0o644); err != nil {
			t.Fatal(err)
		}
		// Where those that serve workspaces may read it: they have ids of their own.
		public = filepath.Join(dir, "authorities.pem")
		if err := os.WriteFile(public, web.authority, 0o644); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("egress:\n  file: %s\n", file)
	})
	k.env = []string{"SSL_CERT_FILE=" + public}
	if err := k.up(); err != nil {
		t.Fatal(err)
	}
	return k
}

// The hosts that a secret of the owner's is for get its value, from commands that have a placeholder: at once with another
// value, and with another daemon, broker and carrel-egress. Nothing in the workspace and nothing on the host shows it.
func TestSecretsOfWorkspaces(t *testing.T) {
	k := newKeyed(t)
	values := []string{"planted " + rand.Text(), "planted " + rand.Text(), "planted " + rand.Text()}
	set := func(verb, value string, more ...string) {
		t.Helper()
		if r := k.try(nil, value+"\n", append([]string{"secret", verb, "API_KEY"}, more...)...); r.code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	set("set", values[0], "--host", "api.test:"+k.port)
	flags := []string{"--secret", "API_KEY"}
	for _, name := range []string{"api.test", "other.test", "127.0.0.1"} {
		flags = append(flags, "--allow", name+":"+k.port)
	}
	d := k.desk(t, flags...)
	placeholder := strings.TrimSpace(d.sh(t, "echo $API_KEY"))
	if len(placeholder) < 8 || strings.HasPrefix(placeholder, "planted") {
		t.Fatalf("the command has %q", placeholder)
	}
	sends := func(name string, more ...string) string {
		t.Helper()
		_ = k.got()
		args := append([]string{"/usr/bin/curl", "-sS", "-m", "20", "-H", "X-Key: " + placeholder, fmt.Sprintf("https://%s:%s/", name, k.port)}, more...)
		r := d.try(args...)
		if r.code == 0 && name == "api.test" && r.out != "key "+placeholder+"\n" {
			t.Errorf("the answer is not masked: %+v", r)
		}
		return cmp.Or(k.got(), r.err)
	}
	gets := func(what, value string) {
		t.Helper()
		if got := sends("api.test"); got != "api.test "+value {
			t.Errorf("%s: the host got %q, not %q", what, got, value)
		}
	}
	gets("at first", values[0])
	if got := sends("other.test", "-k"); got != "other.test "+placeholder {
		t.Errorf("another host got %q", got)
	}
	if out := k.carrel(t, "egress", "test", d.Key, "api.test:"+k.port); !strings.Contains(out, "API_KEY") {
		t.Errorf("egress test says\n%s", out)
	}
	if out := k.carrel(t, "inspect", d.Key); !strings.Contains(out, "API_KEY") {
		t.Errorf("inspect says\n%s", out)
	}
	set("rotate", values[1])
	gets("rotated", values[1])

	// Whatever ends, and however.
	for _, part := range []string{"broker", "daemon"} {
		end(t, k.part(t, part), syscall.SIGKILL)
		if err := k.up(); err != nil {
			t.Fatal(err)
		}
		gets("after the "+part+" was killed", values[1])
	}
	if err := syscall.Kill(d.egressPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "another carrel-egress", func() bool { return sends("api.test") == "api.test "+values[1] })
	k.carrel(t, "stop", d.Key)
	gets("after a stop", values[1])
	if again := strings.TrimSpace(d.sh(t, "echo $API_KEY")); again != placeholder {
		t.Errorf("the placeholder became %q", again)
	}

	// Nothing shows a value: not what the workspace sees, not what carrel writes, not what the host tells of processes.
	inside := d.sh(t, `env; cat /etc/carrel/*; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; cat ~/.* ~/* 2>/dev/null; true`)
	x := &finder{values: values[:2]}
	x.look("what the workspace sees", []byte(inside))
	for _, args := range [][]string{
		{"inspect", d.Key, "-o", "json"}, {"secret", "ls", "-o", "json"}, {"audit", "show"}, {"egress", "log", "-n", "0", "-o", "json"}, {"events"},
	} {
		if args[0] == "events" {
			continue // it does not end
		}
		x.look(strings.Join(args, " "), []byte(k.carrel(t, args...)))
	}
	x.tree(t, k.data)
	x.tree(t, k.run)
	x.processes(t)
	if len(x.found) > 0 || x.files < 100 {
		t.Errorf("of %d places, the value is in %q", x.files, x.found)
	}
	if b, err := k.readRecord(); err != nil || !bytes.Contains(b, []byte(`"secrets":["API_KEY"]`)) {
		t.Errorf("no record names the secret: %v", err)
	}

	// Taken back, it is gone at once, and the workspace starts without it.
	k.carrel(t, "secret", "rm", "API_KEY")
	if got := sends("api.test", "-k"); got != "api.test "+placeholder {
		t.Errorf("after it was removed the host got %q", got)
	}
	k.carrel(t, "stop", d.Key)
	if got := sends("api.test", "-k"); got != "api.test "+placeholder {
		t.Errorf("started without it: the host got %q", got)
	}
	set("set", values[2], "--host", "api.test:"+k.port)
	gets("set anew", values[2])
	k.carrel(t, "update", "--secret-rm", "API_KEY", d.Key)
	if got := sends("api.test", "-k"); got != "api.test "+placeholder {
		t.Errorf("no longer used: the host got %q", got)
	}
}

// A secret of the caller's shell is kept for the workspace that asks for it, and that of another user is not there.
func TestSecretsComeFromTheCaller(t *testing.T) {
	k := newKeyed(t)
	value := "planted " + rand.Text()
	create := func(who *syscall.Credential, key string, env ...string) result {
		t.Helper()
		c := k.command(t.Context(), who, "create", "--allow", "api.test:"+k.port, "--allow", "127.0.0.1:"+k.port,
			"--secret", "MY_KEY@api.test:"+k.port, key)
		c.Env = append(c.Env, env...)
		return finish(c, "")
	}
	if r := create(nil, "without"); r.code == 0 || !strings.Contains(r.err, "carrel secret set MY_KEY") {
		t.Errorf("without a variable: %+v", r)
	}
	r := create(nil, "with", "MY_KEY="+value)
	if r.code != 0 || !strings.Contains(r.err, "carrel secret rm MY_KEY") || strings.Contains(r.err, value) {
		t.Fatalf("%+v", r)
	}
	get := fmt.Sprintf(`curl -sS -m 20 -H "X-Key: $MY_KEY" https://api.test:%s/`, k.port)
	if r := k.try(nil, "", "exec", "with", "--", "/bin/bash", "-c", get); r.code != 0 || k.got() != "api.test "+value {
		t.Errorf("%+v", r)
	}
	// What is kept is used, and a later variable is not.
	if r := create(nil, "again", "MY_KEY=something else"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := k.try(nil, "", "exec", "again", "--", "/bin/bash", "-c", get); r.code != 0 || k.got() != "api.test "+value {
		t.Errorf("%+v", r)
	}
	// A workspace that was started without one takes its first after a stop.
	k.carrel(t, "create", "--allow", "api.test:"+k.port, "--allow", "127.0.0.1:"+k.port, "bare")
	if r := k.try(nil, "", "update", "--secret", "MY_KEY", "bare"); r.code == 0 || !strings.Contains(r.err, "carrel stop") {
		t.Errorf("%+v", r)
	}
	// A variable is not kept for a command that is refused.
	for _, args := range [][]string{
		{"update", "--secret", "MY_OTHER@api.test:" + k.port, "bare"},
		{"create", "--secret", "MY_OTHER@b.test", "never"},
		{"run", "--allow", "api.test", "--secret", "MY_OTHER@b.test", "--", "true"},
		{"update", "--secret", "MY_OTHER@api.test:" + k.port, "--secret", "NOT_SET", "bare"},
	} {
		c := k.command(t.Context(), nil, args...)
		c.Env = append(c.Env, "MY_OTHER="+value+"2")
		r := finish(c, "")
		if out := k.carrel(t, "secret", "ls"); r.code == 0 || strings.Contains(out, "MY_OTHER") || !strings.Contains(out, "MY_KEY") {
			t.Errorf("%q: %+v, and kept are\n%s", args, r, out)
		}
	}
	k.carrel(t, "stop", "bare")
	k.carrel(t, "update", "--secret", "MY_KEY", "bare")
	if r := k.try(nil, "", "exec", "bare", "--", "/bin/bash", "-c", get); r.code != 0 || k.got() != "api.test "+value {
		t.Errorf("%+v", r)
	}
}
