package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// person is asked by a server.
type person struct {
	questions chan *asked
	ended     chan string // the targets of questions that ended without an answer
}

type asked struct {
	t      netrule.Target
	rule   string
	answer chan error
}

func newPerson() *person {
	return &person{make(chan *asked, 1000), make(chan string, 1000)}
}

func (p *person) ask(ctx context.Context, t netrule.Target, rule string) error {
	q := &asked{t, rule, make(chan error, 1)}
	p.questions <- q
	select {
	case err := <-q.answer:
		return err
	case <-ctx.Done():
		p.ended <- t.String()
		return ctx.Err()
	}
}

// question waits for one about a target.
func (p *person) question(t testing.TB, about string) *asked {
	t.Helper()
	select {
	case q := <-p.questions:
		if q.t.String() != about {
			t.Fatalf("asked about %s, not %s", q.t, about)
		}
		return q
	case <-time.After(patience):
		t.Fatalf("nobody is asked about %s", about)
		return nil
	}
}

// unasked fails if there is a question.
func (p *person) unasked(t testing.TB) {
	t.Helper()
	select {
	case q := <-p.questions:
		t.Errorf("asked about %s", q.t)
	default:
	}
}

// withdrawn waits for the end of a question that was not answered.
func (p *person) withdrawn(t testing.TB, about string) {
	t.Helper()
	select {
	case was := <-p.ended:
		if was != about {
			t.Errorf("the question about %s ended, not %s", was, about)
		}
	case <-time.After(patience):
		t.Fatalf("the question about %s does not end", about)
	}
}

// startAsking is start with a person.
func startAsking(t testing.TB, r *netrule.Rules, l egress.Limits) (*workspace, *person) {
	p := newPerson()
	return start(t, r, func(c *egress.Config) { c.Ask, c.Limits = p.ask, l }), p
}

// By every way a connection waits, is not looked up before the answer, goes on after it, and others to the same target go
// on with it.
func TestAskedAndAllowed(t *testing.T) {
	for _, c := range []struct{ scheme, url, way string }{
		{"", "http://example.com/a", egress.WayTransparent},
		{"", "https://example.com/a", egress.WayTransparent},
		{"http", "http://example.com/a", egress.WayHTTP},
		{"http", "https://example.com/a", egress.WayConnect},
		{"socks5", "https://example.com/a", egress.WaySOCKS},
	} {
		t.Run(c.way+" "+c.url[:5], func(t *testing.T) {
			plain, secure := web(t, false), web(t, true)
			// The time for a request is over long before the answer.
			w, p := startAsking(t, rules(t, "?*.com", "example.com"), egress.Limits{Handshake: 300 * time.Millisecond})
			w.leads("example.com", public, 80, plain.Listener.Addr())
			w.leads("example.com", public, 443, secure.Listener.Addr())
			port := map[bool]string{true: "443", false: "80"}[strings.HasPrefix(c.url, "https")]
			var all sync.WaitGroup
			get := func() {
				status, body, err := fetch(t, w.client(c.scheme, secure), c.url)
				if err != nil || status != 200 || body != "GET /a for example.com: " {
					t.Errorf("%d %q %v", status, body, err)
				}
			}
			all.Go(get)
			q := p.question(t, "example.com:"+port)
			if q.rule != "*.com" {
				t.Errorf("by the rule %q", q.rule)
			}
			all.Go(get)
			<-time.After(500 * time.Millisecond)
			if resolved, dialled := w.seen(); resolved != 0 || len(dialled) != 0 {
				t.Errorf("before the answer: resolved %d, dialled %v", resolved, dialled)
			}
			q.answer <- nil
			all.Wait()
			get() // a moment later
			p.unasked(t)
			got := w.recorded(func(r egress.Connection) bool { return r.Way == c.way && r.Duration >= 300*time.Millisecond }) // that waited
			if got.Rule != "*.com" || got.Refused != "" || got.Sent == 0 {
				t.Errorf("recorded %+v", got)
			}
		})
	}
}

// An answer is for one host and one port, and for a short time.
func TestAnswersDoNotWiden(t *testing.T) {
	host := web(t, false)
	w, p := startAsking(t, rules(t, "?*:*"), egress.Limits{AnswerHolds: 200 * time.Millisecond})
	for _, port := range []uint16{80, 81} {
		w.leads("example.com", public, port, host.Listener.Addr())
		w.leads("www.example.com", public, port, host.Listener.Addr())
	}
	for _, c := range []struct{ url, about string }{
		{"http://example.com/", "example.com:80"},
		{"http://example.com:81/", "example.com:81"},
		{"http://www.example.com/", "www.example.com:80"},
		{"http://" + public + "/", public + ":80"},
	} {
		done := make(chan error, 1)
		go func() {
			_, _, err := fetch(t, w.client("http", nil), c.url)
			done <- err
		}()
		p.question(t, c.about).answer <- nil
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	<-time.After(250 * time.Millisecond)
	go func() { _, _, _ = fetch(t, w.client("http", nil), "http://example.com/") }()
	p.question(t, "example.com:80").answer <- errors.New("no")
}

// A no is told as other refusals are, and stands for a while without another question.
func TestAskedAndRefused(t *testing.T) {
	w, p := startAsking(t, rules(t, "?example.com"), egress.Limits{})
	get := func(scheme, url string) (int, string, error) { return fetch(t, w.client(scheme, nil), url) }
	const why = "egress: example.com:80 was not approved: uid:1000 denied it: too curious\n"
	go func() {
		p.question(t, "example.com:80").answer <- errors.New("uid:1000 denied it: too curious")
		p.question(t, "example.com:443").answer <- errors.New("uid:1000 denied it")
	}()
	for _, scheme := range []string{"http", "", "http"} {
		if status, body, err := get(scheme, "http://example.com/"); err != nil || status != 403 || body != why {
			t.Errorf("%q: %d %q %v", scheme, status, body, err)
		}
	}
	got := w.refused(egress.WayHTTP, "example.com:80 was not approved: uid:1000 denied it")
	if got.Target != target(t, "example.com:80") || got.Address.IsValid() || got.Rule != "" {
		t.Errorf("recorded %+v", got)
	}
	if _, _, err := get("", "https://example.com/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("TLS: %v", err)
	}
	if _, _, err := get("socks5", "https://example.com/"); err == nil || !strings.Contains(err.Error(), "not allowed by ruleset") {
		t.Errorf("SOCKS: %v", err)
	}
	w.refused(egress.WaySOCKS, "example.com:443 was not approved: uid:1000 denied it")
	w.untouched()
	p.unasked(t)
	// Other rules may have been the reaction: then a person is asked again.
	w.server.SetRules(rules(t, "?example.com", "example.net"))
	go func() { p.question(t, "example.com:80").answer <- errors.New("again no") }()
	if status, body, err := get("http", "http://example.com/"); err != nil || status != 403 || !strings.Contains(body, "again no") {
		t.Errorf("%d %q %v", status, body, err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	w, p := startAsking(t, rules(t, "?example.com"), egress.Limits{AskWithin: 100 * time.Millisecond})
	status, body, err := fetch(t, w.client("http", nil), "http://example.com/")
	if err != nil || status != 403 || body != "egress: example.com:80 was not approved: no answer within 100ms\n" {
		t.Errorf("%d %q %v", status, body, err)
	}
	p.withdrawn(t, "example.com:80")
	w.untouched()
	w = start(t, rules(t, "?example.com"), nil)
	status, body, err = fetch(t, w.client("http", nil), "http://example.com/")
	if err != nil || status != 403 || body != "egress: example.com:80 was not approved: nobody can be asked\n" {
		t.Errorf("%d %q %v", status, body, err)
	}
}

// Nothing is asked for a program that is gone, whatever it has sent before.
func TestAskedAndGone(t *testing.T) {
	w, p := startAsking(t, rules(t, "?example.com"), egress.Limits{Handshake: 50 * time.Millisecond})
	to := netip.AddrPortFrom(w.lookup("example.com"), 80)
	for name, leave := range map[string]func(c *net.TCPConn){
		"closed":      func(c *net.TCPConn) { _ = c.Close() },
		"half closed": func(c *net.TCPConn) { _ = c.CloseWrite() },
		"reset":       func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
	} {
		for _, said := range []string{"", "GET / HTTP/1.1\r\n"} {
			c := w.transparent(to)
			p.question(t, "example.com:80")
			other := w.transparent(to)
			if _, err := io.WriteString(other, said); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(10 * time.Second); w.server.Parked() < 2 && time.Now().Before(end); { // it waits too
				<-time.After(time.Millisecond)
			}
			leave(c.(*net.TCPConn))
			select {
			case <-p.ended:
				t.Errorf("%s: the question ended while another waits", name)
			case <-time.After(50 * time.Millisecond):
			}
			leave(other.(*net.TCPConn))
			p.withdrawn(t, "example.com:80")
		}
	}
	got := w.refused(egress.WayTransparent, "the program closed its connection before example.com:80 was approved")
	if got.Target != target(t, "example.com:80") {
		t.Errorf("recorded %+v", got)
	}
	// The end of the time for a request does not end the watch.
	c := w.open(w.proxy.Addr())
	if _, err := io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p.question(t, "example.com:443")
	<-time.After(100 * time.Millisecond)
	_ = c.Close()
	p.withdrawn(t, "example.com:443")
	p.unasked(t)
	w.untouched()
}

// Other rules decide at once.
func TestAskedAndRulesChange(t *testing.T) {
	host := web(t, false)
	for _, c := range []struct {
		rules  []string
		status int
		body   string
	}{
		{[]string{"example.com"}, 200, "GET / for example.com: "},
		{[]string{"?example.com", "+example.com:80"}, 200, "GET / for example.com: "},
		{[]string{"?example.com", "!*.com"}, 403, "egress: example.com:80 is not allowed: the rule *.com denies it\n"},
		{nil, 403, "egress: example.com:80 is not allowed: no rule names it\nAsk for example.com:80.\n"},
	} {
		w, p := startAsking(t, rules(t, "?example.com"), egress.Limits{})
		w.leads("example.com", public, 80, host.Listener.Addr())
		done := make(chan string, 1)
		go func() {
			status, body, err := fetch(t, w.client("http", nil), "http://example.com/")
			done <- fmt.Sprint(status, body, err)
		}()
		p.question(t, "example.com:80")
		w.server.SetRules(rules(t, "?*", "example.com:8080")) // it is still asked about
		select {
		case <-p.ended:
			t.Errorf("%q: the question ended", c.rules)
		case <-time.After(50 * time.Millisecond):
		}
		w.server.SetRules(rules(t, c.rules...))
		p.withdrawn(t, "example.com:80")
		if got, want := <-done, fmt.Sprint(c.status, c.body, nil); got != want {
			t.Errorf("%q: %s, want %s", c.rules, got, want)
		}
	}
}

// A connection that a person let through stays while it would be asked about, and one that was allowed does not.
func TestRulesThatAskCut(t *testing.T) {
	echo := raw(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w, p := startAsking(t, rules(t, "?example.com:9000", "example.net:9000"), egress.Limits{})
	w.leads("example.com", public, 9000, echo)
	w.leads("example.net", publicToo, 9000, echo)
	alive := func(c net.Conn) error {
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 6))
		return err
	}
	asked := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 9000))
	p.question(t, "example.com:9000").answer <- nil
	allowed := w.transparent(netip.AddrPortFrom(w.lookup("example.net"), 9000))
	if err := errors.Join(alive(asked), alive(allowed)); err != nil {
		t.Fatal(err)
	}
	w.server.SetRules(rules(t, "?*:9000"))
	if err := alive(asked); err != nil {
		t.Errorf("what a person let through: %v", err)
	}
	if alive(allowed) == nil {
		t.Error("what nobody was asked about goes on")
	}
	w.refused(egress.WayTransparent, "the rules have changed: example.net:9000 is not allowed yet")
	// And it is cut when its host is denied.
	w.server.SetRules(rules(t, "?*:9000", "!example.com"))
	if alive(asked) == nil {
		t.Error("what is denied goes on")
	}
}

// A flood waits within bounds, leaves room for what is allowed, and holds nothing up at the end.
func TestAskedFlood(t *testing.T) {
	host := web(t, false)
	w, p := startAsking(t, rules(t, "?*.example.com:*", "example.net"), egress.Limits{Parked: 4, Connections: 40})
	w.leads("example.net", public, 80, host.Listener.Addr())
	for n := range 30 {
		c := w.open(w.proxy.Addr())
		if _, err := fmt.Fprintf(c, "CONNECT h%d.example.com:%d HTTP/1.1\r\nHost: h%[1]d.example.com:%[2]d\r\n\r\n", n, 1000+n); err != nil {
			t.Fatal(err)
		}
	}
	w.refused(egress.WayConnect, "was not approved: 4 connections wait for an answer already")
	if status, _, err := fetch(t, w.client("http", nil), "http://example.net/"); err != nil || status != 200 {
		t.Errorf("what is allowed: %d, %v", status, err)
	}
	first := <-p.questions
	for range 3 {
		<-p.questions
	}
	p.unasked(t)
	// One answer makes room for one more.
	first.answer <- errors.New("no")
	w.refused(egress.WayConnect, "was not approved: no")
	c := w.open(w.proxy.Addr())
	if _, err := io.WriteString(c, "CONNECT last.example.com:1 HTTP/1.1\r\nHost: last.example.com:1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p.question(t, "last.example.com:1")
}

// Nothing is resolved, dialled or intercepted for a secret's host before the answer, and the secret's own rules are none.
func TestAskedAndBound(t *testing.T) {
	host := web(t, true)
	w, p := startAsking(t, rules(t, "?example.com"), egress.Limits{})
	w.leads("example.com", public, 443, host.Listener.Addr())
	done := make(chan error, 1)
	go func() {
		_, _, err := fetch(t, w.client("", host), "https://example.com/")
		done <- err
	}()
	q := p.question(t, "example.com:443")
	w.untouched()
	q.answer <- errors.New("no")
	if err := <-done; err == nil {
		t.Error("it is reached")
	}
	w.untouched()
}
