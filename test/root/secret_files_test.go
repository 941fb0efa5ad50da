package root_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file below the home has the placeholder of a secret, which becomes the value on its way. It is the workspace's own, made
// through no link and over nothing, comes back after a stop, and goes with the secret.
func TestSecretFiles(t *testing.T) {
	k := newKeyed(t)
	value, second := "planted "+rand.Text(), "planted "+rand.Text()
	set := func(value string, args ...string) {
		t.Helper()
		if r := k.try(nil, value+"\n", append([]string{"secret"}, args...)...); r.code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	set(value, "set", "API_KEY", "--host", "api.test:"+k.port)
	set(value, "set", "OTHER", "--host", "api.test:"+k.port)
	d := k.desk(t, "--secret-file", "API_KEY=.config/app/key", "--allow", "api.test:"+k.port, "--allow", "127.0.0.1:"+k.port)
	const file = "$HOME/.config/app/key"
	is := func(what, want string) {
		t.Helper()
		if got := strings.TrimSpace(d.sh(t, `stat -c '%a %u %F' `+file+` && test "$(cat `+file+`)" = "$API_KEY" && id -u`)); got != want {
			t.Errorf("%s: %q", what, got)
		}
	}
	uid := strings.TrimSpace(d.sh(t, "id -u"))
	mine := "600 " + uid + " regular file\n" + uid
	is("at first", mine)
	send := fmt.Sprintf(`curl -sS -m 20 -H "X-Key: $(cat %s)" https://api.test:%s/`, file, k.port)
	sent := func(what, value string) {
		t.Helper()
		_ = k.got()
		r := d.try("/bin/sh", "-c", send)
		if got := k.got(); got != "api.test "+value {
			t.Errorf("%s: the host got %q: %+v", what, got, r)
		}
	}
	sent("at first", value)
	set(second, "rotate", "API_KEY")
	is("rotated", mine)
	sent("rotated", second)
	d.sh(t, "rm "+file)
	k.carrel(t, "stop", d.Key)
	is("after a stop", mine)
	sent("after a stop", second)
	if out := k.carrel(t, "inspect", d.Key); !strings.Contains(out, "API_KEY=.config/app/key") {
		t.Errorf("inspect says\n%s", out)
	}

	// What the workspace has put there is neither overwritten nor followed, and nothing changes.
	outside := filepath.Join(t.TempDir(), "outside")
	d.sh(t, `mkdir -p dir; echo mine > there; ln -s there link; ln -s /tmp/out dangling; mkfifo fifo; ln -s /tmp away; ln -s `+outside+` host; ln -s dir inside`)
	for _, c := range []struct{ path, why string }{
		{"there", "something else is there"},
		{"link", "something else is there"},
		{"dangling", "something else is there"},
		{"host", "something else is there"},
		{"fifo", "something else is there"},
		{"dir", ""},
		{"away/x", ""},
		{"there/x", ""},
		{".config/app/key", "choose another path"},
		{".config/app", "choose another path"},
		{"../x", `it has ".."`},
		{"a/../../x", `it has ".."`},
		{"/etc/x", "not below the home"},
		{"x/", "names a directory"},
	} {
		r := k.try(nil, "", "update", "--secret-file", "OTHER="+c.path, d.Key)
		if r.code == 0 || !strings.Contains(r.err, c.why) {
			t.Errorf("%s: %+v", c.path, r)
		}
	}
	if got := d.sh(t, `rm fifo; cat there; ls dir; ls /tmp; readlink link dangling; env | grep -c OTHER || true`); got != "mine\nthere\n/tmp/out\n0" {
		t.Errorf("after what was refused: %q", got)
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("a file of the host was made")
	}
	if out := k.carrel(t, "inspect", d.Key); strings.Contains(out, "OTHER") {
		t.Errorf("a change that was refused holds:\n%s", out)
	}
	set(value, "set", "INJECTED", "--host", "api.test:"+k.port, "--inject", "header:X-Other")
	if r := k.try(nil, "", "update", "--secret-file", "INJECTED=injected", d.Key); r.code == 0 || !strings.Contains(r.err, "it has none") {
		t.Errorf("of one that is injected: %+v", r)
	}
	// By a link of its own the file is in the home all the same, and one more path to it is refused.
	k.carrel(t, "update", "--secret-file", "OTHER=inside/key", d.Key)
	if got := d.sh(t, `test "$(cat dir/key)" = "$OTHER" && echo same`); got != "same" {
		t.Errorf("by a link inside: %q", got)
	}

	x := &finder{values: []string{value, second}}
	x.look("what the workspace sees", []byte(d.sh(t, `env; cat `+file+` dir/key; cat ~/.* ~/* 2>/dev/null; true`)))
	x.look("the record", []byte(k.carrel(t, "audit", "show")))
	x.tree(t, k.data)
	x.tree(t, k.run)
	x.processes(t)
	if len(x.found) > 0 || x.files < 100 {
		t.Errorf("of %d places, a value is in %q", x.files, x.found)
	}

	// With the secret the file goes: at once, at the next start, and not if somebody has written to it.
	k.carrel(t, "update", "--secret-rm", "OTHER", d.Key)
	if got := d.sh(t, "ls dir"); got != "" {
		t.Errorf("the file was left: %q", got)
	}
	k.carrel(t, "stop", d.Key)
	k.carrel(t, "update", "--secret-rm", "API_KEY", "--secret-file", "OTHER=dir/key", d.Key)
	end(t, k.part(t, "daemon"), syscall.SIGKILL)
	if err := k.up(); err != nil {
		t.Fatal(err)
	}
	if got := d.sh(t, `ls -A .config/app; test "$(cat dir/key)" = "$OTHER" && echo same`); got != "same" {
		t.Errorf("at the next start: %q", got)
	}
	d.sh(t, "echo more >> dir/key")
	k.carrel(t, "update", "--secret-rm", "OTHER", d.Key)
	if got := d.sh(t, "tail -n1 dir/key"); !strings.HasSuffix(got, "more") {
		t.Errorf("a file with something else was removed: %q", got)
	}
}

// A file by a template has what its program wants beside the placeholder. It comes back, and goes with the secret.
func TestSecretTemplates(t *testing.T) {
	k := newKeyed(t)
	value := "planted " + rand.Text()
	if r := k.try(nil, value+"\n", "secret", "set", "API_KEY", "--host", "api.test:"+k.port); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	dir := t.TempDir()
	template := func(name, content string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return "API_KEY=" + file
	}
	netrc := template("netrc", "machine api.test login planted password {{API_KEY}}\n")
	basic := "api.test Basic " + base64.StdEncoding.EncodeToString([]byte("planted:"+value))
	args := []string{"--secret-file", "API_KEY=.netrc", "--secret-template", netrc, "--allow", "api.test:" + k.port, "--allow", "127.0.0.1:" + k.port}
	d := k.desk(t, args...)
	send := fmt.Sprintf("curl -sSn -m 20 https://api.test:%s/", k.port)
	sent := func(what string) {
		t.Helper()
		_ = k.got()
		r := d.try("/bin/sh", "-c", send)
		if got := k.got(); got != basic {
			t.Errorf("%s: the host got %q: %+v", what, got, r)
		}
		if got := d.sh(t, `stat -c %a ~/.netrc; sed s/"$API_KEY"/X/ ~/.netrc`); got != "600\nmachine api.test login planted password X" {
			t.Errorf("%s: %q", what, got)
		}
	}
	sent("at first")
	d.sh(t, "rm ~/.netrc")
	k.carrel(t, "stop", d.Key)
	sent("made again")

	// A template that cannot be, or is another one, changes nothing.
	for name, c := range map[string]struct{ args, why string }{
		"another":  {template("another", "{{API_KEY}}"), "by another template or by none"},
		"unmarked": {template("unmarked", "nothing"), "it has no {{API_KEY}}"},
		"value":    {template("value", "{{API_KEY}}"+value), "it has the value of API_KEY"},
	} {
		r := k.try(nil, "", "update", "--secret-file", "API_KEY=.netrc", "--secret-template", c.args, d.Key)
		if r.code == 0 || !strings.Contains(r.err, c.why) || strings.Contains(r.err, value) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := k.try(nil, "", append([]string{"create", d.Key}, args...)...); r.code != 0 {
		t.Errorf("created again as it is: %+v", r)
	}
	other := append([]string{"create", d.Key}, args...)
	other[4] = template("other", "{{API_KEY}}")
	if r := k.try(nil, "", other...); r.code == 0 {
		t.Errorf("created again with another template: %+v", r)
	}
	sent("after what was refused")

	x := &finder{values: []string{value}}
	x.look("what the workspace sees", []byte(d.sh(t, `env; cat $(find ~ -type f)`)))
	x.look("the record", []byte(k.carrel(t, "audit", "show")))
	x.tree(t, k.data)
	x.tree(t, k.run)
	x.processes(t)
	if len(x.found) > 0 || x.files < 50 {
		t.Errorf("of %d places, the value is in %q", x.files, x.found)
	}
	if log := k.carrel(t, "audit", "show"); strings.Contains(log, "login planted") {
		t.Error("the record has a template")
	}

	// What was added to keeps the file; what was not goes, also when the workspace did not run meanwhile.
	k.carrel(t, "stop", d.Key)
	k.carrel(t, "update", "--secret-rm", "API_KEY", d.Key)
	if got := d.sh(t, "ls -A ~ | grep netrc || echo none"); got != "none" {
		t.Errorf("left: %q", got)
	}
	k.carrel(t, "stop", d.Key)
	k.carrel(t, append([]string{"update"}, append(args[:4:4], d.Key)...)...)
	d.sh(t, "echo mine >> ~/.netrc")
	k.carrel(t, "update", "--secret-rm", "API_KEY", d.Key)
	if got := d.sh(t, "tail -n1 ~/.netrc"); got != "mine" {
		t.Errorf("a file that somebody wrote to was removed: %q", got)
	}

	// As root, run takes the same flags.
	_ = k.got()
	r := k.try(nil, "", append([]string{"run"}, append(args, "--", "sh", "-c", send+"; stat -c %a ~/.netrc; cat ~/.netrc")...)...)
	if got := k.got(); got != basic || r.code != 0 || strings.Contains(r.out, value) || !strings.Contains(r.out, "\n600\nmachine api.test") {
		t.Errorf("run as root: the host got %q: %+v", got, r)
	}
}
