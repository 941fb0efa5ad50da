package root_test

import (
	"crypto/rand"
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
