package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/linux/cert"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

const (
	versionPath = "/carrel.v1.SystemService/Version"
	verifyPath  = "/carrel.v1.AuditService/Verify"
)

// far is the API over TLS, and who attacks it.
type far struct {
	t    *testing.T
	gate *apitest.Gate
	addr string
	pin  string
}

func overTLS(t *testing.T) *far {
	t.Helper()
	g := &apitest.Gate{}
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{})
	return &far{t: t, gate: g, addr: addr, pin: keys.Fingerprint()}
}

// client returns one of HTTP/2, or of HTTP/1.1.
func (f *far) client(http2 bool) *http.Client {
	var p http.Protocols
	p.SetHTTP1(!http2)
	p.SetHTTP2(http2)
	tr := &http.Transport{Protocols: &p, TLSClientConfig: cert.Pin(f.pin)}
	f.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// post makes a call and returns status and body.
func (f *far) post(c *http.Client, path string, header http.Header, host string) (int, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "https://"+f.addr+path, strings.NewReader("{}"))
	if err != nil {
		f.t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	res, err := c.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func bearer(s token.Secret) http.Header {
	return http.Header{"Authorization": {"Bearer " + s.Reveal()}}
}

func TestAdmissionByToken(t *testing.T) {
	f := overTLS(t)
	c := f.client(false)
	good := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
	expired := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
	f.gate.Change(expired.ID(), func(i *principal.Issued) { i.Expires = time.Now().Add(-time.Second) })
	revoked := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
	f.gate.Change(revoked.ID(), func(i *principal.Issued) { i.Revoked = time.Now() })
	used := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator, MaxUses: 1})
	if code, body := f.post(c, versionPath, bearer(used), ""); code != 200 {
		t.Fatalf("the one use of a token: %d %s", code, body)
	}
	// wrong has the id of a good one, and is of the right form.
	wrong := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
	f.gate.Change(wrong.ID(), func(i *principal.Issued) { i.Hash[7] ^= 1 })
	with := func(h http.Header, k string, v ...string) http.Header {
		h[k] = v
		return h
	}
	var unauthenticated []string
	for _, x := range []struct {
		name   string
		header http.Header
		path   string
		host   string
		code   int
		reason string // in the record
	}{
		{"good", bearer(good), versionPath, "", 200, ""},
		{"scheme in another case", http.Header{"Authorization": {"bEARER " + good.Reveal()}}, versionPath, "", 200, ""},
		{"host of the certificate", bearer(good), versionPath, "carrel.test:7443", 200, ""},
		{"unknown", bearer(token.New()), versionPath, "", 401, "unknown"},
		{"wrong", bearer(wrong), versionPath, "", 401, "wrong"},
		{"expired", bearer(expired), versionPath, "", 401, "expired"},
		{"revoked", bearer(revoked), versionPath, "", 401, "revoked"},
		{"replayed", bearer(used), versionPath, "", 401, "used up"},
		{"mistyped", http.Header{"Authorization": {"Bearer " + good.Reveal() + "x"}}, versionPath, "", 401, "malformed"},
		{"basic", http.Header{"Authorization": {"Basic " + good.Reveal()}}, versionPath, "", 401, "malformed"},
		{"two tokens", http.Header{"Authorization": {"Bearer " + good.Reveal(), "Bearer " + good.Reveal()}}, versionPath, "", 401, "malformed"},
		{
			"two in one",
			http.Header{"Authorization": {"Bearer " + good.Reveal() + ", Bearer " + good.Reveal()}},
			versionPath, "", 401,
			"malformed",
		},
		{"cross-origin", with(bearer(good), "Origin", "https://attacker.example"), versionPath, "", 403, "-"},
		{"same origin", with(bearer(good), "Origin", "https://"+f.addr), versionPath, "", 403, "-"},
		{"fetch metadata", with(bearer(good), "Sec-Fetch-Site", "cross-site"), versionPath, "", 403, "-"},
		{"rebound name", bearer(good), versionPath, "attacker.example", 403, "-"},
		{"path with dots", bearer(good), "/x/.." + versionPath, "", 404, "-"},
		{"path with encoded dots", bearer(good), "/%2e%2e" + versionPath, "", 404, "-"},
		{"role", bearer(good), verifyPath, "", 403, ""},
	} {
		before := len(f.gate.Logins())
		code, body := f.post(c, x.path, x.header, x.host)
		if code != x.code {
			t.Errorf("%s: %d %s", x.name, code, body)
		}
		if code == 401 {
			unauthenticated = append(unauthenticated, body)
		}
		logins := f.gate.Logins()[before:]
		switch x.reason {
		case "-":
			if len(logins) > 0 {
				t.Errorf("%s: a login was recorded: %v", x.name, logins)
			}
		case "":
			if slices.ContainsFunc(logins, func(l string) bool { return strings.Contains(l, "nobody") }) {
				t.Errorf("%s: a refused login was recorded: %v", x.name, logins)
			}
		default:
			if len(logins) != 1 || !strings.HasPrefix(logins[0], "127.0.0.1 nobody ") || !strings.HasSuffix(logins[0], " "+x.reason) {
				t.Errorf("%s: recorded as %v", x.name, logins)
			}
		}
	}
	// Whoever is not let in is not told why.
	if slices.Sort(unauthenticated); len(unauthenticated) != 9 || len(slices.Compact(unauthenticated)) != 1 {
		t.Errorf("answers differ: %v", unauthenticated)
	}
	// Without a token there is no way in at all.
	if code, body := f.post(c, versionPath, nil, ""); code != 401 || !strings.Contains(body, "without a token") {
		t.Errorf("no token: %d %s", code, body)
	}
	if l := f.gate.Logins(); !strings.HasSuffix(l[len(l)-1], "nobody  missing") {
		t.Errorf("no token: recorded as %q", l[len(l)-1])
	}
	// The first of a connection is recorded, and no other.
	n := 0
	for _, l := range f.gate.Logins() {
		if strings.Contains(l, "token:"+string(good.ID())) {
			n++
		}
	}
	if n == 0 || n > 12 { // a refusal closes the connection
		t.Errorf("%d logins of the good one are recorded", n)
	}
}

func TestOneLoginIsRecordedOfAConnection(t *testing.T) {
	f := overTLS(t)
	c := f.client(true)
	good := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
	for range 5 {
		if code, body := f.post(c, versionPath, bearer(good), ""); code != 200 {
			t.Fatal(code, body)
		}
	}
	if l := f.gate.Logins(); len(l) != 1 || l[0] != "127.0.0.1 token:"+string(good.ID())+" "+string(good.ID())+" " {
		t.Errorf("%q", l)
	}
}

// Failures from an address are bounded, and a good token from there still passes: who
// shares an address with an attacker is not locked out.
func TestFailedLoginsAreLimited(t *testing.T) {
	f := overTLS(t)
	c := f.client(true)
	limited := 0
	for range 60 {
		switch code, body := f.post(c, versionPath, bearer(token.New()), ""); code {
		case 401:
		case 429:
			limited++
		default:
			t.Fatal(code, body)
		}
	}
	if limited < 20 || limited == 60 {
		t.Errorf("%d of 60 were limited", limited)
	}
	if code, body := f.post(c, versionPath, bearer(f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Agent})), ""); code != 200 {
		t.Errorf("a good one: %d %s", code, body)
	}
}

func TestRateOfAToken(t *testing.T) {
	f := overTLS(t)
	c := f.client(true)
	slow := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Agent, Rate: 0.01, Burst: 3, MaxUses: 100})
	for i := range 6 {
		code, body := f.post(c, versionPath, bearer(slow), "")
		if want := map[bool]int{true: 200, false: 429}[i < 3]; code != want {
			t.Errorf("request %d: %d %s", i, code, body)
		}
	}
	if i, _ := f.gate.Issued(slow.ID()); i.Uses != 3 {
		t.Errorf("%d uses were spent for 3 requests", i.Uses)
	}
}

// The tokens that a token makes draw from its rate, and so do those that they make.
func TestRateIsSharedWithTheMaker(t *testing.T) {
	f := overTLS(t)
	c := f.client(true)
	holder := func(s token.Secret) principal.Principal {
		i, _ := f.gate.Issued(s.ID())
		return principal.Principal{Kind: principal.Token, Grant: &i.Grant}
	}
	slow := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator, Rate: 0.01, Burst: 5})
	line := []token.Secret{slow}
	for range 10 {
		line = append(line, f.gate.Issue(t, holder(slow), principal.Wanted{Roles: principal.Operator}))
		line = append(line, f.gate.Issue(t, holder(line[len(line)-1]), principal.Wanted{Roles: principal.Agent, Rate: 0.01, Burst: 2}))
	}
	// What its own rate refuses takes nothing from the maker's.
	last, through := line[len(line)-1], 0
	for range 3 {
		if code, _ := f.post(c, versionPath, bearer(last), ""); code == 200 {
			through++
		}
	}
	if through != 2 {
		t.Errorf("%d requests came through by a token that may make 2", through)
	}
	for range 3 {
		for _, s := range line {
			code, body := f.post(c, versionPath, bearer(s), "")
			if code == 200 {
				through++
			} else if code != 429 || !strings.Contains(body, string(s.ID())) {
				t.Errorf("%d %s", code, body)
			}
		}
	}
	if through != 5 {
		t.Errorf("%d requests came through where 5 may", through)
	}
	if code, body := f.post(c, versionPath, bearer(f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Agent})), ""); code != 200 {
		t.Errorf("another token of the same owner: %d %s", code, body)
	}
}

// On the Unix socket the token's rights hold, and the peer's do not.
func TestATokenDropsRights(t *testing.T) {
	g := &apitest.Gate{}
	tokens := authn.NewTokens(g)
	socket, _ := apitest.Serve(t, g, &root, api.Options{Tokens: tokens})
	agent := g.Issue(t, alice, principal.Wanted{Roles: principal.Agent})
	c := carrelv1connect.NewTokenServiceClient(unix(t, socket, false), "http://carrel")
	who := func(h http.Header) *carrelv1.WhoAmIResponse {
		t.Helper()
		req := connect.NewRequest(&carrelv1.WhoAmIRequest{})
		maps.Copy(req.Header(), h)
		res, err := c.WhoAmI(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	if w := who(nil); w.GetPrincipal() != "uid:0" || !slices.Equal(w.GetRoles(), []string{"admin"}) || w.GetToken() != nil {
		t.Errorf("%v", w)
	}
	if w := who(bearer(agent)); w.GetPrincipal() != "token:"+string(agent.ID()) || w.GetOwner() != "uid:1000" ||
		!slices.Equal(w.GetPermissions(), []string{"known", "look", "run"}) || w.GetToken().GetState() != "good" {
		t.Errorf("%v", w)
	}
	req := connect.NewRequest(&carrelv1.VerifyRequest{})
	req.Header().Set("Authorization", "Bearer "+agent.Reveal())
	if _, err := carrelv1connect.NewAuditServiceClient(unix(t, socket, false), "http://carrel").Verify(t.Context(),
		req); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("root's connection with an agent's token reads the audit log: %v", err)
	}
	// A bad token is no way back to the peer's rights.
	req.Header().Set("Authorization", "Bearer x")
	if _, err := carrelv1connect.NewAuditServiceClient(unix(t, socket, false), "http://carrel").Verify(t.Context(),
		req); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a bad token on root's connection: %v", err)
	}
	// Descriptors would outlive the token.
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /carrel.v1/descriptors HTTP/1.1\r\nHost: carrel\r\nAuthorization: Bearer "+
		""+agent.Reveal()+"\r\nConnection: Upgrade\r\nUpgrade: carrel-fds/2\r\nContent-Length: 0\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	if bytes.Contains(answer, []byte(" 101 ")) || !bytes.Contains(answer, []byte("CommandService/Stream")) {
		t.Errorf("a token was handed descriptors: %s", answer)
	}
}

// A stream that is open when its token is revoked, or expires, ends, and so does its
// command.
func TestAStreamEndsWithItsToken(t *testing.T) {
	for name, end := range map[string]func(f *far, s token.Secret){
		"revoked": func(f *far, s token.Secret) {
			if _, err := f.gate.RevokeToken(f.t.Context(), root, string(s.ID())); err != nil {
				f.t.Fatal(err)
			}
		},
		"expired": func(*far, token.Secret) {},
	} {
		t.Run(name, func(t *testing.T) {
			f := overTLS(t)
			s := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
			if name == "expired" {
				f.gate.Change(s.ID(), func(i *principal.Issued) { i.Expires = time.Now().Add(3 * time.Second) })
			}
			base := "https://" + f.addr
			create := connect.NewRequest(&carrelv1.CreateRequest{Key: "demo"})
			create.Header().Set("Authorization", "Bearer "+s.Reveal())
			if _, err := carrelv1connect.NewWorkspaceServiceClient(f.client(true), base).Create(t.Context(), create); err != nil {
				t.Fatal(err)
			}
			stream := carrelv1connect.NewCommandServiceClient(f.client(true), base).Stream(t.Context())
			stream.RequestHeader().Set("Authorization", "Bearer "+s.Reveal())
			if err := stream.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{
				Workspace: "demo", Stdin: true, Command: &carrelv1.Command{Argv: []string{"cat"}},
			}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Receive(); err != nil {
				t.Fatal(err)
			}
			waiting := carrelv1connect.NewCommandServiceClient(f.client(true), base)
			exec := connect.NewRequest(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{Argv: []string{"sleep", "1000"}}})
			exec.Header().Set("Authorization", "Bearer "+s.Reveal())
			ran := make(chan error, 1)
			go func() {
				_, err := waiting.Exec(t.Context(), exec)
				ran <- err
			}()
			// A stream of which nothing has been said yet holds on to nothing.
			silent := carrelv1connect.NewCommandServiceClient(f.client(true), base).Stream(t.Context())
			silent.RequestHeader().Set("Authorization", "Bearer "+s.Reveal())
			if err := silent.Send(nil); err != nil {
				t.Fatal(err)
			}
			// All four are there: each came on a connection of its own.
			there, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := f.gate.AwaitLogins(there, 4); err != nil {
				t.Fatal(err, f.gate.Logins())
			}
			end(f, s)
			if m, err := stream.Receive(); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), name) {
				t.Errorf("the stream goes on: %v, %v", m, err)
			}
			if err := <-ran; err == nil {
				t.Error("the command goes on")
			}
			if _, err := silent.Receive(); err == nil {
				t.Error("a silent stream goes on")
			}
		})
	}
}

// Plain HTTP on the TLS port gets no answer but that.
func TestPlainHTTPOnTheTLSPort(t *testing.T) {
	f := overTLS(t)
	good := f.gate.Issue(t, root, principal.Wanted{Roles: principal.Admin})
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "POST "+versionPath+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+
		""+good.Reveal()+"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	answer, _ := io.ReadAll(c)
	if bytes.Contains(answer, []byte(" 200 ")) || len(f.gate.Logins()) != 0 {
		t.Errorf("answered %q, logins %v", answer, f.gate.Logins())
	}
	// Nor the protocol of the Unix socket, nor an older TLS.
	h2, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer h2.Close()
	_, _ = io.WriteString(h2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if answer, _ := io.ReadAll(h2); bytes.Contains(answer, []byte{0, 0, 0, 4}) {
		t.Errorf("HTTP/2 without TLS is spoken: %q", answer)
	}
	old := cert.Pin(f.pin)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if c, err := (&tls.Dialer{Config: old}).DialContext(t.Context(), "tcp", f.addr); err == nil {
		c.Close()
		t.Error("TLS 1.2 is spoken")
	}
}

// One address cannot take all connections, with or without a word on them.
func TestConnectionsFromAnAddressAreBounded(t *testing.T) {
	f := overTLS(t)
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	open := func() bool {
		c, err := (&tls.Dialer{Config: cert.Pin(f.pin)}).DialContext(t.Context(), "tcp", f.addr)
		if err != nil {
			return false
		}
		held = append(held, c)
		return true
	}
	for i := range 64 {
		if !open() {
			t.Fatalf("connection %d was refused", i)
		}
	}
	if open() {
		t.Error("one too many was accepted")
	}
}

// Who sends a request a byte at a time, or nothing, is not waited for.
func TestSlowClientsAreCutOff(t *testing.T) {
	g := &apitest.Gate{}
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{HeaderTimeout: 100 * time.Millisecond, BodyTimeout: 100 * time.Millisecond})
	good := g.Issue(t, alice, principal.Wanted{Roles: principal.Agent})
	for name, said := range map[string]string{
		"nothing":          "",
		"half of a header": "POST " + versionPath + " HTTP/1.1\r\nHost: localhost\r\nX-A: ",
		"half of a body": "POST " + versionPath + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " +
			"" + good.Reveal() + "\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"body of no caller": "POST " + versionPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
			"100\r\n\r\n{",
	} {
		c, err := (&tls.Dialer{Config: cert.Pin(keys.Fingerprint())}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, said)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, err := io.ReadAll(c)
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || bytes.Contains(answer, []byte(" 200 ")) {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		c.Close()
	}
	// Without even a handshake.
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("no handshake: %v", err)
	}
}
