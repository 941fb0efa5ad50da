package ways_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// keyed is a host that says which key it got. The host's authorities, for every process of a world, vouch for it.
func keyed(t *testing.T) (address string, authorities string) {
	t.Helper()
	public, err := ca.Make("public", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "authorities.pem")
	if err := os.WriteFile(file, public.PEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream") // which is not masked
		fmt.Fprint(w, r.Header.Get("X-Key"))
	}))
	host, err := netrule.ParseHost("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := public.Leaves(func(netrule.Host) bool { return true }).Leaf(host)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*leaf}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), file
}

const placeholder = "placeholder-0123456789"

// secretsOf are what a workspace uses: one secret, for address.
func secretsOf(t *testing.T, authority *ca.CA, address, value string) egressapi.Secrets {
	t.Helper()
	key, err := authority.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	r, err := netrule.ParseRule(netrule.Allow, address)
	if err != nil {
		t.Fatal(err)
	}
	return egressapi.Secrets{CA: egressapi.NewPrivate(string(key)), List: []egressapi.Secret{
		{Name: "KEY", Placeholder: placeholder, Value: egressapi.NewPrivate(value), Hosts: []netrule.Rule{r}},
	}}
}

// A process that is confined already takes its first secret, other values, and no secret any more. Its successor has what
// it had, and other rules of the host leave the secrets as they are.
func TestSecretsThatCome(t *testing.T) {
	address, authorities := keyed(t)
	w := newWorld(t, ways.Config{})
	w.env = []string{"SSL_CERT_FILE=" + authorities}
	authority, err := ca.Make("ws", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	trusted, public := x509.NewCertPool(), x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority.PEM())
	b, err := os.ReadFile(authorities)
	w.must(err)
	public.AppendCertsFromPEM(b)
	get := func(roots *x509.CertPool) string {
		t.Helper()
		c, no := w.connectTo(one, address)
		if no != "" {
			return no
		}
		defer c.Close()
		inner := tls.Client(c, &tls.Config{ServerName: "127.0.0.1", RootCAs: roots, MinVersion: tls.VersionTLS12})
		fmt.Fprintf(inner, "GET / HTTP/1.0\r\nHost: %s\r\nX-Key: %s\r\n\r\n", address, placeholder)
		text, err := io.ReadAll(inner)
		if err != nil {
			return err.Error()
		}
		return string(text[bytes.LastIndexByte(text, '\n')+1:])
	}
	rules := []string{address}
	w.must(w.Open(t.Context(), one, rules, nil))
	if got := get(public); got != placeholder {
		t.Errorf("without a secret the host gets %q", got)
	}
	give := func(value string) {
		t.Helper()
		w.must(w.Ways.Change(t.Context(), one, workspace.Reach{Allow: rules}, secretsOf(t, authority, address, value)))
	}
	give("the first value")
	if got := get(trusted); got != "the first value" {
		t.Errorf("the host gets %q", got)
	}
	give("another value")
	if got := get(trusted); got != "another value" {
		t.Errorf("after a change the host gets %q", got)
	}
	w.must(w.Reload(conf.Default()))
	if got := get(trusted); got != "another value" {
		t.Errorf("with other rules of the host it gets %q", got)
	}
	n := w.opened(one)
	w.signal(one, unix.SIGKILL)
	for end := time.Now().Add(10 * time.Second); w.opened(one) == n && time.Now().Before(end); {
		<-time.After(5 * time.Millisecond)
	}
	if got := get(trusted); got != "another value" {
		t.Errorf("of the next process the host gets %q", got)
	}
	w.must(w.Change(t.Context(), one, rules, nil))
	if got := get(public); got != placeholder {
		t.Errorf("once it is taken back the host gets %q", got)
	}
}

func TestCheckSecrets(t *testing.T) {
	w := ways.New(ways.Config{})
	authority, err := ca.Make("ws", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := secretsOf(t, authority, "api.example:8443", "the value").List
	if err := w.CheckSecrets(workspace.Reach{Allow: []string{"*.example:8443"}}, s); err != nil {
		t.Errorf("a host that a rule reaches: %v", err)
	}
	for what, c := range map[string]struct{ allow, deny []string }{
		"no rule":      {},
		"another port": {allow: []string{"api.example"}},
		"denied":       {allow: []string{"*.example:8443"}, deny: []string{"api.example"}},
	} {
		err := w.CheckSecrets(workspace.Reach{Allow: c.allow, Deny: c.deny}, s)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "api.example:8443") {
			t.Errorf("%s: %v", what, err)
		}
	}
	short := secretsOf(t, authority, "api.example:8443", "short").List
	if err := w.CheckSecrets(workspace.Reach{Allow: []string{"*.example:8443"}}, short); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a short one: %v", err)
	}
}

func TestExplain(t *testing.T) {
	host := conf.Default()
	deny, err := netrule.ParseRule(netrule.Deny, "bad.example")
	if err != nil {
		t.Fatal(err)
	}
	host.Rules = []netrule.Rule{deny}
	w := ways.New(ways.Config{Conf: host})
	authority, err := ca.Make("ws", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	secrets := secretsOf(t, authority, "api.example:8443", "the value").List
	hosts := []string{
		"API.example.:8443", "api.example", "bad.example:22", "other.test", "127.0.0.1:80", "2001:db8::1", "[2001:db8::1]:22", "10.1.2.3:5432",
	}
	all, err := w.Explain(workspace.Reach{Allow: []string{"*.example:*", "10.0.0.0/8:5432"}}, secrets, hosts)
	if err != nil || len(all) != len(hosts) {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []string{
		"api.example:8443 allow *.example:* [KEY]", "api.example:443 allow *.example:* []", "bad.example:22 deny bad.example []",
		"other.test:443 deny  []", "127.0.0.1:80 deny  []", "[2001:db8::1]:443 deny  []", "[2001:db8::1]:22 deny  []",
		"10.1.2.3:5432 allow 10.0.0.0/8:5432 []",
	} {
		v := all[i]
		if got := fmt.Sprint(v.Host, " ", v.Action, " ", v.Rule, " ", v.Secrets); got != want || v.Reason == "" {
			t.Errorf("%s: %s (%s), want %s", hosts[i], got, v.Reason, want)
		}
	}
	secrets[0].Sending = httprule.Sending{Methods: []string{"POST"}, Paths: []string{"/v1/*"}}
	for text, want := range map[string]string{
		"api.example:8443":                               "allow [KEY]",
		"POST https://api.example:8443/v1/x?y=..":        "allow [KEY]",
		"post https://API.example:8443/v1/x":             "allow [KEY]",
		"https://api.example:8443/v1/x":                  "allow []",
		"POST https://api.example:8443/v2":               "allow []",
		"POST https://api.example/v1/x":                  "allow []",
		"POST https://api.example:8443/v1/%2e%2e/v2":     "deny []",
		"POST https://bad.example:8443/v1/../v2":         "deny []",
		"POST https://other.example:8443/v1/../anything": "allow []",
	} {
		all, err := w.Explain(workspace.Reach{Allow: []string{"*.example:*"}}, secrets, []string{text})
		if err != nil || fmt.Sprint(all[0].Action, " ", all[0].Secrets) != want {
			t.Errorf("%s: %+v, %v", text, all, err)
		}
	}
	for _, bad := range []string{"CONNECT https://a.example/", "GET ftp://a.example/", "GET https://a.example", "G T https://a.example/"} {
		if _, err := w.Explain(workspace.Reach{}, nil, []string{bad}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "a b", "example.org:0", "example.org:http", "https://example.org", "[::1", "user@example.org"} {
		if _, err := w.Explain(workspace.Reach{}, nil, []string{bad}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
