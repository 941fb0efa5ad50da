package root_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
)

// A secret that is injected is in no place of the workspace: its host gets it with every request for which it is, also
// from programs that put something else there, and another host gets nothing.
func TestInjectedSecrets(t *testing.T) {
	k := newKeyed(t)
	value, second := "planted "+rand.Text(), "planted "+rand.Text()
	set := func(value string, args ...string) {
		t.Helper()
		if r := k.try(nil, value+"\n", append([]string{"secret"}, args...)...); r.code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	set(value, "set", "API_KEY", "--host", "api.test:"+k.port, "--inject", "header:Authorization: Bearer {}", "--path", "/v1/*", "--method", "GET")
	flags := []string{"--secret", "API_KEY"}
	for _, name := range []string{"api.test", "other.test", "127.0.0.1"} {
		flags = append(flags, "--allow", name+":"+k.port)
	}
	d := k.desk(t, flags...)
	if got := d.sh(t, "env"); strings.Contains(got, "API_KEY") {
		t.Errorf("the variables are %s", got)
	}
	sends := func(host, path string, more ...string) string {
		t.Helper()
		_ = k.got()
		args := append([]string{"/usr/bin/curl", "-sS", "-m", "20", "--path-as-is", fmt.Sprintf("https://%s:%s%s", host, k.port, path)}, more...)
		r := d.try(args...)
		if strings.Contains(r.out+r.err, value) || strings.Contains(r.out+r.err, second) {
			t.Errorf("%s: the command saw the secret: %+v", path, r)
		}
		if got := k.got(); got != "" {
			return got
		}
		return r.out + r.err
	}
	for _, test := range []struct {
		host, path, want string
		more             []string
	}{
		{"api.test", "/v1/x", "api.test Bearer " + value, nil},
		{"api.test", "/v1/x", "api.test Bearer " + value, []string{"--http1.1", "-H", "authorization: Bearer theirs"}},
		{"api.test", "/v1/x", "api.test theirs", []string{"-X", "POST", "-H", "Authorization: theirs"}},
		{"api.test", "/v2", "api.test ", nil},
		{"api.test", "/v1/../v2", "egress: a request to api.test:" + k.port + " is not allowed: its path has a segment of dots, which servers read in " +
			"different ways\n", nil},
		{"other.test", "/v1/x", "other.test ", []string{"-k"}},
	} {
		if got := sends(test.host, test.path, test.more...); got != test.want {
			t.Errorf("%s%s %q: %q, not %q", test.host, test.path, test.more, got, test.want)
		}
	}
	set(second, "rotate", "API_KEY")
	if got := sends("api.test", "/v1/x"); got != "api.test Bearer "+second {
		t.Errorf("rotated: %q", got)
	}
	if got := k.carrel(t, "secret", "ls"); !strings.Contains(got, "header:Authorization: Bearer {}") || !strings.Contains(got, "GET,/v1/*") {
		t.Errorf("secret ls says\n%s", got)
	}
	inside := d.sh(t, `env; cat /etc/carrel/*; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; cat ~/.* ~/* 2>/dev/null; true`)
	x := &finder{values: []string{value, second}}
	x.look("what the workspace sees", []byte(inside))
	x.tree(t, k.data)
	x.tree(t, k.run)
	x.processes(t)
	if len(x.found) > 0 || x.files < 100 {
		t.Errorf("of %d places, the value is in %q", x.files, x.found)
	}
	k.carrel(t, "secret", "rm", "API_KEY")
	if got := sends("api.test", "/v1/x", "-k"); got != "api.test " {
		t.Errorf("removed: %q", got)
	}
}

// A variable of the caller's is kept to be injected, and not to be injected otherwise later.
func TestInjectedFromTheCaller(t *testing.T) {
	k := newKeyed(t)
	value := "planted " + rand.Text()
	create := func(key, use string) result {
		t.Helper()
		c := k.command(t.Context(), nil, "create", "--allow", "api.test:"+k.port, "--allow", "127.0.0.1:"+k.port,
			"--secret", "MY_KEY@api.test:"+k.port+use, key)
		c.Env = append(c.Env, "MY_KEY="+value)
		return finish(c, "")
	}
	if r := create("one", "=header:x-key: Token {}"); r.code != 0 || strings.Contains(r.out+r.err, value) {
		t.Fatalf("%+v", r)
	}
	get := fmt.Sprintf(`echo "<$MY_KEY>"; curl -sS -m 20 -H "X-Key: theirs" https://api.test:%s/`, k.port)
	r := k.try(nil, "", "exec", "one", "--", "/bin/bash", "-c", get)
	if got := k.got(); r.code != 0 || !strings.Contains(r.out, "<>") || got != "api.test Token "+value || strings.Contains(r.out, value) {
		t.Errorf("%+v: %q", r, got)
	}
	if r := create("two", "=query:key"); r.code == 0 || !strings.Contains(r.err, "carrel secret rm MY_KEY") {
		t.Errorf("%+v", r)
	}
	if r := create("three", "="+value); r.code == 0 || strings.Contains(r.err, value) {
		t.Errorf("%+v", r)
	}
	if r := create("four", ""); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
