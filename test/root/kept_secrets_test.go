package root_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// encoded are the ways in which a value could be written down: base64 depends on what stands before it.
func encoded(value string) []string {
	all := []string{value, hex.EncodeToString([]byte(value)), strings.ToUpper(hex.EncodeToString([]byte(value)))}
	for before := range 3 {
		in64 := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + value))
		// Its ends depend on the neighbours too.
		all = append(all, in64[(before*8+5)/6:len(in64)-1], strings.NewReplacer("+", "-", "/", "_").Replace(in64[(before*8+5)/6:len(in64)-1]))
	}
	return all
}

// finder looks for values in everything that a carrel has written, and in what /proc shows of every process, without
// their memory.
type finder struct {
	values []string
	found  []string
	files  int
}

func (x *finder) look(where string, b []byte) {
	x.files++
	for _, value := range x.values {
		for _, form := range encoded(value) {
			if strings.Contains(string(b), form) {
				x.found = append(x.found, fmt.Sprintf("%q in %s", form, where))
			}
		}
	}
}

func (x *finder) tree(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it went away
			return nil
		case err != nil:
			return err
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			x.look(path, []byte(to))
			return err
		case !e.Type().IsRegular():
			return nil
		}
		x.look("the name of a file", []byte(path))
		b, err := os.ReadFile(path)
		x.look(path, b)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// processes looks at all processes of the host but this one.
func (x *finder) processes(t *testing.T) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, dir := range slices.DeleteFunc(dirs, func(d string) bool { return d == own }) {
		for _, name := range []string{"cmdline", "environ", "comm", "status", "stat", "cgroup", "mountinfo", "limits"} {
			b, _ := os.ReadFile(filepath.Join(dir, name)) // it may have ended
			x.look(filepath.Join(dir, name), b)
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range fds {
			to, _ := os.Readlink(fd)
			x.look(fd, []byte(to))
		}
	}
}

// The value of a secret that is kept is in nothing that carrel writes and in nothing that the host shows of its
// processes, in whichever way it comes and whatever fails.
func TestKeptSecretsLeaveNoTrace(t *testing.T) {
	h := newHostWith(t, func(string) string { return "socket_mode: \"0666\"\nlog_level: debug\n" })
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	alice := user(t, "crt-kept")
	if r := h.try(alice, "", "create", "--allow", "a.example", "crt kept"); r.code != 0 { // with a way out
		t.Fatal(r.err)
	}
	dir := t.TempDir()
	x := &finder{}
	value := func() string {
		v := "planted " + rand.Text()
		x.values = append(x.values, v)
		return v
	}
	var said strings.Builder
	try := func(code int, stdin string, args ...string) {
		t.Helper()
		r := h.try(alice, stdin, append([]string{"secret"}, args...)...)
		if r.code != code {
			t.Errorf("carrel secret %q: %+v", args, r)
		}
		said.WriteString(r.out + r.err)
	}
	screen := func(code int, keys, says string, argv ...string) {
		t.Helper()
		c := h.command(context.Background(), alice, argv...)
		if argv[0] != "secret" {
			c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c"}, argv...)
		}
		term := ptytest.Start(t, c, 24, 100, false)
		term.Expect("which is not shown: ")
		term.Type(keys)
		if got := term.Wait(); got != code {
			t.Errorf("%q ended with %d: %q", argv, got, term.Screen())
		}
		term.Expect(says)
		said.WriteString(term.Screen())
	}

	screen(0, value()+"\n", "a.example", "secret", "set", "A_KEY", "--host", "a.example")
	// The terminal shows again what is typed, also when a signal ended the input. What was typed stays in no shell.
	client := filepath.Join(bin, "carrel")
	screen(0, value()[:12]+"\x03", "it shows again", "trap : INT; "+client+" secret rotate A_KEY; stty -a | grep -qw -- -echo || echo it shows again")
	try(0, value()+"\n", "set", "B_KEY", "--host", "*.b.example:8443", "--header", "X-Key", "-o", "json")
	try(0, value(), "rotate", "A_KEY")
	file := filepath.Join(dir, "value")
	if err := errors.Join(os.Chmod(dir, 0o711), os.WriteFile(file, []byte(value()), 0o644)); err != nil {
		t.Fatal(err)
	}
	for at := filepath.Dir(dir); at != "/tmp" && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	try(0, "", "rotate", "B_KEY", "--file", file)
	if r := h.try(nil, value(), "secret", "set", "ANTHROPIC_API_KEY"); r.code != 0 { // root's own
		t.Error(r.err)
	}
	// What is refused has no value either.
	try(1, value(), "set", "A_KEY", "--host", "a.example")
	try(1, value(), "rotate", "NONE")
	try(1, value(), "set", "C_KEY")
	try(1, value(), "set", "C_KEY", "--host", "*")
	try(1, value()+"\n\n", "set", "C_KEY", "--host", "a.example")
	try(1, strings.Repeat(value(), 400), "set", "C_KEY", "--host", "a.example")
	token := strings.TrimSpace(h.try(alice, "", "token", "create", "--role", "operator", "--workspace", "crt kept").out)
	c := h.command(t.Context(), alice, "secret", "set", "C_KEY", "--host", "a.example")
	c.Env = append(c.Env, "CARREL_TOKEN="+token)
	if r := finish(c, value()); r.code != 1 || !strings.Contains(r.err, "limited to some; use one that is not") {
		t.Errorf("%+v", r)
	}
	try(0, value(), "set", "GONE", "--host", "a.example")
	try(0, "", "rm", "GONE")
	try(0, "", "ls")
	try(0, "", "ls", "-o", "json")
	end(t, h.part(t, "daemon"), unix.SIGKILL)
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	var list []struct{ Name string }
	r := h.try(alice, "", "secret", "ls", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list) != 2 || list[0].Name != "A_KEY" || list[1].Name != "B_KEY" {
		t.Errorf("after a crash there are %v, %v", list, err)
	}
	if key, err := os.Stat(h.data + "/daemon/secrets.key"); err != nil || key.Mode() != 0o600 {
		t.Error(key, err)
	}
	h.settled(t)

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	search := func() {
		x.found, x.files = nil, 0
		x.look("what was printed", []byte(said.String()))
		x.tree(t, h.data)
		x.tree(t, h.run)
		x.processes(t)
	}
	search()
	if len(x.found) > 0 || x.files < 100 || len(x.values) != 14 {
		t.Errorf("%d values, in %d places looked at:\n%s", len(x.values), x.files, strings.Join(x.found, "\n"))
	}
	// The search finds what is there: the arguments of a command, in the record and on the host, in base64 too.
	planted := "xy" + x.values[0]
	d := h.look(t, "crt kept")
	d.detach(t, "/bin/sh", "-c", "sleep 1000; : "+x.values[1]+" "+base64.StdEncoding.EncodeToString([]byte(planted)))
	search()
	all := strings.Join(x.found, "\n")
	for _, want := range []string{"audit.jsonl", "cmdline", `"` + x.values[1] + `"`, `"` + encoded(x.values[0])[7] + `"`} {
		if !strings.Contains(all, want) {
			t.Errorf("the search does not find %s: %s", want, all)
		}
	}
}
