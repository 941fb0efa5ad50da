package root_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/test/userdb"
)

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const limits = `{"memory_bytes":134217728,"swap_bytes":0,"pids":64,"cpu_weight":100,"open_files":256}`

const hello = `{"jsonrpc":"2.0","id":0,"method":"hello","params":{"version":1}}` + "\n"

func (b *lone) socket() string { return b.run + "/broker.sock" }

// greeted is a connection that looks to the broker like the daemon's.
func (b *lone) greeted(t testing.TB) *wire {
	t.Helper()
	w := dial(t, b.socket(), brokerUID)
	w.say(hello)
	if l := w.line(t); !strings.Contains(l, `"executor_dir"`) {
		t.Fatalf("hello: %q", l)
	}
	return w
}

func (b *lone) ledger(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile(b.data + "/broker/ledger.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// ask makes one request on a connection of its own and returns the answer.
func (b *lone) ask(t testing.TB, method, params string) string {
	t.Helper()
	w := b.greeted(t)
	defer w.Close()
	w.say(request(1, method, params))
	return w.line(t)
}

// unharmed sees that nothing was written down and that the broker serves.
func (b *lone) unharmed(t testing.TB, ledger []byte) {
	t.Helper()
	if now := b.ledger(t); !bytes.Equal(now, ledger) {
		t.Errorf("the ledger was changed; it has now\n%s", now)
	}
	if l := b.ask(t, "list", "{}"); !strings.Contains(l, `"workspaces"`) {
		t.Errorf("the broker no longer serves: %q", l)
	}
}

func TestBrokerRefusesWhoItDoesNotServe(t *testing.T) {
	b := newBroker(t)
	ledger := b.ledger(t)
	if w, err := dialAs(b.socket(), 61998); !errors.Is(err, unix.EACCES) {
		t.Errorf("another user connects: %v", err)
		if err == nil {
			_ = w.Close()
		}
	}
	// The second lock, should the mode ever be wrong.
	if err := os.Chmod(b.socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct{ uid, gid uint32 }{{61998, 61998}, {61998, brokerUID}, {65534, 65534}} {
		w, err := dialAs(b.socket(), who.uid, who.gid)
		if err != nil {
			t.Fatal(err)
		}
		w.say(hello + request(1, "list", "{}"))
		if said := w.ended(t); said != "" {
			t.Errorf("uid %d gid %d is served: %s", who.uid, who.gid, said)
		}
		_ = w.Close()
	}
	for _, uid := range []uint32{0, brokerUID} {
		w := dial(t, b.socket(), uid)
		w.say(hello)
		if l := w.line(t); !strings.Contains(l, "executor_dir") {
			t.Errorf("uid %d is not served: %q", uid, l)
		}
		_ = w.Close()
	}
	b.unharmed(t, ledger)
}

func TestBrokerRefusesWhatIsOutOfPlace(t *testing.T) {
	b := newBroker(t)
	name := id.Derive("crt", id.Key(rand.Text()), 0)
	create := func(n, d, l string) string {
		return fmt.Sprintf(`{"name":%q,"key_digest":%q,"limits":%s}`, n, d, l)
	}
	if l := b.ask(t, "create", create(string(name), digest, limits)); !strings.Contains(l, `"stopped"`) {
		t.Fatal(l)
	}
	t.Cleanup(func() {
		if l := b.ask(t, "destroy", fmt.Sprintf(`{"name":%q,"purge":true}`, name)); !strings.Contains(l, `"destroyed"`) {
			t.Error(l)
		}
	})
	ledger, users := b.ledger(t), passwd(t)
	open := descriptors(t, b.pid)

	type attack struct {
		name, text string
		// greets: after hello. stays: the request is answered with an error and the
		// connection goes on; otherwise it ends.
		greets, stays bool
	}
	all := []attack{
		{"list before hello", request(1, "list", "{}"), false, false},
		{"create before hello", request(1, "create", create("crt-00000000", digest, limits)), false, false},
		{"destroy before hello", request(1, "destroy", fmt.Sprintf(`{"name":%q,"purge":true}`, name)), false, false},
		{"hello of version 2", request(1, "hello", `{"version":2}`), false, false},
		{"hello of version 0", request(1, "hello", `{}`), false, false},
		{"hello twice", request(1, "hello", `{"version":1}`), true, false},
		{"exec", request(1, "exec", `{"argv":["id"]}`), true, false},
		{"shutdown", request(1, "shutdown", `{}`), true, false},
		{"hello.", request(1, "hello.", `{"version":1}`), true, false},
		{"a notification", fmt.Sprintf(`{"jsonrpc":"2.0","method":"destroy","params":{"name":%q,"purge":true}}`+"\n", name), true, false},
		{"an unknown field", request(1, "destroy", fmt.Sprintf(`{"name":%q,"purge":false,"home":"/etc"}`, name)), true, false},
		{"a name twice", request(1, "destroy", fmt.Sprintf(`{"name":"crt-00000000","name":%q,"purge":true}`, name)), true, false},
		{"a name in capitals", request(1, "destroy", fmt.Sprintf(`{"Name":%q,"purge":true}`, name)), true, false},
		{"a name in both", request(1, "destroy", fmt.Sprintf(`{"name":"crt-00000000","NAME":%q,"purge":true}`, name)), true, false},
		{"purge twice", request(1, "destroy", fmt.Sprintf(`{"name":%q,"purge":false,"purge":true}`, name)), true, false},
		{"a limit twice", request(1, "update", fmt.Sprintf(`{"name":%q,"limits":{"pids":64,"pids":65}}`, name)), true, false},
		{"params twice", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"list","params":{},"params":{"after":%q}}`+"\n", name), true, false},
		{
			"ids of its own choice", request(
				1, "create", fmt.Sprintf(`{"name":"crt-00000000","key_digest":%q,"limits":%s,"ids":{"executor":0,"work":0,"agent":0}}`, digest, limits),
			), true, false,
		},
		{"a name that is a number", request(1, "start", `{"name":1}`), true, false},
		{"a name that is a list", request(1, "start", fmt.Sprintf(`{"name":[%q]}`, name)), true, false},
		{"another key for the name", request(1, "create", create(string(name), strings.Repeat("a", 64), limits)), true, true},
		{"report on a stopped one", request(1, "report", fmt.Sprintf(`{"name":%q}`, name)), true, true},
		{"start what is not there", request(1, "start", `{"name":"crt-ffffffff"}`), true, true},
		{"destroy what is not there", request(1, "destroy", `{"name":"crt-ffffffff","purge":true}`), true, true},
		{"a frame of 5 KiB", request(1, "list", `{"after":"`+strings.Repeat("a", 5000)+`"}`), true, false},
		{"a frame of 8 MiB", request(1, "list", `{"after":"`+strings.Repeat("a", 8<<20)+`"}`), true, false},
		{"params that are too long", request(1, "start", `{"name":"`+strings.Repeat("a", 200)+`"}`), true, false},
	}
	for what, text := range garbage {
		// Params of another form are answered by the layer below.
		stays := strings.HasPrefix(what, "params as")
		all = append(all, attack{what, text, true, stays}, attack{what + " before hello", text, false, stays})
	}
	for _, bad := range []string{
		"", "root", "daemon", "-rf", "..", "../x", "/etc", string(name) + "/..", string(name) + "/../../etc", string(name) + "\x00",
		"\x00" + string(name), string(name) + "\n",
		string(name) + ":0:0", " " + string(name), strings.ToUpper(string(name)), "crt-0123456", "crt-012345678", "crt-0123456g",
		"crt-01234567-0", "crt-01234567-01", "crt-01234567-10000", "0crt-01234567", "-crt-01234567",
		"crt_01234567", "ｃrt-01234567", "crt-01234567.service", "$(id)-01234567", strings.Repeat("a", 13) + "-01234567",
	} {
		quoted, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		for method, params := range map[string]string{
			"create":  fmt.Sprintf(`{"name":%s,"key_digest":%q,"limits":%s}`, quoted, digest, limits),
			"start":   fmt.Sprintf(`{"name":%s}`, quoted),
			"destroy": fmt.Sprintf(`{"name":%s,"purge":true}`, quoted),
		} {
			all = append(all, attack{fmt.Sprintf("%s %q", method, bad), request(1, method, params), true, false})
		}
	}
	for _, bad := range []string{
		`{"memory_bytes":1,"pids":64,"cpu_weight":100,"open_files":256}`,
		`{"memory_bytes":9223372036854775807,"pids":64,"cpu_weight":100,"open_files":256}`,
		`{"memory_bytes":-1,"pids":64,"cpu_weight":100,"open_files":256}`,
		`{"memory_bytes":134217728,"pids":1,"cpu_weight":100,"open_files":256}`,
		`{"memory_bytes":134217728,"pids":64,"cpu_weight":100001,"open_files":256}`,
		`{"memory_bytes":134217728,"pids":64,"cpu_weight":100,"open_files":2}`,
		`{"memory_bytes":134217728,"pids":64,"cpu_weight":100,"open_files":256,"swap_bytes":-1}`,
	} {
		all = append(all, attack{"limits " + bad, request(1, "create", create("crt-00000000", digest, bad)), true, true})
	}
	for _, bad := range []string{`{"memory_bytes":1e400}`, `{"memory_bytes":"1"}`, `{"memory_bytes":1.5}`, `{"quota_bytes":1}`, `[]`} {
		all = append(all, attack{"limits " + bad, request(1, "create", create("crt-00000000", digest, bad)), true, false})
	}
	for _, a := range all {
		w := dial(t, b.socket(), brokerUID)
		if a.greets {
			w.say(hello)
			w.line(t)
		}
		w.say(a.text)
		if a.stays {
			if l := w.line(t); !strings.Contains(l, `"error"`) {
				t.Errorf("%s: %q", a.name, l)
			}
			w.say(request(2, "list", "{}"))
			if l := w.line(t); strings.Contains(l, `"workspaces"`) != a.greets {
				t.Errorf("%s: afterwards %q", a.name, l)
			}
		} else if said := w.ended(t); strings.Contains(said, `"result"`) {
			t.Errorf("%s: %q", a.name, said)
		}
		_ = w.Close()
	}
	b.unharmed(t, ledger)
	if now := passwd(t); now != users {
		t.Errorf("the users of the host changed from\n%s\nto\n%s", users, now)
	}
	// A replay gets the same answer and changes nothing.
	first := b.ask(t, "create", create(string(name), digest, limits))
	if again := b.ask(t, "create", create(string(name), digest, limits)); again != first || !strings.Contains(again, `"result"`) {
		t.Errorf("replayed: %q, not %q", again, first)
	}
	b.unharmed(t, ledger)
	until(t, "the descriptors given back", func() bool { return descriptors(t, b.pid) <= open })
}

// passwd is what the user database says of users with our prefix.
func passwd(t testing.TB) string {
	t.Helper()
	var all []string
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "crt-") {
				all = append(all, line)
			}
		}
	}
	return strings.Join(all, "")
}

func TestBrokerUnderFlood(t *testing.T) {
	needRoot(t)
	t.Parallel() // much of it is waiting for frames to time out
	b := newBroker(t)
	ledger := b.ledger(t)
	open := descriptors(t, b.pid)

	t.Run("descriptors", func(t *testing.T) {
		for _, text := range []string{
			request(1, "list", "{}"),
			`{"jsonrpc":"2.0","id":1,"method":"list","fds":200,"params":{}}` + "\n",
			"{",
		} {
			for _, n := range []int{1, 253} {
				w := b.greeted(t)
				w.flood(t, text, n)
				_ = w.CloseWrite()
				if said := w.ended(t); strings.Contains(said, `"workspaces"`) {
					t.Errorf("%q with %d descriptors is served: %s", text, n, said)
				}
				_ = w.Close()
			}
		}
		until(t, "the descriptors given back", func() bool { return descriptors(t, b.pid) <= open })
		b.unharmed(t, ledger)
	})
	t.Run("connections", func(t *testing.T) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 250 {
					w, err := dialAs(b.socket(), brokerUID)
					if err != nil {
						continue // the queue is full
					}
					w.say(hello)
					_ = w.Close()
				}
			})
		}
		all.Wait()
		until(t, "a broker that serves", func() bool {
			w, err := dialAs(b.socket(), brokerUID)
			if err != nil {
				return false
			}
			defer w.Close()
			w.say(hello)
			return strings.Contains(w.line(t), "executor_dir")
		})
		b.unharmed(t, ledger)
	})
	t.Run("requests", func(t *testing.T) {
		w := b.greeted(t)
		go func() {
			for i := range 5000 {
				w.say(request(i+1, "start", `{"name":"crt-ffffffff"}`))
			}
		}()
		for range 5000 {
			if l := w.line(t); !strings.Contains(l, "no such workspace") {
				t.Fatalf("%q", l)
			}
		}
		b.unharmed(t, ledger)
	})
	t.Run("slow frames", func(t *testing.T) {
		// As many as are served at once, none of which ends its frame.
		var slow []*wire
		for range 16 {
			w := dial(t, b.socket(), brokerUID)
			w.say(`{"jsonrpc":"2.0",`)
			slow = append(slow, w)
		}
		begin := time.Now()
		for _, w := range slow {
			w.ended(t)
		}
		t.Logf("the last was ended after %v", time.Since(begin).Round(time.Millisecond))
		b.unharmed(t, ledger)
	})
	until(t, "the descriptors given back", func() bool { return descriptors(t, b.pid) <= open })
}

// A user that somebody else made under a name that carrel would derive is not taken over.
func TestAUserOfTheHostIsNotAdopted(t *testing.T) {
	h := newHostFor(t)
	key := "crt " + rand.Text()
	name := string(id.Derive("crt", id.Key(key), 0))
	if err := userdb.Run(t.Context(), "/usr/sbin/useradd", "-M", "-U", "-d", "/nonexistent", "-s", "/usr/sbin/nologin", name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := userdb.Run(context.WithoutCancel(t.Context()), "/usr/sbin/userdel", name); err != nil {
			t.Error(err)
		}
	})
	before := passwd(t)
	r := h.try(nil, "", "create", key)
	if r.code == 0 {
		d := h.look(t, key)
		defer h.carrel(t, "destroy", "--purge", key)
		if d.Name == name {
			t.Errorf("the user %s was taken over: %+v", name, d)
		}
		t.Logf("the workspace is %s", d.Name)
	} else {
		t.Logf("refused: %s", r.err)
		if now := passwd(t); now != before {
			t.Errorf("the users of the host changed:\n%s", now)
		}
	}
	for line := range strings.Lines(before) {
		if !strings.Contains(passwd(t), line) {
			t.Errorf("the line %q is gone", line)
		}
	}
}
