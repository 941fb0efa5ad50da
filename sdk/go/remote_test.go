package carrel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/linux/cert"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// everywhere calls f with a client of each kind for which bytes pass through the daemon: over
// TLS, and on the Unix socket with a token.
func everywhere(t *testing.T, f func(t *testing.T, c *carrel.Client, g *apitest.Gate)) {
	t.Helper()
	with := func(name string, connect func(t *testing.T, g *apitest.Gate) carrel.Options) {
		t.Run(name, func(t *testing.T) {
			g := &apitest.Gate{}
			opts := connect(t, g)
			opts.Token = g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal()
			c, err := carrel.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if _, created, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "demo"}); err != nil || !created {
				t.Fatal(created, err)
			}
			f(t, c, g)
		})
	}
	with("TLS", func(t *testing.T, g *apitest.Gate) carrel.Options {
		addr, keys, _ := apitest.ServeTLS(t, g, api.Options{})
		return carrel.Options{Host: "https://" + addr, Fingerprint: keys.Fingerprint()}
	})
	with("socket", func(t *testing.T, g *apitest.Gate) carrel.Options {
		tokens := authn.NewTokens(g)
		g.TokensRevoked = tokens.Revoked
		socket, _ := apitest.Serve(t, g, &alice, api.Options{Tokens: tokens})
		return carrel.Options{Host: "unix://" + socket}
	})
}

func sh(script string) carrel.Spec { return carrel.Spec{Argv: []string{"sh", "-c", script}} }

func TestRemoteExec(t *testing.T) {
	everywhere(t, func(t *testing.T, c *carrel.Client, _ *apitest.Gate) {
		s := sh("cat; echo $X >&2; exit 3")
		s.Env = []string{"X=a=b"}
		res, err := c.Exec(t.Context(), "demo", s, []byte("in"))
		if err != nil || string(res.Stdout) != "in" || string(res.Stderr) != "a=b\n" || res.Status.Code != 3 {
			t.Errorf("%+v, %v", res, err)
		}
		if _, err := c.Exec(t.Context(), "nope", s, nil); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Exec(ctx, "demo", sh("sleep 1000"), nil); err == nil {
			t.Error("a call went on after its context")
		}
	})
}

func TestRemoteStart(t *testing.T) {
	everywhere(t, func(t *testing.T, c *carrel.Client, _ *apitest.Gate) {
		big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB, more than pipes hold
		s := sh("cat; echo done >&2; exit 5")
		s.Stdin = true
		cmd, err := c.Start(t.Context(), "demo", s)
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		status, err := cmd.Run(t.Context(), carrel.Streams{Stdin: bytes.NewReader(big), Stdout: &out, Stderr: &errs})
		if err != nil || status.Code != 5 || errs.String() != "done\n" || !bytes.Equal(out.Bytes(), big) {
			t.Errorf("%+v, %v, %d bytes, %q", status, err, out.Len(), errs.String())
		}
		if _, err := c.Start(t.Context(), "nope", s); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		if _, err := c.Start(t.Context(), "demo", carrel.Spec{Argv: []string{"/no/such/program"}}); err == nil {
			t.Error("a program that is not there was started")
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Start(done, "demo", s); err == nil {
			t.Error("started for a context that had ended")
		}
	})
}

// Without a reader the command ends, as it does behind a pipe.
func TestRemoteReaderGoes(t *testing.T) {
	everywhere(t, func(t *testing.T, c *carrel.Client, _ *apitest.Gate) {
		cmd, err := c.Start(t.Context(), "demo", carrel.Spec{Argv: []string{"yes"}})
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Close()
		if _, err := io.ReadFull(cmd.Stdout, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		cmd.Stdout.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if status, err := cmd.Wait(ctx); err != nil || status.Signal != 13 {
			t.Errorf("%+v, %v", status, err)
		}
	})
}

func TestRemoteTerminalAndSignals(t *testing.T) {
	everywhere(t, func(t *testing.T, c *carrel.Client, g *apitest.Gate) {
		s := sh(`stty size; read line; echo "got $line"; stty size; exit 4`)
		s.Stdin, s.Terminal = true, &carrel.WindowSize{Rows: 30, Cols: 90}
		cmd, err := c.Start(t.Context(), "demo", s)
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Close()
		var shown bytes.Buffer
		buf := make([]byte, 1024)
		until := func(text string) {
			t.Helper()
			_ = cmd.Terminal.SetReadDeadline(time.Now().Add(20 * time.Second))
			for !strings.Contains(shown.String(), text) {
				n, err := cmd.Terminal.Read(buf)
				shown.Write(buf[:n])
				if err != nil {
					t.Fatalf("%q is not in %q: %v", text, shown.String(), err)
				}
			}
		}
		until("30 90")
		if err := cmd.Resize(t.Context(), carrel.WindowSize{Rows: 11, Cols: 22}); err != nil {
			t.Fatal(err)
		}
		if _, err := cmd.Terminal.WriteString("hello\n"); err != nil {
			t.Fatal(err)
		}
		until("got hello")
		until("11 22")
		if status, err := cmd.Wait(t.Context()); err != nil || status.Code != 4 {
			t.Errorf("%+v, %v", status, err)
		}
		if rest, err := io.ReadAll(cmd.Terminal); err != nil {
			t.Errorf("%q, %v", rest, err)
		}

		sleeper, err := c.Start(t.Context(), "demo", sh("sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		defer sleeper.Close()
		if err := sleeper.Signal(t.Context(), 15); err != nil {
			t.Fatal(err)
		}
		if status, err := sleeper.Wait(t.Context()); err != nil || status.Signal != 15 {
			t.Errorf("%+v, %v", status, err)
		}
	})
}

// Detached commands, their output, and what cannot be had from elsewhere.
func TestRemoteDetached(t *testing.T) {
	everywhere(t, func(t *testing.T, c *carrel.Client, _ *apitest.Gate) {
		res, err := c.Commands().Detach(t.Context(), connect.NewRequest(&carrelv1.DetachRequest{
			Workspace: "demo", Command: &carrelv1.Command{Argv: []string{"sh", "-c", "echo one; echo two"}},
		}))
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Attach(t.Context(), "demo", res.Msg.GetCommandId(), true)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if out, err := io.ReadAll(a.File); err != nil || string(out) != "one\ntwo\n" || a.Terminal {
			t.Errorf("%q, %v", out, err)
		}
		if err := a.Resize(t.Context(), carrel.WindowSize{}); !errdefs.IsNotImplemented(err) {
			t.Error(err)
		}
		if _, err := c.Attach(t.Context(), "demo", "c-0000000000000000", false); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		if _, _, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "m"},
			carrel.Mount{Source: "/tmp", Destination: "/workspace"}); !errdefs.IsFailedPrecondition(err) {
			t.Error(err)
		}
	})
}

func TestARevokedTokenEndsItsCommand(t *testing.T) {
	everywhere(t, func(t *testing.T, c *carrel.Client, g *apitest.Gate) {
		cmd, err := c.Start(t.Context(), "demo", sh("sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Close()
		all, err := g.ListTokens(t.Context(), alice)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if _, err := g.RevokeToken(t.Context(), alice, all[0].ID); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if status, err := cmd.Wait(ctx); !errdefs.IsUnauthorized(err) {
			t.Errorf("%+v, %v", status, err)
		}
		if _, err := c.Exec(t.Context(), "demo", sh("true"), nil); !errdefs.IsUnauthorized(err) {
			t.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	good := token.New().Reveal()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(good+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const pin = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, o := range map[string]carrel.Options{
		"TLS":            {Host: "https://192.0.2.1:7443", Token: good, Fingerprint: pin},
		"TLS, IPv6":      {Host: "https://[2001:db8::1]:7443/", TokenFile: file},
		"socket":         {Host: "unix:///run/x.sock", Token: good},
		"socket, no pin": {Host: "unix:///run/x.sock", Fingerprint: "of another host's"},
	} {
		if _, err := carrel.New(o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, o := range map[string]carrel.Options{
		"plain HTTP":          {Host: "http://192.0.2.1:7443", Token: good},
		"no port":             {Host: "https://192.0.2.1", Token: good},
		"user":                {Host: "https://u:p@192.0.2.1:7443", Token: good},
		"path":                {Host: "https://192.0.2.1:7443/x", Token: good},
		"relative socket":     {Host: "unix://run/x.sock"},
		"mistyped token":      {Host: "unix:///run/x.sock", Token: good[:len(good)-1]},
		"fingerprint":         {Host: "https://192.0.2.1:7443", Fingerprint: "sha256:00"},
		"no file":             {Host: "unix:///run/x.sock", TokenFile: "/nowhere"},
		"file others can see": {Host: "unix:///run/x.sock", TokenFile: open},
		// Whoever names a file wants a token's rights and not this user's.
		"empty file": {Host: "unix:///run/x.sock", TokenFile: empty},
	} {
		_, err := carrel.New(o)
		if err == nil {
			t.Errorf("%s passes", name)
		} else if strings.Contains(err.Error(), good[20:]) {
			t.Errorf("%s: the error holds the token: %v", name, err)
		}
	}
}

// What a program names itself does not get a token that was meant for another host.
func TestTheEnvironmentGoesWithItsHost(t *testing.T) {
	g := &apitest.Gate{}
	tokens := authn.NewTokens(g)
	socket, _ := apitest.Serve(t, g, &alice, api.Options{Tokens: tokens})
	t.Setenv(carrel.TokenEnv, g.Issue(t, alice, principal.Wanted{Roles: principal.Agent}).Reveal())
	t.Setenv(carrel.HostEnv, "unix://"+socket)
	for host, want := range map[string]string{"": "token", "unix://" + socket: "user"} {
		c, err := carrel.New(carrel.Options{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		res, err := c.Tokens().WhoAmI(t.Context(), connect.NewRequest(&carrelv1.WhoAmIRequest{}))
		if err != nil || res.Msg.GetKind() != want {
			t.Errorf("host %q: %v, %v", host, res, err)
		}
	}
}

// Without a fingerprint a file of authorities is trusted, and only that.
func TestAuthorities(t *testing.T) {
	g := &apitest.Gate{}
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{})
	own, err := keys.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cert.Open(cert.Config{Dir: t.TempDir(), Names: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	secret := g.Issue(t, alice, principal.Wanted{Roles: principal.Agent}).Reveal()
	for name, c := range map[string]struct {
		der     []byte
		trusted bool
	}{"its own": {own.Certificate[0], true}, "another's": {theirs.Certificate[0], false}} {
		file := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.der}), 0o600); err != nil {
			t.Fatal(err)
		}
		client, err := carrel.New(carrel.Options{Host: "https://" + addr, Token: secret, CAFile: file})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		_, err = client.System().Version(t.Context(), connect.NewRequest(&carrelv1.VersionRequest{}))
		if c.trusted != (err == nil) || !c.trusted && !strings.Contains(err.Error(), "--ca-file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, "/nowhere"} {
		if _, err := carrel.New(carrel.Options{Host: "https://" + addr, CAFile: path}); err == nil {
			t.Errorf("%s is taken", path)
		}
	}
}

func TestAnotherServer(t *testing.T) {
	g := &apitest.Gate{}
	addr, _, _ := apitest.ServeTLS(t, g, api.Options{})
	secret := g.Issue(t, alice, principal.Wanted{Roles: principal.Agent}).Reveal()
	for name, pin := range map[string]string{"another key": "sha256:" + strings.Repeat("00", 32), "no pin": ""} {
		c, err := carrel.New(carrel.Options{Host: "https://" + addr, Token: secret, Fingerprint: pin})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.System().Version(t.Context(), connect.NewRequest(&carrelv1.VersionRequest{})); !errdefs.IsUnauthorized(err) ||
			!strings.Contains(err.Error(), "fingerprint") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l := g.Logins(); len(l) != 0 {
		t.Errorf("a token was sent to a server that was not the right one: %v", l)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, err := carrel.New(carrel.Options{Host: "https://" + l.Addr().String(), Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.System().Version(t.Context(), connect.NewRequest(&carrelv1.VersionRequest{})); !errdefs.IsUnavailable(err) ||
		errors.Is(err, io.EOF) {
		t.Errorf("nobody there: %v", err)
	}
}

// watched tells of the end of a body.
type watched struct {
	io.ReadCloser
	ended chan<- struct{}
}

func (w watched) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		select {
		case w.ended <- struct{}{}:
		default:
		}
	}
	return n, err
}

// A command without input sends no more once it has started: a reverse proxy ends what is sent too slowly.
func TestNothingMoreIsSent(t *testing.T) {
	g := &apitest.Gate{}
	addr, _, _ := apitest.ServeTLS(t, g, api.Options{})
	to, err := url.Parse("https://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	proxy.FlushInterval = -1
	ended := make(chan struct{}, 1)
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/Stream") {
			r.Body = watched{r.Body, ended}
		}
		proxy.ServeHTTP(w, r)
	}))
	front.EnableHTTP2 = true
	front.StartTLS()
	defer front.Close()
	defer front.CloseClientConnections()
	c, err := carrel.New(carrel.Options{
		Host: front.URL, Fingerprint: cert.Fingerprint(front.Certificate()),
		Token: g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "demo"}); err != nil {
		t.Fatal(err)
	}
	for _, stdin := range []bool{false, true} {
		goOn := filepath.Join(t.TempDir(), "go")
		s := sh("cat; until [ -e " + goOn + " ]; do sleep 0.02; done; echo out")
		s.Stdin = stdin
		cmd, err := c.Start(t.Context(), "demo", s)
		if err != nil {
			t.Fatal(err)
		}
		if stdin {
			cmd.Stdin.Close()
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("the client's half stays open")
		}
		if err := os.WriteFile(goOn, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(cmd.Stdout)
		if st, werr := cmd.Wait(t.Context()); string(b) != "out\n" || err != nil || werr != nil || st.Code != 0 {
			t.Errorf("%q, %v, %+v, %v", b, err, st, werr)
		}
		cmd.Close()
	}
}
