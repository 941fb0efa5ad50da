package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// What is installed for a run, in its directory.
const (
	smokescreenModule = "github.com/stripe/smokescreen@v0.1.0"
	mitmproxyPackage  = "mitmproxy"
)

// tinyproxyPackage starts nothing when it is installed.
var tinyproxyPackage = debian{"tinyproxy", "tinyproxy-bin"}

// serving is the side of a server whose names these certificates are for.
func serving(leaves *ca.Leaves) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name := h.ServerName
		if name == "" {
			name = "127.0.0.1"
		}
		host, err := netrule.ParseHost(name)
		if err != nil {
			return nil, err
		}
		return leaves.Leaf(host)
	}}
}

// script runs a script of the shell as the person, with an input.
func (p person) script(text string, stdin []byte) error {
	c := p.command("", "/bin/sh", "-c", text)
	c.Stdin = bytes.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// proxies are clients through the proxies that are there. They are told an address instead of a name.
func (b *bench) proxies(p person, w *web, program string) (clients []*webClient) {
	for _, x := range []struct {
		name  string
		start func(p person, port string) (*exec.Cmd, error)
	}{{report.Tinyproxy, b.tinyproxy}, {report.Smokescreen, b.smokescreen}} {
		c, err := b.through(p, x.name, x.start, func() *exec.Cmd { return p.command("", program, clientArg) },
			urlEnv+"=http://127.0.0.1:"+w.plain)
		if err != nil {
			b.Miss(x.name, err)
			continue
		}
		clients = append(clients, c)
	}
	if c, err := b.srtClient(p, w, program); err != nil {
		b.Miss(report.SrtProxy, err)
	} else {
		clients = append(clients, c)
	}
	return clients
}

// through starts a proxy on a port of loopback and a client that uses it.
func (b *bench) through(p person, name string, start func(person, string) (*exec.Cmd, error), client func() *exec.Cmd, env ...string,
) (*webClient, error) {
	l, err := (&net.ListenConfig{}).Listen(b.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	at := l.Addr().String()
	l.Close()
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	proxy, err := start(p, port)
	if err != nil {
		return nil, err
	}
	if err := proxy.Start(); err != nil {
		return nil, err
	}
	b.later(func(context.Context) error {
		_ = proxy.Process.Kill()
		_ = proxy.Wait() // it was killed
		return nil
	})
	for range 100 {
		c, err := (&net.Dialer{}).DialContext(b.ctx, "tcp", at)
		if err == nil {
			c.Close()
			return b.client(name, client(), append(env, proxyEnv+"=http://"+at)...)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.New("it does not listen after ten seconds")
}

func (b *bench) tinyproxy(p person, port string) (*exec.Cmd, error) {
	path, err := exec.LookPath(tinyproxyPackage.program)
	if err != nil {
		return nil, fmt.Errorf("%w; it is in the package %s", err, tinyproxyPackage.pkg)
	}
	conf := "Port " + port + "\nListen 127.0.0.1\nMaxClients 100\nTimeout 60\nLogLevel Error\n"
	if err := p.script("cat > tinyproxy.conf", []byte(conf)); err != nil {
		return nil, err
	}
	return p.command("", path, "-d", "-c", filepath.Join(p.home, "tinyproxy.conf")), nil
}

func (b *bench) smokescreen(p person, port string) (*exec.Cmd, error) {
	b.say("installing %s", smokescreenModule)
	c := exec.CommandContext(b.ctx, "go", "install", smokescreenModule)
	c.Dir, c.Env = b.dir, append(os.Environ(), "GOBIN="+b.dir, "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot install it: %w: %s", err, lastLine(out))
	}
	_, version, _ := strings.Cut(smokescreenModule, "@")
	b.Versions[report.Smokescreen] = version
	return p.command("", filepath.Join(b.dir, "smokescreen"), "--listen-ip", "127.0.0.1", "--listen-port", port,
		"--allow-range", "127.0.0.0/8"), nil
}

// mitmproxy starts one for clients with TLS. Its authority is in a file that the clients trust.
func (b *bench) mitmproxy(p person, w *web, program string) (*webClient, error) {
	b.say("installing %s", mitmproxyPackage)
	dir := filepath.Join(b.dir, "python")
	python := "/usr/bin/python3" // one that another user may run, too
	for _, argv := range [][]string{{python, "-m", "venv", dir}, {filepath.Join(dir, "bin/pip"), "install", "--quiet", mitmproxyPackage}} {
		if out, err := exec.CommandContext(b.ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("cannot install it: %w: %s", err, lastLine(out))
		}
	}
	dump := filepath.Join(dir, "bin/mitmdump")
	if out, err := exec.CommandContext(b.ctx, dump, "--version").Output(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		b.Versions[report.Mitmproxy] = first
	}
	start := func(p person, port string) (*exec.Cmd, error) {
		return p.command("", dump, "--quiet", "--listen-host", "127.0.0.1", "--listen-port", port, "--set", "stream_large_bodies=64k",
			"--set", "ssl_verify_upstream_trusted_ca="+filepath.Join(p.home, "authorities.pem")), nil
	}
	return b.through(p, report.Mitmproxy, start, func() *exec.Cmd { return p.command("", program, clientArg) },
		urlEnv+"=https://127.0.0.1:"+w.tls, keyEnv+"=the-key-of-the-bench",
		"SSL_CERT_FILE="+filepath.Join(p.home, ".mitmproxy/mitmproxy-ca-cert.pem"))
}

// srtClient is a client in srt, through its proxy.
func (b *bench) srtClient(p person, w *web, program string) (*webClient, error) {
	srt, err := b.srtProgram(p)
	if err != nil {
		return nil, err
	}
	settings, err := json.Marshal(map[string]any{
		"network":    map[string]any{"allowedDomains": []string{"127.0.0.1:" + w.plain}, "deniedDomains": []string{}},
		"filesystem": map[string]any{"denyRead": []string{}, "allowWrite": []string{"."}, "denyWrite": []string{}},
	})
	if err != nil {
		return nil, err
	}
	if err := p.script("cat > srt.json", settings); err != nil {
		return nil, err
	}
	inside := fmt.Sprintf("%s=http://127.0.0.1:%s %s=$HTTP_PROXY exec %s %s", urlEnv, w.plain, proxyEnv, program, clientArg)
	return b.client(report.SrtProxy, p.command("", srt, "--settings", filepath.Join(p.home, "srt.json"), "-c", inside))
}
