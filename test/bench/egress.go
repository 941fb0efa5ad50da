package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/nameserver"
)

// clientArg has this program be a client: it reads lines of stdin, and prints for each how long it took, in nanoseconds.
const clientArg = "-http-client"

// The lines that a client reads.
const (
	lineNew  = "new"  // a connection of its own, with one request
	lineKept = "kept" // a request on a connection that is kept
	lineBulk = "bulk" // bulkBytes, received
)

const bulkBytes = 256 << 20

// client is the client for BENCH_URL, through BENCH_PROXY if that is set.
func client(in io.Reader, out io.Writer) error {
	server := os.Getenv("BENCH_URL")
	var proxy func(*http.Request) (*url.URL, error)
	if p := os.Getenv("BENCH_PROXY"); p != "" {
		u, err := url.Parse(p)
		if err != nil {
			return err
		}
		proxy = http.ProxyURL(u)
	}
	get := func(c *http.Client, path string) (time.Duration, error) {
		began := time.Now()
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server+path, nil) //nolint:gosec // it is the bench's own
		if err != nil {
			return 0, err
		}
		a, err := c.Do(r) //nolint:gosec // as above
		if err != nil {
			return 0, err
		}
		if a.StatusCode != http.StatusOK {
			err = fmt.Errorf("the server answers %s", a.Status)
		}
		_, cerr := io.Copy(io.Discard, a.Body)
		err = errors.Join(err, cerr)
		return time.Since(began), errors.Join(err, a.Body.Close())
	}
	kept := &http.Client{Transport: &http.Transport{Proxy: proxy, MaxIdleConnsPerHost: 1}}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		c, path := kept, "/"
		switch lines.Text() {
		case lineNew:
			c = &http.Client{Transport: &http.Transport{Proxy: proxy, DisableKeepAlives: true}}
		case lineBulk:
			path = "/bulk"
		}
		took, err := get(c, path)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, took.Nanoseconds()); err != nil {
			return err
		}
	}
	return nil
}

// webClient is a client that runs.
type webClient struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

func (b *bench) client(name string, c *exec.Cmd, env ...string) (*webClient, error) {
	a := &webClient{name: name, cmd: c}
	c.Env = append(c.Env, env...)
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.in, a.out = in, bufio.NewReader(out)
	if err := c.Start(); err != nil {
		return nil, err
	}
	b.later(func(context.Context) error {
		a.in.Close()
		return a.cmd.Wait()
	})
	return a, nil
}

func (a *webClient) contestant(line string) measure.Contestant {
	return measure.Contestant{Name: a.name, Op: func() (time.Duration, error) {
		if _, err := fmt.Fprintln(a.in, line); err != nil {
			return 0, err
		}
		text, err := a.out.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("%s: %w", a.name, err)
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		return time.Duration(ns), err
	}}
}

// web is a server on loopback for the clients. It returns its port.
func (b *bench) web() (string, error) {
	l, err := (&net.ListenConfig{}).Listen(b.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	zeros := make([]byte, 1<<20)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(zeros[:100]) })
	mux.HandleFunc("/bulk", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(bulkBytes))
		for range bulkBytes / len(zeros) {
			_, _ = w.Write(zeros)
		}
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	b.later(func(context.Context) error { return s.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// egress measures what runs in a workspace and reaches a host through carrel-egress, beside the same client that
// reaches it directly, and through tinyproxy where that is installed; and what a way out adds to the start of a run.
func (b *bench) egress() error {
	p, err := b.person()
	if err != nil {
		return err
	}
	port, err := b.web()
	if err != nil {
		return err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	program := filepath.Join(b.bin, "bench-client")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		return err
	}
	at, stop, err := nameserver.Start(b.ctx, nameserver.Zone{hostName: "127.0.0.1"})
	if err != nil {
		return err
	}
	b.later(func(context.Context) error {
		stop()
		return nil
	})
	settings := "umask 022; mkdir -p .config/carrel; echo 'resolver: " + at + "' > .config/carrel/egress.yaml"
	if out, err := p.command("", "/bin/sh", "-c", settings).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot write the rules: %w: %s", err, out)
	}
	carrel := filepath.Join(b.bin, "carrel")
	allow := []string{"--allow", hostName + ":" + port, "--allow", "127.0.0.1:" + port}
	named := "BENCH_URL=http://" + hostName + ":" + port
	argv := append([]string{carrel, "run", "-i", "-v", b.bin + ":/mnt/bench:ro", "--env", named}, allow...)
	ours, err := b.client("through carrel-egress", p.command("", append(argv, "--", "/mnt/bench/bench-client", clientArg)...))
	if err != nil {
		return err
	}
	server := "BENCH_URL=http://127.0.0.1:" + port
	direct, err := b.client(report.Direct, p.command("", program, clientArg), server)
	if err != nil {
		return err
	}
	clients := []*webClient{ours, direct}
	if proxied, err := b.tinyproxy(p, program, server); err != nil {
		b.Miss(report.Tinyproxy, err)
	} else {
		clients = append(clients, proxied)
	}
	all := func(line string) (list []measure.Contestant) {
		for _, c := range clients {
			list = append(list, c.contestant(line))
		}
		return list
	}
	for _, f := range []struct{ id, line string }{{report.EgressNew, lineNew}, {report.EgressKept, lineKept}} {
		got := measure.Interleave(b.ctx, b.pace(5*time.Millisecond), all(f.line))
		if err := b.times(f.id, time.Microsecond, got[0], got[1:]); err != nil {
			return err
		}
	}
	bulk := measure.Interleave(b.ctx, measure.Pace{Rounds: 7, Warm: 1}, all(lineBulk))
	for i := range bulk {
		for _, r := range bulk[i].Rounds {
			bulk[i].Rates = append(bulk[i].Rates, float64(bulkBytes)/1e9/r[0].Seconds())
		}
	}
	if err := b.rates(report.EgressBulk, "GB/s", bulk[0], bulk[1:]); err != nil {
		return err
	}
	starts := measure.Interleave(b.ctx, b.pace(slowest), []measure.Contestant{
		p.program("carrel run --allow", "", append(append([]string{carrel, "run"}, allow...), "--", command)...),
		p.program(report.RunAlone, "", carrel, "run", "--", command),
	})
	return b.times(report.EgressStart, time.Millisecond, starts[0], starts[1:])
}

// hostName is what the client inside asks for.
const hostName = "server.test"

// tinyproxy starts one and a client that goes through it.
func (b *bench) tinyproxy(p person, program, server string) (*webClient, error) {
	path, err := exec.LookPath("tinyproxy")
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(b.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	l.Close()
	if err != nil {
		return nil, err
	}
	conf := "Port " + port + "\nListen 127.0.0.1\nMaxClients 100\nTimeout 60\nLogLevel Error\n"
	if out, err := p.command("", "/bin/sh", "-c", "printf '"+conf+"' > tinyproxy.conf").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	proxy := p.command("", path, "-d", "-c", filepath.Join(p.home, "tinyproxy.conf"))
	if err := proxy.Start(); err != nil {
		return nil, err
	}
	b.later(func(context.Context) error {
		_ = proxy.Process.Kill()
		_ = proxy.Wait() // it was killed
		return nil
	})
	return b.client(report.Tinyproxy, p.command("", program, clientArg), server, "BENCH_PROXY=http://127.0.0.1:"+port)
}
