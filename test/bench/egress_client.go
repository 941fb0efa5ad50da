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
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
)

// clientArg has this program be a client: it reads lines of stdin, and prints for each how long it took, in nanoseconds.
const clientArg = "-http-client"

// The lines that a client reads.
const (
	lineNew  = "new"  // a connection of its own, with one request
	lineKept = "kept" // a request on a connection that is kept
	lineBulk = "bulk" // bulkBytes, received
)

// The variables of a client. Authorities that it trusts are in SSL_CERT_FILE.
const (
	urlEnv      = "BENCH_URL"
	proxyEnv    = "BENCH_PROXY"    // the URL of a proxy for all
	resolverEnv = "BENCH_RESOLVER" // where a name server answers, else what resolv.conf says
	keyEnv      = "BENCH_KEY"      // what it sends as a key
)

const bulkBytes = 256 << 20

// client is the client for one server.
func client(in io.Reader, out io.Writer) error {
	server := os.Getenv(urlEnv)
	dialer := &net.Dialer{Resolver: &net.Resolver{PreferGo: true}}
	if at := os.Getenv(resolverEnv); at != "" {
		dialer.Resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at)
		}
	}
	transport := func() *http.Transport {
		return &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1}
	}
	kept, proxied := transport(), func(*http.Transport) {}
	if p := os.Getenv(proxyEnv); p != "" {
		u, err := url.Parse(p)
		if err != nil {
			return err
		}
		proxied = func(t *http.Transport) { t.Proxy = http.ProxyURL(u) }
	}
	proxied(kept)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		t, path := kept, "/"
		switch lines.Text() {
		case lineNew:
			t = transport()
			t.DisableKeepAlives = true
			proxied(t)
		case lineBulk:
			path = "/bulk"
		}
		took, err := get(t, server+path)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, took.Nanoseconds()); err != nil {
			return err
		}
	}
	return nil
}

func get(t *http.Transport, what string) (time.Duration, error) {
	began := time.Now()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, what, nil) //nolint:gosec // it is the bench's own
	if err != nil {
		return 0, err
	}
	if key := os.Getenv(keyEnv); key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	a, err := (&http.Client{Transport: t}).Do(r) //nolint:gosec // as above
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
