package root_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// failing answers requests to a model in a way that is no answer.
type failing struct {
	name string
	// serve answers, and says are what the person is told: what happened, and what to do next.
	serve http.HandlerFunc
	says  []string
	// asked is how often the provider is asked; 0 is once.
	asked int64
}

// failsWith answers with an error of the wire's form.
func failsWith(code int, kind, message string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"type":"error","error":{"type":%q,"message":%q}}`, kind, message)
	}
}

// body answers with a stream, or what calls itself one.
func body(kind, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, text)
	}
}

const stream = "text/event-stream"

// piece is a part of an answer on each wire.
var piece = map[string]string{
	"openai_compatible":    `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%q}}]}` + "\n\n",
	"openai":               `data: {"type":"response.output_text.delta","item_id":"i","output_index":0,"content_index":0,"delta":%q}` + "\n\n",
	"anthropic_compatible": `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%q}}` + "\n\n",
}

// begins is what an answer begins with.
var begins = map[string]string{
	"openai": `data: {"type":"response.created","response":{"id":"r","model":"m1","status":"in_progress"}}` + "\n\n" +
		`data: {"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"i","role":"assistant",` +
		`"content":[]}}` + "\n\n" +
		`data: {"type":"response.content_part.added","item_id":"i","output_index":0,"content_index":0,` +
		`"part":{"type":"output_text","text":""}}` + "\n\n",
	"anthropic_compatible": `data: {"type":"message_start","message":{"id":"x","model":"m1",` +
		`"usage":{"input_tokens":7,"output_tokens":1}}}` + "\n\n" +
		`data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n",
}

// ends is what an answer ends with.
var ends = map[string]string{
	"openai_compatible": `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},` +
		`"finish_reason":"stop"}]}` +
		"\n\ndata: [DONE]\n\n",
	"openai": `data: {"type":"response.completed","response":{"id":"r","model":"m1","status":"completed","output":[]}}` + "\n\n",
	"anthropic_compatible": `data: {"type":"content_block_stop","index":0}` + "\n\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}` + "\n\n" +
		`data: {"type":"message_stop"}` + "\n\n",
}

// failures are those of any wire.
func failures(wire string) []failing {
	text := fmt.Sprintf(piece[wire], `{"type":"direct_answer","answer":"ha`)
	return []failing{
		{"a wrong key", failsWith(401, "authentication_error", "bad key sk-planted-0123456789"), []string{
			"does not take the key", "see that the key that carrel keeps for it",
		}, 0},
		{"no right", failsWith(403, "permission_error", "not for you"), []string{
			"forbids this", "not for you", "see whether the key may use the model m1",
		}, 0},
		{"a wrong model", failsWith(404, "not_found_error", "no such model"), []string{"has no model m1", "correct the model"}, 0},
		{"a limit that lasts", failsWith(429, "rate_limit_error", "slow", "Retry-After", "3600"), []string{
			"too many requests", "wait", "1h0m0s",
		}, 0},
		{"a limit that passes", failsWith(429, "rate_limit_error", "slow", "Retry-After", "0"), []string{"too many requests", "wait"}, 4},
		{"a fault", failsWith(500, "api_error", "oh"), []string{"fails with 500", "try again later"}, 0},
		{"an overload", failsWith(503, "overloaded_error", "oh", "Retry-After", "7200"), []string{"fails with 503", "2h0m0s"}, 0},
		{"half a JSON", body(stream, begins[wire]+text), []string{"cut", "ask again"}, 0},
		{"no stream", body("application/json", `{"ok":true}`), []string{"without a stream", "base URL"}, 0},
		{"a page", body("text/html", "<html>login</html>"), []string{"without a stream", "base URL"}, 0},
		{"no JSON", body(stream, "data: {]\n\n"), []string{"cannot be used", "ask again"}, 0},
		{"nothing", body(stream, ""), []string{"cut", "ask again"}, 0},
		{"too much", body(stream, begins[wire]+strings.Repeat(fmt.Sprintf(piece[wire], strings.Repeat("x", 1<<16)), 160)+ends[wire]), []string{
			"10485760 bytes", "ask for less",
		}, 0},
		{"an empty answer", body(stream, begins[wire]+ends[wire]), []string{"it is empty", "ask again"}, 3},
		{"prose", body(stream, begins[wire]+fmt.Sprintf(piece[wire], "I would look.")+ends[wire]), []string{
			"three times in a row", `begins with "I would look`, "exactly one JSON object",
		}, 3},
		{"a stream without an end", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", stream)
			fmt.Fprint(w, begins[wire])
			for r.Context().Err() == nil {
				text := strings.Repeat(": wait\n\n", 1<<12) + fmt.Sprintf(piece[wire], strings.Repeat(" ", 1<<12))
				if _, err := fmt.Fprint(w, text); err != nil {
					return
				}
			}
		}, []string{"bytes, and at most 262144 are taken", "ask for less"}, 0},
	}
}

// newFailing is a carrel of which alice asks the models: house of the host, own with a key of hers, and some that no request
// arrives at.
func newFailing(t *testing.T) (m *modeled, alice *syscall.Credential) {
	t.Helper()
	m = newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	alice = user(t, "crt-ask-fail")
	m.set(t, alice, "set", "OWN_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	return m, alice
}

// A provider that fails leads to an error that says what happened and what to do, soon, with exit code 1, and to nothing else.
// It is asked again where it said that this helps, and nowhere else.
func TestAskOfAFailingProvider(t *testing.T) {
	t.Parallel()
	m, alice := newFailing(t)
	mark := m.mark(t)
	for wire, model := range map[string]string{"openai_compatible": "house", "openai": "house", "anthropic_compatible": "own"} {
		for _, f := range failures(wire) {
			if f.asked > 0 && wire != "openai" { // it takes its time, and is the same on all
				continue
			}
			m.says.Store(&f.serve)
			before := m.asked.Load()
			r := m.try(alice, "", "ask", "--llm", "m1", "--agent", model, "--model", model, "--provider", wire, "--on", "none", "how?")
			asked := m.asked.Load() - before
			if r.code != 1 || r.out != "" || asked != max(f.asked, 1) || r.took > 20*time.Second {
				t.Errorf("%s, %s: %+v, and the provider was asked %d times", wire, f.name, r, asked)
			}
			said := r.err[strings.Index(r.err, "carrel: there is no answer: ")+len("carrel: there is no answer: "):]
			for _, want := range f.says {
				if !strings.Contains(said, want) {
					t.Errorf("%s, %s: %q does not say %q", wire, f.name, r.err, want)
				}
			}
			if strings.ContainsAny(said, "{\x1b") || strings.Contains(said, "-32") || strings.Contains(said, "planted-") ||
				!strings.HasSuffix(said, "\n") || strings.Count(said, "\n") != 1 || len(said) > 600 {
				t.Errorf("%s, %s: a person is told %q", wire, f.name, said)
			}
		}
	}
	for _, r := range m.since(t, mark) {
		if strings.Contains(r.raw, `"kind":"plan.run"`) {
			t.Errorf("a plan was proposed: %s", r.raw)
		}
	}
	// One that is well again is asked as ever.
	m.script(t, always(directly("well")))
	if r := m.try(alice, "", "ask", "--llm", "m1", "--agent", "house", "--on", "none", "how?"); r.code != 0 || r.out != "well\n" {
		t.Errorf("%+v", r)
	}
}

// A provider that stalls is waited for as long as the turn may take, and the turn says so.
func TestAskOfAStallingProvider(t *testing.T) {
	t.Parallel()
	m, alice := newFailing(t)
	for name, begin := range map[string]string{"before its answer": "", "in its answer": fmt.Sprintf(piece["openai_compatible"], "{")} {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if begin != "" {
				w.Header().Set("Content-Type", stream)
				fmt.Fprint(w, begin)
				_ = http.NewResponseController(w).Flush() // a client that has gone is seen below
			}
			_, _ = io.Copy(io.Discard, r.Body) // until then nobody sees that the client has gone
			select {
			case <-r.Context().Done():
			case <-t.Context().Done():
			}
		})
		m.says.Store(&h)
		r := m.try(alice, "", "ask", "--llm", "m1", "--model", "house", "--timeout", "2s", "--on", "none", "how?")
		if r.code != 1 || r.took > 15*time.Second ||
			!strings.Contains(r.err, "there is no answer: it ran out of its time; give it more with --timeout\n") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// What is wrong with the way to a provider is said, too: its certificate, its name, its port.
func TestAskOfAProviderThatCannotBeReached(t *testing.T) {
	t.Parallel()
	m, alice := newFailing(t)
	now := time.Now()
	good, bad := newAuthority(t), newAuthority(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(closed.Addr().String())
	_ = closed.Close()
	ways := map[string]struct{ port, says string }{
		"stranger": {bad.serve(t, "api.test", now.Add(time.Hour)), "from no authority that this host trusts"},
		"renamed":  {good.serve(t, "other.test", now.Add(time.Hour)), "its certificate is for other names"},
		"expired":  {good.serve(t, "api.test", now.Add(-time.Hour)), "its certificate is not valid now"},
		"refusing": {port, "connection refused"},
	}
	rules, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	text, allow := string(rules), ""
	for name, w := range ways {
		text += fmt.Sprintf("  %s: {api: openai, url: \"https://api.test:%s/v1\", key: WAY_KEY, secret: WAY_KEY}\n", name, w.port)
		allow += fmt.Sprintf("%q, ", "127.0.0.1:"+w.port)
	}
	text = strings.Replace(text, "allow: [", "allow: ["+allow, 1)
	trusted := strings.TrimPrefix(m.env[0], "SSL_CERT_FILE=")
	known, err := os.ReadFile(trusted)
	if err == nil {
		err = errors.Join(os.WriteFile(trusted, append(known, good.pem...), 0o644), os.WriteFile(m.file, []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{}
	for _, w := range ways {
		hosts = append(hosts, "--host", "api.test:"+w.port)
	}
	m.set(t, nil, "set", "WAY_KEY", "planted-"+rand.Text(), hosts...)
	m.carrel(t, "policy", "reload")
	for name, w := range ways {
		r := m.try(alice, "", "ask", "--llm", "m1", "--agent", name, "--model", name, "--on", "none", "how?")
		if r.code != 1 || r.out != "" || !strings.Contains(r.err, w.says) || !strings.Contains(r.err, "see that its url") ||
			r.took > 20*time.Second {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// authority vouches for certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority " + rand.Text()}, NotBefore: time.Now().Add(-24 * time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &authority{c, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// serve is the port of a server of a name, whose certificate ends at a time.
func (a *authority) serve(t *testing.T, name string, until time.Time) string {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
	}, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: a.key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = s.Serve(l) }() // until the test ends
	t.Cleanup(func() { _ = s.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
