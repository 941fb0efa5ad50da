package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/note"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/daemon"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	"github.com/carrel-dev/carrel/test/leaks"
)

const asChild = "DAEMON_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		// The daemon itself, as the user that the parent chose.
		if err := daemon.Run(context.Background(), os.Args[1:], os.Environ(), daemon.Streams{Out: os.Stdout, Err: os.Stderr}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaks.Main(m)
}

// brokerDouble is a test double of the broker: it keeps workspaces in memory, and signs
// every checkpoint that it is given.
type brokerDouble struct {
	mu     sync.Mutex
	all    map[string]brokerapi.Workspace
	signer note.Signer
	public string
}

func (b *brokerDouble) countersign(r *jsonrpc.Request) (any, []*os.File, error) {
	var p brokerapi.CountersignParams
	if err := r.Decode(&p); err != nil {
		return nil, nil, err
	}
	root, err := checkpoint.ParseHash(p.Root)
	if err != nil {
		return nil, nil, err
	}
	signed, err := checkpoint.Sign(checkpoint.Checkpoint{Origin: p.Origin, Size: p.Size, Root: root}, b.signer)
	return brokerapi.CountersignResult{Note: string(signed), Key: b.public, Size: p.Size, Root: p.Root}, nil, err
}

func (b *brokerDouble) handle(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch r.Method {
	case brokerapi.MethodHello:
		return brokerapi.HelloResult{Version: brokerapi.Version}, nil, nil
	case brokerapi.MethodCountersign:
		return b.countersign(r)
	case brokerapi.MethodCreate:
		var p brokerapi.CreateParams
		if err := r.Decode(&p); err != nil {
			return nil, nil, err
		}
		w := brokerapi.Workspace{
			Name: p.Name, State: workspace.StateStopped, User: string(p.Name), IDs: workspace.IDsFrom(5000), Home: "/h", Limits: p.Limits,
		}
		b.all[string(p.Name)] = w
		return w, nil, nil
	case brokerapi.MethodList:
		res := brokerapi.ListResult{}
		for _, w := range b.all {
			res.Workspaces = append(res.Workspaces, w)
		}
		return res, nil, nil
	}
	return nil, nil, jsonrpc.MethodNotFound(r.Method)
}

type fixture struct {
	t   *testing.T
	cfg *config.Config
	log lockedBuffer
	// stop ends the running daemon and returns its error.
	stop func() error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func setUp(t *testing.T) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg, err := config.Load(config.Sources{Flags: map[string]string{
		"data-dir": filepath.Join(dir, "data"), "runtime-dir": filepath.Join(dir, "run"), "socket-group": "", "socket-mode": "0600",
	}, File: emptyFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{cfg.DataDir, cfg.RuntimeDir, filepath.Join(cfg.RuntimeDir, "x")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f := &fixture{t: t, cfg: cfg}
	f.broker()
	return f
}

func emptyFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (f *fixture) broker() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(f.cfg.RuntimeDir, "broker.sock"), Net: "unix"})
	if err != nil {
		f.t.Fatal(err)
	}
	secret, public, err := checkpoint.NewKey(rand.Reader, "carrel-broker-double")
	if err != nil {
		f.t.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		f.t.Fatal(err)
	}
	b := &brokerDouble{all: map[string]brokerapi.Workspace{}, signer: signer, public: public}
	var wg sync.WaitGroup
	var conns []*jsonrpc.Conn
	wg.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conns = append(conns, jsonrpc.New(c, jsonrpc.Config{Handler: b.handle}))
		}
	})
	f.t.Cleanup(func() {
		l.Close()
		wg.Wait()
		for _, c := range conns {
			c.Close()
		}
	})
}

func (f *fixture) socket() string { return filepath.Join(f.cfg.RuntimeDir, "carrel.sock") }

// start runs the daemon until it says that it is ready, or fails.
func (f *fixture) start(acceptDamage bool) error {
	f.t.Helper()
	rd, wr, err := os.Pipe()
	if err != nil {
		f.t.Fatal(err)
	}
	defer rd.Close()
	fd, err := syscall.Dup(int(wr.Fd()))
	wr.Close()
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := daemon.Serve(ctx, f.cfg, &f.log, fd, acceptDamage)
		if err != nil {
			syscall.Close(fd)
		}
		ended <- err
	}()
	f.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	f.t.Cleanup(func() { f.stop() })
	line, err := bufio.NewReader(rd).ReadString('\n')
	if err != nil {
		return f.stop()
	}
	if line != "ready\n" {
		f.t.Errorf("ready line %q", line)
	}
	return nil
}

func (f *fixture) call(method, body string) (map[string]any, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", f.socket())
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "http://localhost/carrel.v1."+method, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return out, errors.New(res.Status)
	}
	return out, nil
}

func TestServesAndStops(t *testing.T) {
	f := setUp(t)
	if err := f.start(false); err != nil {
		t.Fatal(err)
	}
	if out, err := f.call("SystemService/Version", `{}`); err != nil || out["version"] == "" {
		t.Errorf("%v %v", out, err)
	}
	out, err := f.call("WorkspaceService/Create", `{"key":"demo","noStart":true}`)
	if err != nil || out["created"] != true {
		t.Fatalf("%v %v", out, err)
	}
	fi, err := os.Lstat(f.socket())
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi, err)
	}
	// A second one on the same data or socket is refused.
	second := &fixture{t: t, cfg: f.cfg}
	if err := second.start(false); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("second daemon: %v", err)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(f.socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	// What was made is there after a restart, and the log tells of both runs.
	if err := f.start(false); err != nil {
		t.Fatal(err)
	}
	if out, err := f.call("WorkspaceService/Get", `{"workspace":"demo"}`); err != nil || !strings.Contains(fmt.Sprint(out), "ws-2a97516c") {
		t.Errorf("%v %v", out, err)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(daemon.AuditPath(f.cfg))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := audit.VerifyFile(t.Context(), daemon.AuditPath(f.cfg), audit.Head{}); err != nil || v.Bad != nil {
		t.Errorf("%+v %v", v.Bad, err)
	}
	if bytes.Count(b, []byte(`"daemon.started"`)) != 2 || bytes.Count(b, []byte(`"daemon.stopped"`)) != 2 {
		t.Errorf("log:\n%s", b)
	}
}

// A follower would hold a stop up for ever if it were waited for.
func TestStopEndsFollowers(t *testing.T) {
	f := setUp(t)
	if err := f.start(false); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", f.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	msg := []byte(`{"follow":true}`)
	fmt.Fprintf(
		c, "POST /carrel.v1.AuditService/Show HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/connect+json\r\nConnect-Protocol-Version: 1\r\nContent-Length: %d\r\n\r\n\x00\x00\x00\x00%c%s", len(msg)+5, len(msg), msg,
	)
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q %v", line, err)
	}
	if err := f.stop(); err != nil {
		t.Error(err)
	}
}

func TestStartFailsPlainly(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *fixture) error
		says  string
	}{
		"no broker": {
			func(f *fixture) error { return os.Remove(filepath.Join(f.cfg.RuntimeDir, "broker.sock")) },
			"is carrel-broker running?",
		},
		"no group":        {func(f *fixture) error { f.cfg.SocketGroup = "carrel-no-such-group"; return nil }, "groupadd"},
		"wide directory":  {func(f *fixture) error { return os.Mkdir(filepath.Join(f.cfg.DataDir, "daemon"), 0o755) }, "install -d -m 0700"},
		"no data dir":     {func(f *fixture) error { return os.Remove(f.cfg.DataDir) }, "carrel up"},
		"file for socket": {func(f *fixture) error { return os.WriteFile(f.socket(), nil, 0o600) }, "no socket"},
		"symlink for one": {func(f *fixture) error { return os.Symlink("/etc/passwd", f.socket()) }, "no socket"},
		"damaged database": {func(f *fixture) error {
			return errors.Join(os.Mkdir(filepath.Join(f.cfg.DataDir, "daemon"), 0o700),
				os.WriteFile(filepath.Join(f.cfg.DataDir, "daemon", "carrel.db"), bytes.Repeat([]byte("x"), 8192), 0o600))
		}, "cannot open the database"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			if err := c.spoil(f); err != nil {
				t.Fatal(err)
			}
			if err := f.start(false); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	f := setUp(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Listen(f.socket(), -1, 0o600, ""); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "another carreld answers") {
		t.Errorf("a socket in use: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := f.start(false); err != nil {
		t.Error(err)
	}
}

func TestDamagedAuditLog(t *testing.T) {
	f := setUp(t)
	if err := f.start(false); err != nil {
		t.Fatal(err)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	path := daemon.AuditPath(f.cfg)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(b, []byte("daemon.stopped"), []byte("daemon.stoppex"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.start(false); !errors.Is(err, audit.ErrDamaged) || !strings.Contains(err.Error(), "--accept-audit-damage") {
		t.Errorf("damaged log: %v", err)
	}
	var out bytes.Buffer
	args := []string{"--verify-audit", "--config", emptyFile(t), "--data-dir", f.cfg.DataDir}
	err = daemon.Run(t.Context(), args, nil, daemon.Streams{Out: &out, Err: io.Discard})
	if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "edited at record") {
		t.Errorf("verify: %v", err)
	}
	if err := f.start(true); err != nil {
		t.Fatal(err)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Run(t.Context(), args, nil, daemon.Streams{Out: &out, Err: io.Discard}); err != nil ||
		!strings.Contains(out.String(), "holds: 3 records") {
		t.Errorf("%v %s", err, out.String())
	}
	// There are one or two, as the daemon ends before or after it has signed once more.
	if said := out.String(); !regexp.MustCompile(`\n(1 checkpoint|2 checkpoints); signed`).MatchString(said) ||
		!strings.Contains(said, ", not anchored; verified") {
		t.Errorf("it says %s", said)
	}
	if one := daemon.Several(1, "checkpoint"); one != "1 checkpoint" {
		t.Errorf("one is %q", one)
	}
}

func TestCommandLine(t *testing.T) {
	file := emptyFile(t)
	for _, c := range []struct {
		args []string
		out  string
		is   error
		says string
	}{
		{[]string{"--version"}, "carreld ", nil, ""},
		{[]string{"--help"}, "", daemon.ErrHelp, ""},
		{[]string{"--nonsense"}, "", daemon.ErrUsage, "-nonsense"},
		{[]string{"stray"}, "", daemon.ErrUsage, "stray"},
		{[]string{"--ready-fd", "1"}, "", daemon.ErrUsage, "--ready-fd"},
		{[]string{"--config", file, "--log-level", "loud"}, "", errdefs.ErrInvalidArgument, "--log-level"},
		{[]string{"--config", file, "--print-config", "--limits-memory", "2GiB"}, `"2GiB"`, nil, ""},
	} {
		var out, help bytes.Buffer
		err := daemon.Run(t.Context(), c.args, nil, daemon.Streams{Out: &out, Err: &help})
		if !errors.Is(err, c.is) || !strings.Contains(out.String(), c.out) || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v: %q, %v", c.args, out.String(), err)
		}
		if err != nil && !errors.Is(c.is, daemon.ErrHelp) && strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error of several lines: %v", c.args, err)
		}
	}
}
