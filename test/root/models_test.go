package root_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/test/nameserver"
)

// modeled is a carrel of a test's own, whose host has models at a server with TLS, which counts what it is asked and keeps
// the keys that it gets.
type modeled struct {
	*host
	port  string
	asked atomic.Int64
	// says, if set, answers in place of the usual answer.
	says atomic.Pointer[http.HandlerFunc]
	// hold, if set, keeps answers back until it is closed.
	hold atomic.Pointer[chan struct{}]

	mu   sync.Mutex
	keys map[string]bool
	file string // the host's rules, but for the models' budgets
}

// hostModels are those of the host: house has root's key for everybody, narrow for nobody but uid 4242, own that of each
// owner.
const hostModels = `resolver: %[1]s
allow: ["127.0.0.1:%[2]s"]
models:
  house: {api: openai, url: "https://api.test:%[2]s/v1", key: HOUSE_KEY, secret: SHARED_KEY, prices: {"m*": {input: "1", output: "2"}}}
  narrow: {api: openai, url: "https://api.test:%[2]s/v1", key: NARROW_KEY, secret: SHARED_KEY, for: ["uid:4242"]}
  own: {api: anthropic, url: "https://api.test:%[2]s", key: OWN_KEY}
`

func newModeled(t *testing.T, more string) *modeled {
	t.Helper()
	return newModeledWith(t, more, "")
}

// newModeledWith has more in the rules of egress, and rules of the policy.
func newModeledWith(t *testing.T, more, rules string) *modeled {
	t.Helper()
	needRoot(t)
	at, stop, err := nameserver.Start(t.Context(), nameserver.Zone{"api.test": "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	m := &modeled{keys: map[string]bool{}}
	web := newSecureWeb(t, http.HandlerFunc(m.answer))
	m.port = web.port
	public := ""
	m.host = newHostWith(t, func(dir string) string {
		m.file = filepath.Join(dir, "egress.yaml")
		if err := os.WriteFile(m.file, fmt.Appendf(nil, hostModels+more, at, m.port), 0o644); err != nil {
			t.Fatal(err)
		}
		// Where those that serve workspaces may read it: they have ids of their own.
		public = filepath.Join(dir, "authorities.pem")
		if err := os.WriteFile(public, web.authority, 0o644); err != nil {
			t.Fatal(err)
		}
		settings := fmt.Sprintf("socket_mode: \"0666\"\negress:\n  file: %s\n", m.file)
		if rules != "" {
			path := filepath.Join(dir, "policy.yaml")
			if err := os.WriteFile(path, []byte(rules), 0o644); err != nil {
				t.Fatal(err)
			}
			settings += "policy:\n  path: " + path + "\n"
		}
		return settings
	})
	m.env = []string{"SSL_CERT_FILE=" + public}
	if err := m.up(); err != nil {
		t.Fatal(err)
	}
	return m
}

// answer is what the server says to a request of either API: 10 tokens, and the key that it got.
func (m *modeled) answer(w http.ResponseWriter, r *http.Request) {
	if says := m.says.Load(); says != nil {
		m.asked.Add(1)
		(*says)(w, r)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	m.asked.Add(1)
	key := r.Header.Get("X-Api-Key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	m.mu.Lock()
	m.keys[key] = true
	m.mu.Unlock()
	if hold := m.hold.Load(); hold != nil {
		select {
		case <-*hold:
		case <-r.Context().Done():
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"said":%q,"usage":{"prompt_tokens":7,"completion_tokens":3}}`, key)
}

func (m *modeled) got() (keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.keys {
		keys = append(keys, key)
	}
	m.keys = map[string]bool{}
	return keys
}

func (m *modeled) set(t *testing.T, who *syscall.Credential, verb, name, value string, more ...string) {
	t.Helper()
	if r := m.try(who, value+"\n", append([]string{"secret", verb, name}, more...)...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
}

// modelRequest is one of the model m, at the API that the workspace has: its status is printed.
const modelRequest = `curl -sS -m 30 -o /dev/null -w '%{http_code}\n' $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" -d '{"model":"m1"}'`

// asks makes n requests at once, and returns how many were granted and how many were refused by a budget.
func asks(t *testing.T, d *desk, n int) (granted, refused int) {
	t.Helper()
	out := d.sh(t, fmt.Sprintf("for i in $(seq %d); do %s & done; wait", n, modelRequest))
	return strings.Count(out, "200"), strings.Count(out, "400") // lines of several may be mixed
}

// Commands use a model by plain HTTP with a key of the host's that nothing shows them. The limit is exact for 200 requests at
// once, and what was used is shown, counted and recorded. Whatever is killed, and however, gives no request more.
func TestModelsOfWorkspaces(t *testing.T) {
	m := newModeled(t, "")
	values := []string{"planted-" + rand.Text(), "planted-" + rand.Text()}
	m.set(t, nil, "set", "SHARED_KEY", values[0], "--host", "api.test:"+m.port)
	d := m.desk(t, "--model", "house", "--model-requests", "60", "--model-money", "5")
	first := d.try("/bin/bash", "-c", `curl -sS $OPENAI_BASE_URL/chat/completions -d '{"model":"m1"}'; echo; curl -sS $OPENAI_BASE_URL/models/../files`)
	if first.code != 0 || !strings.Contains(first.out, `"said":"`+strings.Repeat("*", len(values[0]))+`"`) || !strings.Contains(first.out, "not served") {
		t.Fatalf("%+v", first)
	}
	if keys := m.got(); len(keys) != 1 || keys[0] != values[0] {
		t.Fatalf("the host got %q", keys)
	}
	if granted, refused := asks(t, d, 200); granted != 59 || refused != 141 || m.asked.Load() != 60 {
		t.Errorf("%d were granted and %d refused of 200 after one of 60, and %d arrived", granted, refused, m.asked.Load())
	}
	// A run as root has a workspace of its own, and says what was used.
	arrived := m.asked.Load()
	if r := m.try(nil, "", "run", "--model", "house", "--model-requests", "1", "--", "/bin/bash", "-c", modelRequest+"; "+modelRequest); r.code != 0 ||
		r.out != "200\n400\n" || !strings.Contains(r.err, "carrel: models: 1 request, 10 tokens, 0.000013\n") {
		t.Errorf("%+v", r)
	}
	m.asked.Store(arrived)
	if metrics := m.metrics(t); !strings.Contains(metrics, "\n"+`carrel_model_requests_total{model="house",verdict="allowed"} 61`) ||
		!strings.Contains(metrics, `carrel_model_tokens_total{model="house"} 610`) {
		t.Errorf("the metrics are\n%s", metrics)
	}
	// Another value holds at once, and more requests.
	m.set(t, nil, "rotate", "SHARED_KEY", values[1])
	m.carrel(t, "update", "--model-requests", "70", d.Key)
	m.got()
	if granted, _ := asks(t, d, 5); granted != 5 {
		t.Errorf("%d of 5 with more requests", granted)
	}
	if keys := m.got(); len(keys) != 1 || keys[0] != values[1] {
		t.Errorf("rotated: the host got %q", keys)
	}
	// Killed between the grant and the report: what was under way counts.
	hold := make(chan struct{})
	m.hold.Store(&hold)
	waiting := m.asked.Load() + 2
	under := m.command(t.Context(), nil, "exec", d.Key, "--", "/bin/bash", "-c", modelRequest+" & "+modelRequest+" & wait")
	if err := under.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "two requests under way", func() bool { return m.asked.Load() == waiting })
	if err := syscall.Kill(d.egressPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = under.Wait()
	m.hold.Store(nil)
	close(hold)
	until(t, "another carrel-egress", func() bool { // of which this is no request to the model
		return strings.Contains(d.sh(t, "curl -sS -m 5 $OPENAI_BASE_URL/files || true"), "not served")
	})
	used := m.asked.Load() // 60, 5 and 2
	for _, part := range []string{"daemon", "broker"} {
		end(t, m.part(t, part), syscall.SIGKILL)
		if err := m.up(); err != nil {
			t.Fatal(err)
		}
		if granted, refused := asks(t, d, 1); granted+refused != 1 {
			t.Errorf("after the %s was killed nothing is served", part)
		}
	}
	granted, _ := asks(t, d, 20)
	if total := m.asked.Load(); total > 70 || total <= used || granted == 20 {
		t.Errorf("%d requests were granted of 70, %d before the kills", total, used)
	}
	m.carrel(t, "stop", d.Key)
	if granted, refused := asks(t, d, 3); granted != 0 || refused != 3 {
		t.Errorf("a stop gives %d requests more", granted)
	}

	// Nothing shows the key, and everything says what was used.
	inside := d.sh(t, `env; cat /etc/carrel/*; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; cat ~/.* ~/* 2>/dev/null; true`)
	x := &finder{values: values}
	x.look("what the workspace sees", []byte(inside))
	for _, args := range [][]string{
		{"inspect", d.Key, "-o", "json"},
		{"model", "ls", "-o", "json"},
		{"model", "usage", "-o", "json"},
		{"audit", "show"},
		{"egress", "log", "-n", "0", "-o", "json"},
	} {
		x.look(strings.Join(args, " "), []byte(m.carrel(t, args...)))
	}
	x.tree(t, m.data)
	x.tree(t, m.run)
	x.processes(t)
	if len(x.found) > 0 || x.files < 50 {
		t.Errorf("of %d places, the key is in %q", x.files, x.found)
	}
	if out := m.carrel(t, "inspect", d.Key); !strings.Contains(out, "house (the host's key)") || !strings.Contains(out, "70 requests, 5.00 a day") {
		t.Errorf("inspect says\n%s", out)
	}
	var usage []struct {
		Workspace string
		Today     struct {
			Requests, Tokens int64
			Money            string
		}
	}
	if err := json.Unmarshal([]byte(m.carrel(t, "model", "usage", d.Key, "-o", "json")), &usage); err != nil || len(usage) != 1 ||
		usage[0].Today.Requests < 68 || usage[0].Today.Requests > 70 || usage[0].Today.Tokens < 600 || usage[0].Today.Money == "" {
		t.Errorf("%+v, %v", usage, err)
	}
	b, err := m.readRecord()
	if err != nil || !bytes.Contains(b, []byte(`"type":"usage","principal":"inside:`+d.Name)) ||
		!bytes.Contains(b, []byte("the budget of 60 requests is used up for today")) {
		t.Errorf("the record has no usage: %v", err)
	}

	// Removed, the key is gone at once, and the workspace starts without it.
	m.carrel(t, "update", "--model-requests", "-1", "--model-money", "-1", d.Key)
	if granted, _ := asks(t, d, 1); granted != 1 {
		t.Error("without a limit nothing is granted")
	}
	m.carrel(t, "secret", "rm", "SHARED_KEY")
	before := m.asked.Load()
	if granted, _ := asks(t, d, 1); granted != 0 || m.asked.Load() != before {
		t.Error("without the key a request is granted")
	}
	m.carrel(t, "stop", d.Key)
	d.sh(t, "true")
}

// Budgets of the host's file are for all workspaces of a user, who has no other way to the host's key than its models. A
// neighbour's models are not there.
func TestModelsOfUsers(t *testing.T) {
	m := newModeled(t, "model_budgets: {everybody: {requests: 6}, \"uid:0\": {}}\n")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	who := &syscall.Credential{Uid: 61990, Gid: 61990, Groups: []uint32{}}
	do := func(want string, args ...string) result {
		t.Helper()
		r := m.try(who, "", args...)
		if want == "" && r.code != 0 || want != "" && (r.code == 0 || !strings.Contains(r.err, want) || strings.Count(r.err, "\n") != 1) {
			t.Errorf("%q: %+v, not %q", args, r, want)
		}
		return r
	}
	m.set(t, who, "set", "ANT_KEY", "planted-"+rand.Text(), "--host", "api.anthropic.com")
	do("has no secret NARROW_KEY", "create", "--model", "narrow", "a")
	do("has no secret SHARED_KEY", "create", "--model", "house=SHARED_KEY", "b")
	do("there is no such model", "create", "--model", "gemini", "c")
	do("no prices are known", "create", "--model", "house", "--model", "anthropic=ANT_KEY", "--model-money", "1", "d")
	do("carrel secret set SHARED_KEY", "create", "--allow", "api.test:"+m.port, "--secret", "SHARED_KEY", "e")
	do("", "create", "--model", "house", "one")
	do("", "create", "--model", "house", "two")
	do("", "create", "--allow", "*.example.org", "three")
	ask := func(key string, n int) string {
		return do("", "exec", key, "--", "/bin/bash", "-c", fmt.Sprintf("for i in $(seq %d); do %s || true; done", n, modelRequest)).out
	}
	if out := ask("one", 4) + ask("two", 4); strings.Count(out, "200\n") != 6 || strings.Count(out, "400\n") != 2 {
		t.Errorf("%s", out)
	}
	do("", "rm", "--purge", "one")
	do("", "create", "--model", "house", "one")
	if out := ask("one", 1); out != "400\n" {
		t.Errorf("a new workspace gives requests: %s", out)
	}
	roots := m.desk(t, "--model", "house")
	if granted, _ := asks(t, roots, 10); granted != 10 {
		t.Errorf("root is bound by the budget of others: %d of 10", granted)
	}
	// What is not the workspace's is not there: by name, by the proxy, and at its neighbour's address.
	out := do("", "exec", "three", "--", "/bin/bash", "-c", `
		curl -sS -m 10 -o /dev/null http://house.carrel.internal/v1/models || echo no name
		curl -sS -m 10 -x http://127.0.0.53:3128 http://house.carrel.internal/v1/models; echo
		env | grep -c OPENAI_ || true`).out
	if !strings.Contains(out, "no name\n") || !strings.Contains(out, "carrel") || !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("%s", out)
	}
	out = do("", "exec", "two", "--", "/bin/bash", "-c", `curl -sS -m 10 http://own.carrel.internal/v1/models || echo no name`).out
	if !strings.Contains(out, "no name\n") {
		t.Errorf("%s", out)
	}
	// The file is read again with the policy, and holds at once.
	rules, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	reread := func(text string) {
		t.Helper()
		if err := os.WriteFile(m.file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		m.carrel(t, "policy", "reload")
	}
	reread(strings.Replace(string(rules), "requests: 6", "requests: 7", 1))
	if out := ask("two", 2); out != "200\n400\n" {
		t.Errorf("with one request more: %s", out)
	}
	reread(strings.Replace(string(rules), "secret: SHARED_KEY, prices", "secret: SHARED_KEY, for: [\"uid:4242\"], prices", 1))
	arrived := m.asked.Load()
	if out := ask("two", 1); strings.Contains(out, "200") || m.asked.Load() != arrived {
		t.Errorf("without the host's key: %s", out)
	}
	reread(string(rules))
	// Each sees the own use, and what is left.
	if out := do("", "model", "ls").out; !strings.Contains(out, "0 requests today") || !strings.Contains(out, "none: NARROW_KEY") {
		t.Errorf("%s", out)
	}
	if out := do("", "model", "usage").out; strings.Contains(out, roots.Name) || !strings.Contains(out, "(all)") {
		t.Errorf("%s", out)
	}
	if out := m.carrel(t, "model", "usage"); !strings.Contains(out, roots.Name) || !strings.Contains(out, "uid:61990") {
		t.Errorf("%s", out)
	}
	do("cannot find workspace", "model", "usage", "nowhere")
	if r := m.try(who, "", "model", "usage", roots.Key); r.code == 0 {
		t.Errorf("a user sees the use of another's workspace: %+v", r)
	}
}

// A model server on this machine is asked without TLS, at an address of the loopback and where a rule of the host allows it.
func TestModelOnThisMachine(t *testing.T) {
	needRoot(t)
	keys := make(chan string, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys <- r.URL.Path + " " + r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"said":"hello","usage":{"prompt_tokens":7,"completion_tokens":3}}`)
	}), ReadHeaderTimeout: patience}
	go server.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	const file = "models:\n  here: {api: openai, url: \"http://127.0.0.1:%[1]s/v1\", key: HERE_KEY}\n"
	path := ""
	h := newHostWith(t, func(dir string) string {
		path = filepath.Join(dir, "egress.yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, file, port), 0o644); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("socket_mode: \"0666\"\negress:\n  file: %s\n", path)
	})
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if r := h.try(nil, "planted-here\n", "secret", "set", "HERE_KEY", "--host", "127.0.0.1:"+port); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	d := h.desk(t, "--model", "here")
	const asks = `curl -sS -m 30 $OPENAI_BASE_URL/chat/completions -d '{"model":"m1"}'`
	if r := d.try("/bin/bash", "-c", asks); !strings.Contains(r.out, "loopback address") {
		t.Errorf("it was asked without a rule: %+v", r)
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, file+"allow: [\"127.0.0.1:%[1]s\"]\n", port), 0o644); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "policy", "reload")
	if r := d.try("/bin/bash", "-c", asks); r.code != 0 || !strings.Contains(r.out, "hello") {
		t.Fatalf("%+v", r)
	}
	if got := <-keys; got != "/v1/chat/completions Bearer planted-here" {
		t.Errorf("the server got %q", got)
	}
}
