package egress_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress"
)

// Hop-by-hop fields are dropped and everything else is passed on.
func TestWebRequest(t *testing.T) {
	heads := make(chan string, 1)
	host := raw(t, func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var b bytes.Buffer
		b.WriteString(r.Method + " " + r.RequestURI + " " + r.Host + " ")
		_ = r.Header.Write(&b)
		b.WriteString(" " + string(body) + " " + r.Trailer.Get("Check"))
		heads <- b.String()
		_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"+
			"Keep-Alive: x\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n2\r\nok\r\n0\r\nSum: 7\r\n\r\n")
	})
	w := start(t, rules(t, "example.com:8080"), nil)
	w.leads("example.com", public, 8080, host)
	got, err := w.exchange(w.open(w.proxy.Addr()), "POST http://EXAMPLE.com:8080/a%2Fb/%C3%BC?c=;d&&e HTTP/1.1\r\nHost: Example.COM:8080\r\n"+
		"Connection: X-Mine, close\r\nX-Mine: 1\r\nProxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\nKeep-Alive: 1\r\n"+
		"TE: trailers\r\nX-Kept: 1\r\nX-Forwarded-For: 10.0.0.1\r\nTrailer: Check\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"4\r\nbody\r\n0\r\nCheck: 5\r\n\r\n")
	if err != nil || !strings.HasPrefix(got, "HTTP/1.1 103 Early Hints\r\n") || !strings.Contains(got, "2\r\nok\r\n0\r\nSum: 7\r\n") ||
		strings.Contains(got, "X-Hop") || strings.Contains(got, "Keep-Alive") {
		t.Errorf("answered %q, %v", got, err)
	}
	head := <-heads
	want := "POST /a%2Fb/%C3%BC?c=;d&&e example.com:8080 Connection: close\r\nTe: trailers\r\nX-Kept: 1\r\n body 5"
	if strings.ReplaceAll(head, "Accept-Encoding: gzip\r\n", "") != want {
		t.Errorf("the host reads\n%q, not\n%q", head, want)
	}
}

// A client that waits for 100 Continue gets it, and its body is passed on as it arrives.
func TestWebContinue(t *testing.T) {
	host := raw(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		first := make([]byte, 5)
		if _, err := io.ReadFull(req.Body, first); err != nil || string(first) != "first" {
			t.Errorf("%q, %v", first, err)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
	})
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, host)
	c := w.open(w.proxy.Addr())
	_, _ = io.WriteString(c, "PUT http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"+
		"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = io.WriteString(c, "5\r\nfirst\r\n")
	rest, _ := io.ReadAll(r)
	if !strings.Contains(string(rest), "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(string(rest), "done") {
		t.Errorf("answered %q", rest)
	}
}

// A host that answers nonsense, or nothing, is a bad gateway.
func TestWebBadHost(t *testing.T) {
	answers := make(chan string, 1)
	host := raw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, <-answers)
		}
	})
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, host)
	for _, answer := range []string{
		"", "SSH-2.0-server\r\n", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
	} {
		answers <- answer
		status, body, err := fetch(t, w.client("http", nil), "http://example.com/")
		if err != nil || status != 502 || !strings.HasPrefix(body, "egress: example.com:80 ") {
			t.Errorf("%.20q: %d %q %v", answer, status, body, err)
		}
	}
}

// When the client disconnects, the connection to the host is closed too.
func TestWebClientGone(t *testing.T) {
	asked, gone := make(chan struct{}), make(chan struct{})
	host := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	}))
	t.Cleanup(host.Close)
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, host.Listener.Addr())
	c := w.open(w.proxy.Addr())
	_, _ = io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	<-asked
	_ = c.Close()
	<-gone
	w.recorded(func(c egress.Connection) bool { return c.Way == egress.WayHTTP && c.Refused == "" })
}

// curl is what most people try first.
func TestCurl(t *testing.T) {
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	plain := web(t, false)
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, plain.Listener.Addr())
	for _, scheme := range []string{"http", "socks5h", "socks5"} {
		proxy := scheme + "://" + w.proxy.Addr().String()
		args := []string{"-sS", "--max-time", "10", "-x", proxy}
		if scheme == "socks5" { // resolves the name itself
			args = append(args, "--resolve", "example.com:80:"+w.lookup("example.com").String())
		}
		out, err := exec.CommandContext(t.Context(), path, append(args, "-d", "x=y", "http://example.com/a")...).CombinedOutput()
		if err != nil || string(out) != "POST /a for example.com: x=y" {
			t.Errorf("%s: %q, %v", scheme, out, err)
		}
	}
	args := []string{"-sS", "--max-time", "10", "-x", "http://" + w.proxy.Addr().String(), "http://evil.example/"}
	out, _ := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if string(out) != "egress: evil.example:80 is not allowed: no rule names it\nAsk for evil.example:80.\n" {
		t.Errorf("%q", out)
	}
}
