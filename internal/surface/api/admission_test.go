package api_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var (
	root     = principal.Principal{Kind: principal.User, Admin: true}
	alice    = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	mallory  = principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	stranger = principal.Principal{}
)

// unix returns a client of one HTTP version on socket.
func unix(t *testing.T, socket string, http2 bool) *http.Client {
	t.Helper()
	var p http.Protocols
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{
		Protocols: &p,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// unlisted lists the procedures of the schema, and the paths that are served
// besides, which no row of the table of operations names.
func unlisted(s *api.Server) []string {
	var out []string
	paths := []string{fdapi.Path, "/metrics", "/v1/terminals/"}
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			paths = append(paths, "/"+string(services.Get(i).FullName())+"/"+string(methods.Get(j).Name()))
		}
	}
	for _, p := range paths {
		if !s.Handled(p) {
			out = append(out, p)
		}
	}
	for _, p := range api.Routes() {
		if !slices.Contains(paths, p) {
			out = append(out, p+" (not in the schema)")
		}
	}
	return out
}

func TestEveryRouteHasARow(t *testing.T) {
	if got := unlisted(api.NewServer(&apitest.Gate{}, api.Options{})); len(got) > 0 {
		t.Errorf("routes without a row: %v", got)
	}
	// The violation: a procedure that somebody adds and forgets the row of.
	const forgotten = "/carrel.v1.WorkspaceService/Destroy"
	restore := api.WithoutRoute(forgotten)
	defer restore()
	if got := unlisted(api.NewServer(&apitest.Gate{}, api.Options{})); !slices.Equal(got, []string{forgotten}) {
		t.Errorf("routes without a row: %v, want %s", got, forgotten)
	}
}

func TestAdmission(t *testing.T) {
	const version, verify = "/carrel.v1.SystemService/Version", "/carrel.v1.AuditService/Verify"
	for _, c := range []struct {
		name   string
		caller principal.Principal
		path   string
		host   string
		header http.Header
		status int
		text   string
	}{
		{"version", alice, version, "", nil, 200, ""},
		{"host localhost with a port", alice, version, "localhost:80", nil, 200, ""},
		{"admin verifies", root, verify, "", nil, 200, ""},
		{"system verifies", principal.Self(), verify, "", nil, 200, ""},
		{"user verifies", alice, verify, "", nil, 403, "for root and the members of the carrel group"},
		{"no credentials", stranger, version, "", nil, 401, "no Unix peer credentials"},
		{"origin", root, version, "", http.Header{"Origin": {"http://localhost"}}, 403, "Origin"},
		{"fetch metadata", root, version, "", http.Header{"Sec-Fetch-Site": {"none"}}, 403, "Sec-Fetch-Site"},
		{"rebound host", root, version, "carrel.attacker.example", nil, 403, "carrel.attacker.example"},
		{"host with a prefix", root, version, "carrel.", nil, 403, "host"},
		{"unknown procedure", root, "/carrel.v1.WorkspaceService/Nuke", "", nil, 404, "no such procedure"},
		{"path with dots", root, "/x/../carrel.v1.SystemService/Version", "", nil, 404, "no such procedure"},
		{"doubled slash", root, "//carrel.v1.SystemService/Version", "", nil, 404, "no such procedure"},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket, _ := apitest.Serve(t, &apitest.Gate{}, &c.caller, api.Options{})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://carrel"+c.path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = c.host
			if c.header != nil {
				req.Header = c.header
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := unix(t, socket, false).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != c.status || !strings.Contains(string(body), c.text) {
				t.Errorf("status %d, body %s; want %d and %q", res.StatusCode, body, c.status, c.text)
			}
		})
	}
}

func TestASlowBodyIsCutOff(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{BodyTimeout: 20 * time.Millisecond})
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = io.WriteString(c, "POST /carrel.v1.SystemService/Version HTTP/1.1\r\nHost: carrel\r\nContent-Type: "+
		"application/json\r\nContent-Length: 100\r\n\r\n{")
	if err != nil {
		t.Fatal(err)
	}
	// The server answers with an error and ends the connection; without the limit
	// this read would wait for the rest of the body for ever.
	answer, err := io.ReadAll(c)
	if err != nil || bytes.Contains(answer, []byte(" 200 ")) || bytes.Count(answer, []byte("HTTP/1.1 ")) != 1 {
		t.Errorf("answer %q, %v", answer, err)
	}
}

func TestATimeLimitOfABodyDoesNotEndTheRequest(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{BodyTimeout: 50 * time.Millisecond})
	create(t, socket, "demo")
	res, err := commandsOn(t, socket).Exec(t.Context(),
		request(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{Argv: []string{"sleep", "0.2"}}}))
	if err != nil || res.Msg.GetStatus().GetCode() != 0 {
		t.Errorf("exec for longer than the body's limit: %v, %v", res, err)
	}
}
