package fleet_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// fake is a server within the test, for what sshd cannot be made to do. raw has each connection before anything is said;
// without it a session is handed to shell, with the text that its shell would read.
type fake struct {
	sshd
	signer   ssh.Signer
	banner   string
	more     chan string  // what a shell reads after its script
	login    func() error // nil lets everybody in
	silent   bool         // once a channel is open nothing is read any more
	dies     atomic.Int32 // so many connections end when a channel is to be opened
	raw      func(net.Conn)
	requests func(<-chan *ssh.Request)
	exec     func(*ssh.Request) bool // false: it is not answered
	shell    func(ch ssh.Channel, script string)
}

func (f *fake) start(t *testing.T) {
	t.Helper()
	f.signer, _ = newKey(t)
	f.key, f.ip = f.signer.PublicKey(), loopback()
	ln, err := net.Listen("tcp", net.JoinHostPort(f.ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	f.port = ln.Addr().(*net.TCPAddr).Port
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				defer conn.Close()
				if f.raw != nil {
					f.raw(conn)
					return
				}
				f.serve(&deaf{Conn: conn, ended: ctx.Done()}, &wg)
			})
		}
	})
	t.Cleanup(func() { cancel(); ln.Close(); wg.Wait() })
}

// deaf is a connection that reads nothing any more once it is on.
type deaf struct {
	net.Conn
	on    atomic.Bool
	ended <-chan struct{}
}

func (d *deaf) Read(p []byte) (int, error) {
	if d.on.Load() {
		<-d.ended
	}
	return d.Conn.Read(p)
}

func (f *fake) serve(conn net.Conn, wg *sync.WaitGroup) {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			if f.login != nil {
				return nil, f.login()
			}
			return nil, nil
		},
		BannerCallback: func(ssh.ConnMetadata) string { return f.banner },
		MaxAuthTries:   -1,
	}
	config.AddHostKey(f.signer)
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	wg.Go(func() {
		if f.requests != nil {
			f.requests(requests)
		}
		ssh.DiscardRequests(requests)
	})
	for n := range channels {
		if f.dies.Add(-1) >= 0 {
			conn.Close()
			return
		}
		ch, requests, err := n.Accept()
		if err != nil {
			return
		}
		if f.silent {
			conn.(*deaf).on.Store(true)
			go ssh.DiscardRequests(requests)
			continue
		}
		wg.Go(func() {
			for r := range requests {
				if r.Type == "exec" && f.exec != nil && !f.exec(r) {
					continue
				}
				r.Reply(r.Type == "exec", nil)
			}
		})
		if f.shell != nil {
			wg.Go(func() {
				var script strings.Builder
				for in := bufio.NewReader(ch); ; {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					if script.WriteString(line); line == "}\n" {
						wg.Go(func() {
							b, _ := io.ReadAll(in) // until the client closes it
							if f.more != nil {
								f.more <- string(b)
							}
						})
						f.shell(ch, script.String())
						return
					}
				}
			})
		}
	}
}

// mark returns the mark that a script would print.
func mark(script string) string {
	i := strings.Index(script, "carrel-")
	if i < 0 {
		return "none"
	}
	return script[i : i+len("carrel-")+26]
}

func status(ch ssh.Channel, n uint32) {
	ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{n}))
	ch.Close()
}

// against runs a step on a fake.
func against(t *testing.T, f *fake, config func(*fleet.Config), s fleet.Step) (fleet.Result, error) {
	t.Helper()
	f.start(t)
	l := newLab(t)
	l.known(f.line(f.key))
	l.config.KillGrace = 10 * time.Millisecond
	if config != nil {
		config(&l.config)
	}
	if s.Argv == nil {
		s.Argv = []string{"true"}
	}
	return l.client().Run(t.Context(), l.host("fake", &f.sshd), s)
}

func short(c *fleet.Config) { c.ConnectTimeout = 300 * time.Millisecond }

func TestHostileServers(t *testing.T) {
	t.Parallel()
	t.Run("silence", func(t *testing.T) {
		_, err := against(t, &fake{raw: func(c net.Conn) { io.Copy(io.Discard, c) }}, short, fleet.Step{})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "in time") {
			t.Error(err)
		}
	})
	t.Run("endless lines before the version", func(t *testing.T) {
		var sent int
		_, err := against(t, &fake{raw: func(c net.Conn) {
			for {
				n, err := c.Write(bytes.Repeat([]byte("\x1b[2Jhello\r\n"), 1000))
				if sent += n; err != nil {
					return
				}
			}
		}}, nil, fleet.Step{})
		if !errdefs.IsUnavailable(err) || strings.Contains(err.Error(), "\x1b") {
			t.Error(err)
		}
	})
	t.Run("endless messages in the handshake", func(t *testing.T) {
		// SSH_MSG_IGNORE in the clear, before the keys: 32 KiB each.
		packet := append([]byte{0, 0, 0x80, 0, 8, 2, 0, 0, 0x7f, 0xf2}, make([]byte, 0x8000-6)...)
		_, err := against(t, &fake{raw: func(c net.Conn) {
			fmt.Fprint(c, "SSH-2.0-x\r\n")
			for {
				if _, err := c.Write(packet); err != nil {
					return
				}
			}
		}}, nil, fleet.Step{})
		if !errdefs.IsUnavailable(err) {
			t.Error(err)
		}
	})
	t.Run("a long banner for every key", func(t *testing.T) {
		asked := 0
		f := &fake{login: func() error {
			asked++
			return &ssh.BannerError{Err: errors.New("no"), Message: strings.Repeat("x", 200<<10)}
		}}
		socket := agentWith(t, 20)
		_, err := against(t, f, func(c *fleet.Config) { c.AgentSocket = socket }, fleet.Step{})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "before the login was done") || asked < 2 || asked > 7 {
			t.Errorf("%v, after %d keys", err, asked)
		}
	})
	t.Run("a long banner and noise", func(t *testing.T) {
		r, err := against(t, &fake{banner: strings.Repeat("\x1b]0;x\a", 10000), shell: func(ch ssh.Channel, script string) {
			fmt.Fprintf(ch, "welcome\n%s run 0\nout", mark(script))
			fmt.Fprintf(ch.Stderr(), "%s%s\nerr", "no locale\n", mark(script))
			status(ch, 0)
		}}, nil, fleet.Step{})
		if err != nil || len(r.Banner) != fleet.MaxBanner || string(r.Stdout.Bytes()) != "out" || string(r.Stderr.Bytes()) != "err" ||
			string(r.Noise) != "welcome\nno locale\n" || !r.OK() {
			t.Errorf("%v %d %q %q %q", err, len(r.Banner), r.Stdout.Bytes(), r.Stderr.Bytes(), r.Noise)
		}
	})
	t.Run("long noise", func(t *testing.T) {
		r, err := against(t, &fake{shell: func(ch ssh.Channel, script string) {
			fmt.Fprintf(ch, "%s%s run 5\nout", strings.Repeat("noise\n", 5000), mark(script))
			status(ch, 0)
		}}, nil, fleet.Step{})
		if err != nil || len(r.Noise) != fleet.MaxBanner || string(r.Stdout.Bytes()) != "out" {
			t.Errorf("%d, %q, %v", len(r.Noise), r.Stdout.Bytes(), err)
		}
	})
	t.Run("no shell", func(t *testing.T) {
		_, err := against(t, &fake{shell: func(ch ssh.Channel, _ string) {
			fmt.Fprint(ch, "This account \x1b[2J is not available.\n")
			status(ch, 1)
		}}, nil, fleet.Step{})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "This account ?[2J is not available.") {
			t.Error(err)
		}
	})
	t.Run("endless noise", func(t *testing.T) {
		_, err := against(t, &fake{shell: func(ch ssh.Channel, _ string) {
			for {
				if _, err := ch.Write(make([]byte, 30000)); err != nil {
					return
				}
			}
		}}, nil, fleet.Step{Timeout: 200 * time.Millisecond})
		if !errors.Is(err, context.DeadlineExceeded) || len(err.Error()) > 2000 {
			t.Errorf("%v", err)
		}
	})
	t.Run("no answer to exec", func(t *testing.T) {
		_, err := against(t, &fake{exec: func(*ssh.Request) bool { return false }}, short, fleet.Step{})
		if !errdefs.IsUnavailable(err) {
			t.Error(err)
		}
	})
	t.Run("exec is refused", func(t *testing.T) {
		_, err := against(t, &fake{exec: func(r *ssh.Request) bool { r.Reply(false, nil); return false }}, nil, fleet.Step{})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "refuses commands") {
			t.Error(err)
		}
	})
	t.Run("no status", func(t *testing.T) {
		r, err := against(t, &fake{shell: func(ch ssh.Channel, script string) {
			fmt.Fprintf(ch, "%s run 5\n", mark(script))
			ch.Close()
		}}, nil, fleet.Step{})
		if err != nil || r.Outcome != fleet.Lost || r.Why == "" || r.OK() {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("a strange signal", func(t *testing.T) {
		r, err := against(t, &fake{shell: func(ch ssh.Channel, script string) {
			fmt.Fprintf(ch, "%s run 5\n", mark(script))
			ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
				Signal        string
				Core          bool
				Message, Lang string
			}{Signal: "\x1b[2J"}))
			ch.Close()
		}}, nil, fleet.Step{})
		if err != nil || r.Signal != "unknown" || r.OK() {
			t.Errorf("%+v, %v", r, err)
		}
	})
	// What a host says of a kill is believed only where it is whole, and for a group that a step can have.
	for name, x := range map[string]struct{ says, answer string }{
		"no group":         {"run 0", "gone"},
		"init":             {"run 1", "gone"},
		"a negative group": {"run -5", "gone"},
		"a text":           {"run 5;id", "gone"},
		"left":             {"run 5", "left kill: Operation not permitted"},
		"nothing":          {"run 5", ""},
	} {
		t.Run("kill: "+name, func(t *testing.T) {
			step := make(chan ssh.Channel, 2)
			var once sync.Once
			r, err := against(t, &fake{shell: func(ch ssh.Channel, script string) {
				begins := false
				once.Do(func() { begins = true })
				if begins {
					fmt.Fprintf(ch, "%s %s\n", mark(script), x.says)
					step <- ch
					return
				}
				if x.answer != "" {
					fmt.Fprintf(ch, "%s %s\n", mark(script), x.answer)
				}
				status(ch, 0)
				status(<-step, 0) // as if it had been killed
			}}, short, fleet.Step{Timeout: 100 * time.Millisecond})
			if err != nil || r.Outcome != fleet.TimedOut || r.Kill.Confirmed || !r.Kill.Tried || r.Kill.Why == "" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	// The group is said to be gone, and the channel stays open.
	t.Run("kill: a lie", func(t *testing.T) {
		var once sync.Once
		r, err := against(t, &fake{shell: func(ch ssh.Channel, script string) {
			says := "gone"
			once.Do(func() { says = "run 5" })
			fmt.Fprintf(ch, "%s %s\n", mark(script), says)
			if says == "gone" {
				status(ch, 0)
			}
		}}, nil, fleet.Step{Timeout: 100 * time.Millisecond})
		if err != nil || r.Kill.Confirmed || !strings.Contains(r.Kill.Why, "holds its output open") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A host that stops answering is noticed, and the step is lost.
func TestKeepAlive(t *testing.T) {
	f := &fake{requests: func(in <-chan *ssh.Request) {
		for range in { // none is answered
		}
	}, shell: func(ch ssh.Channel, script string) { fmt.Fprintf(ch, "%s run 5\n", mark(script)) }}
	r, err := against(t, f, func(c *fleet.Config) { c.KeepAlive = 20 * time.Millisecond }, fleet.Step{})
	if err != nil || r.Outcome != fleet.Lost {
		t.Errorf("%+v, %v", r, err)
	}
}

// A caller that does not wait any more leaves a connection that nobody wants, and one that others want stays.
func TestConnectCanceled(t *testing.T) {
	var in sync.WaitGroup
	in.Add(1)
	f := &fake{raw: func(c net.Conn) { in.Done(); io.Copy(io.Discard, c) }}
	f.start(t)
	l := newLab(t)
	l.known(f.line(f.key))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { in.Wait(); cancel() }()
	_, err := l.client().Run(ctx, l.host("fake", &f.sshd), fleet.Step{Argv: []string{"true"}})
	if !strings.Contains(fmt.Sprint(err), "canceled") {
		t.Error(err)
	}
}

// A step that was canceled, or is not known to begin, is not let go: an error says that it did not run.
func TestNotLetGo(t *testing.T) {
	for name, x := range map[string]struct {
		says string // after the mark
		ran  bool
	}{
		"begins": {" run 5", true}, "directory": {" cwd", false}, "something": {" gone", false}, "nothing": {"", false},
	} {
		f := &fake{more: make(chan string, 1)}
		f.shell = func(ch ssh.Channel, script string) {
			if x.says != "" {
				fmt.Fprintf(ch, "%s%s\n", mark(script), x.says)
			}
			if x.ran {
				f.more <- <-f.more // it has been read
			}
			status(ch, 0)
		}
		r, err := against(t, f, nil, fleet.Step{})
		if got := <-f.more; (got == "go\n") != x.ran || (err == nil) != x.ran || !x.ran && got != "" {
			t.Errorf("%s: %q was sent: %+v, %v", name, got, r, err)
		}
	}
	// The host says that it begins after the caller has gone.
	ctx, cancel := context.WithCancel(t.Context())
	back := make(chan struct{})
	f := &fake{more: make(chan string, 1), shell: func(ch ssh.Channel, script string) {
		cancel()
		<-back
		fmt.Fprintf(ch, "%s run 5\n", mark(script))
		status(ch, 0)
	}}
	f.start(t)
	l := newLab(t)
	l.known(f.line(f.key))
	_, err := l.client().Run(ctx, l.host("late", &f.sshd), fleet.Step{Argv: []string{"true"}})
	close(back)
	if got := <-f.more; got != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("%q was sent: %v", got, err)
	}
}

// A connection that ends before a step was sent is made again once, and no more.
func TestEndedConnection(t *testing.T) {
	for n, ok := range map[int32]bool{0: true, 1: true, 2: false} {
		f := &fake{shell: func(ch ssh.Channel, script string) {
			fmt.Fprintf(ch, "%s run 5\n", mark(script))
			status(ch, 0)
		}}
		f.dies.Store(n)
		if r, err := against(t, f, nil, fleet.Step{}); (err == nil) != ok || ok != r.OK() || !ok && !errdefs.IsUnavailable(err) {
			t.Errorf("%d: %+v, %v", n, r, err)
		}
	}
}

// A host on the way that passes nothing on, and does not close what it opened, holds up neither a step nor Close.
func TestSilentJump(t *testing.T) {
	f := &fake{silent: true}
	f.start(t)
	l := newLab(t)
	l.known(f.line(f.key))
	l.config.ConnectTimeout = 300 * time.Millisecond
	c := l.client()
	h := l.host("far", &sshd{ip: "192.0.2.1", port: 22})
	h.Jump = []fleet.Host{l.host("near", &f.sshd)}
	_, err := c.Run(t.Context(), h, fleet.Step{Argv: []string{"true"}})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "in time") {
		t.Error(err)
	}
	c.Close()
}
