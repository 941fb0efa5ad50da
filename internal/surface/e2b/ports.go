package e2b

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// Ports of sandboxes over HTTP: each request is a connection of its own to the port, which ends with it. What is at the other end is
// the sandbox's, and so are the response and its headers. Who asks shows a token in a header, which no browser adds by itself, so
// that a page of one sandbox cannot use another with the rights of who looks at it.

// trafficHeader brings the token that is for ports alone, as E2B's SDKs have it.
const trafficHeader = "E2b-Traffic-Access-Token"

// ours are the headers that are for this endpoint, and that no sandbox is shown.
var ours = []string{trafficHeader, "X-Access-Token", "X-Api-Key", "E2b-Sandbox-Id", "E2b-Sandbox-Port"}

const (
	// maxHeader bounds the header of a response, and maxQuoted what an error says of it, in bytes.
	maxHeader = 64 << 10
	maxQuoted = 300
)

// trafficToken lets who has it reach the ports of one sandbox as the holder of a token, and nothing else of it.
func (s *Server) trafficToken(name string, ref token.ID) string {
	mac := hmac.New(sha256.New, s.Key)
	mac.Write([]byte("traffic\x00" + name + "\x00" + string(ref)))
	return string(ref) + "." + hex.EncodeToString(mac.Sum(nil))
}

// enterPort lets in who brings a token for the ports of a sandbox, or its access token.
func (s *Server) enterPort(ctx context.Context, name string, r *http.Request) (context.Context, func(), error) {
	if given := r.Header.Values(trafficHeader); len(given) == 1 {
		text, _, _ := strings.Cut(given[0], ".")
		ref, err := token.ParseID(text)
		if err == nil && subtle.ConstantTimeCompare([]byte(given[0]), []byte(s.trafficToken(name, ref))) == 1 {
			return s.hold(s.Tokens.EnterAs(ctx, ref))
		}
	} else if given := r.Header.Values("X-Access-Token"); len(given) == 1 {
		if ref, ok := s.opened(name, given[0]); ok {
			return s.hold(s.Tokens.EnterAs(ctx, ref))
		}
	}
	_, _, err := s.Tokens.Enter(ctx, []string{"Bearer "}) // it is counted and answered as any other that is wrong
	return nil, nil, err
}

// port carries a request to a port of a sandbox, and the response back.
func (s *Server) port(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		failAs(w, http.StatusMethodNotAllowed, "cannot open a tunnel: this carries requests; \"carrel port\" carries any connection")
		return
	}
	_, port, _ := s.addressed(r)
	c, err := s.Gate.DialPort(r.Context(), authn.FromContext(r.Context()), sandboxOf(r.Context()), port)
	switch {
	case errdefs.IsUnavailable(err), errdefs.IsDeadlineExceeded(err), errdefs.IsFailedPrecondition(err):
		failAs(w, http.StatusBadGateway, errtext.Text(err))
		return
	case err != nil:
		fail(w, err)
		return
	}
	defer c.End(errOver)
	byHost := r.Header.Get("E2b-Sandbox-Id") == ""
	taken := &taken{ResponseWriter: w}
	defer func() {
		if taken.conn != nil {
			s.Door.Taken(taken.conn)
		}
	}()
	conns := make(chan net.Conn, 1)
	conns <- c
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { rewrite(p, byHost) },
		Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				select {
				case c := <-conns:
					return c, nil
				default:
					return nil, errOver // a request is sent once
				}
			},
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		},
		FlushInterval: -1,
		ModifyResponse: func(res *http.Response) error {
			keepToItself(res.Header, byHost)
			onlyGRPC(res.Trailer)
			if res.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection
				res.Body = &trailed{res.Body, res}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if why := c.Err(); why != nil {
				err = why
			}
			text := err.Error() // which may quote what came
			failAs(w, http.StatusBadGateway, "cannot use what answers on the port: "+strings.ToValidUTF8(text[:min(len(text), maxQuoted)], ""))
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // it would have what a workspace writes
	}
	proxy.ServeHTTP(taken, r)
}

var errOver = errors.New("the request is over")

// rewrite makes the request that the sandbox is sent: without what is for carrel, and with what is true of where it came from.
func rewrite(p *httputil.ProxyRequest, byHost bool) {
	p.Out.URL.Scheme, p.Out.URL.Host = "http", p.In.Host
	p.Out.URL.RawQuery = p.In.URL.RawQuery // as it is, and not as Go reads it
	keepOnly(p.Out.Header, requestFields)
	p.Out.Trailer = nil // fields that are not seen before the body
	p.SetXForwarded()
	for _, name := range ours {
		p.Out.Header.Del(name)
	}
	if !byHost { // they are of one host that all sandboxes share
		p.Out.Header.Del("Cookie")
	}
	for _, v := range p.Out.Header.Values("Authorization") { // the sandbox may have its own, but not carrel's
		if hasToken(v) {
			p.Out.Header.Del("Authorization")
		}
	}
}

// keepToItself takes out of a response what would hold for other hosts than the one it comes from.
func keepToItself(h http.Header, byHost bool) {
	keepOnly(h, responseFields)
	cookies := h.Values("Set-Cookie")
	h.Del("Set-Cookie")
	if !byHost {
		return
	}
	for _, line := range cookies {
		parts := strings.Split(line, ";")
		kept := parts[:1]
		for _, p := range parts[1:] {
			if name, _, _ := strings.Cut(p, "="); !strings.EqualFold(strings.TrimSpace(name), "domain") {
				kept = append(kept, p)
			}
		}
		h.Add("Set-Cookie", strings.Join(kept, ";"))
	}
}

// taken keeps the connection that is taken over for another protocol, as WebSocket.
type taken struct {
	http.ResponseWriter

	conn net.Conn
}

// WriteHeader implements http.ResponseWriter. What comes before the response is not passed on: its fields are not looked at.
func (t *taken) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		t.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for http.ResponseController.
func (t *taken) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Hijack implements http.Hijacker.
func (t *taken) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err == nil {
		t.conn = c
		err = c.SetDeadline(time.Time{})
	}
	return c, b, err
}
