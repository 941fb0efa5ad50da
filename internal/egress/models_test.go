package egress_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress"
)

// api is a model that says what it was asked for. It waits where the path says so.
type api struct {
	arrived, gone chan bool
}

func newAPI() *api { return &api{make(chan bool, 10), make(chan bool, 10)} }

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.URL.Path == "/wait" {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		a.arrived <- true
		<-r.Context().Done()
		a.gone <- true
		return
	}
	fmt.Fprintf(w, "%s %s %q: %s", r.Method, r.URL, r.Host, body)
}

func modelled(t *testing.T, texts ...string) (*workspace, *api) {
	t.Helper()
	a := newAPI()
	return start(t, rules(t, texts...), func(c *egress.Config) { c.Models = []egress.Model{{Name: "claude", Handler: a}} }), a
}

// A model is reached by every way, and nothing is resolved or dialled for it.
func TestModel(t *testing.T) {
	w, _ := modelled(t, "!*")
	for way, client := range map[string]*http.Client{
		egress.WayTransparent: w.client("", nil), egress.WayHTTP: w.client("http", nil), egress.WaySOCKS: w.client("socks5", nil),
	} {
		status, body, err := fetch(t, client, "http://claude.carrel.internal/v1/messages?x=1")
		if want := `GET /v1/messages?x=1 "claude.carrel.internal": `; err != nil || status != 200 || body != want {
			t.Errorf("%s: %d %s, %v", way, status, body, err)
		}
		c := w.recorded(func(c egress.Connection) bool { return c.Way == way })
		if c.Target != target(t,
			"claude.carrel.internal:80") || c.Refused != "" || c.Requests != 1 || c.Sent == 0 || c.Received == 0 || c.Address.IsValid() {
			t.Errorf("%+v", c)
		}
	}
	if n, _ := w.seen(); n > 0 {
		t.Errorf("%d names were resolved", n)
	}
	w.untouched()
}

// A connection carries several requests, but for one by a proxy's URL: the next could be for another host.
func TestModelKeepsConnections(t *testing.T) {
	w, _ := modelled(t)
	a := w.lookup("claude.carrel.internal")
	request := "GET /1 HTTP/1.1\r\nHost: claude.carrel.internal\r\n\r\n"
	got, err := w.exchange(w.transparent(netip.AddrPortFrom(a, 80)), request+strings.Replace(request, "\r\n\r\n",
		"\r\nConnection: close\r\n\r\n", 1))
	if err != nil || strings.Count(got, "GET /1") != 2 {
		t.Errorf("%q, %v", got, err)
	}
	if c := w.recorded(func(c egress.Connection) bool { return c.Way == egress.WayTransparent }); c.Requests != 2 {
		t.Errorf("%+v", c)
	}
	whole := "GET http://claude.carrel.internal/1 HTTP/1.1\r\nHost: claude.carrel.internal\r\n\r\n"
	if got, err = w.exchange(w.open(w.proxy.Addr()), whole+whole); err != nil || strings.Count(got, "GET /1") != 1 {
		t.Errorf("%q, %v", got, err)
	}
	got, err = w.exchange(w.open(w.proxy.Addr()),
		"CONNECT claude.carrel.internal:80 HTTP/1.1\r\nHost: claude.carrel.internal:80\r\n\r\n"+strings.Replace(request, "\r\n\r\n",
			"\r\nConnection: close\r\n\r\n", 1))
	if err != nil || !strings.Contains(got, "200 Connection established") || !strings.Contains(got, "GET /1") {
		t.Errorf("%q, %v", got, err)
	}
}

// What is no model, no port of one, or not for it, is refused with a sentence, whatever the rules allow.
func TestModelRefusals(t *testing.T) {
	w, _ := modelled(t, "*", "*.carrel.internal:*", "claude.carrel.internal:*")
	for _, url := range []string{
		"https://claude.carrel.internal/", "http://claude.carrel.internal:8080/", "http://other.carrel.internal/",
		"http://a.claude.carrel.internal/",
		"http://carrel.internal/",
	} {
		for _, scheme := range []string{"http", "socks5"} {
			if status, body, err := fetch(t, w.client(scheme, nil), url); err == nil && (status != 403 || strings.Contains(body, "Ask for")) {
				t.Errorf("%s by %s: %d %s", url, scheme, status, body)
			}
		}
	}
	w.refused(egress.WayConnect, "a model is reached by plain HTTP inside; use http://claude.carrel.internal")
	w.refused(egress.WaySOCKS, "there is no such model")
	a := w.lookup("claude.carrel.internal")
	secure := tls.Client(w.transparent(netip.AddrPortFrom(a, 443)), &tls.Config{
		ServerName: "claude.carrel.internal",
		MinVersion: tls.VersionTLS12,
	})
	if err := secure.HandshakeContext(t.Context()); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("TLS: %v", err)
	}
	w.refused(egress.WayTransparent, "plain HTTP")
	for _, name := range []string{"other.carrel.internal.", "carrel.internal."} {
		if all, err := w.resolver("udp").LookupHost(t.Context(), name); err == nil {
			t.Errorf("%s has %v", name, all)
		}
	}
	w.refused(egress.WayDNS, "there is no such model")
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "GET http://example.org/ HTTP/1.1\r\nHost: claude.carrel.internal\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: claude.carrel.internal:81\r\n\r\n",
	} {
		got, err := w.exchange(w.transparent(netip.AddrPortFrom(a, 80)), head)
		if err != nil || !strings.Contains(got, "HTTP/1.1 421") {
			t.Errorf("%q: %q, %v", head, got, err)
		}
	}
	for _, head := range []string{"hello\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"} {
		got, _ := w.exchange(w.transparent(netip.AddrPortFrom(a, 80)), head)
		if !strings.HasPrefix(got, "HTTP/1.1 4") {
			t.Errorf("%q: %q", head, got)
		}
	}
	if n, _ := w.seen(); n > 0 {
		t.Errorf("%d names were resolved", n)
	}
	w.untouched()
}

// Other models cut what the earlier ones serve, and leave what stays. New rules leave it too.
func TestSetModels(t *testing.T) {
	w, a := modelled(t)
	b := newAPI()
	models := []egress.Model{{Name: "claude", Handler: a}, {Name: "gpt", Handler: b}}
	if err := w.server.SetModels(models); err != nil {
		t.Fatal(err)
	}
	read := func(name string) chan error {
		ended := make(chan error, 1)
		client := w.client("http", nil)
		go func() {
			_, _, err := fetch(t, client, "http://"+name+".carrel.internal/wait")
			ended <- err
		}()
		return ended
	}
	first, second := read("claude"), read("gpt")
	<-a.arrived
	<-b.arrived
	w.server.SetRules(rules(t, "!*"))
	if err := w.server.SetModels([]egress.Model{{Name: "claude", Handler: newAPI()}, {Name: "gpt", Handler: b}}); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err == nil {
		t.Error("what was cut has ended as if it were complete")
	}
	<-a.gone
	w.refused(egress.WayHTTP, "the models have changed")
	select {
	case err := <-second:
		t.Errorf("the other model was cut: %v", err)
	default:
	}
	if err := w.server.SetModels(nil); err != nil {
		t.Fatal(err)
	}
	<-second
	<-b.gone
	if status, _, _ := fetch(t, w.client("http", nil), "http://gpt.carrel.internal/"); status != 403 {
		t.Errorf("a model that was removed: %d", status)
	}
	for _, bad := range [][]egress.Model{{{Name: "a.b", Handler: a}}, {{Name: "", Handler: a}}, {{Name: "a"}}, {
		{Name: "a", Handler: a},
		{Name: "A", Handler: a},
	}} {
		if err := w.server.SetModels(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A model hears that a program has gone.
func TestModelHearsTheEnd(t *testing.T) {
	w, a := modelled(t)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://claude.carrel.internal/wait", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-a.arrived
		cancel()
	}()
	res, err := w.client("", nil).Do(req)
	if err == nil {
		_, _ = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	<-a.gone
}
