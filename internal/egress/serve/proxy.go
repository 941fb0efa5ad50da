package serve

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// upstream is the proxy of the Setup in force.
type upstream struct{ p *process }

// hop is a proxy, and what goes past it.
type hop struct {
	*egressapi.Proxy
	direct *netrule.Rules
	secure *tls.Config // nil without TLS
}

// hopOf is the proxy of a Setup, nil for none.
func (p *process) hopOf(s *egressapi.Setup) (*hop, error) {
	if s.Proxy == nil {
		return nil, nil //nolint:nilnil // no Setup needs a proxy
	}
	direct, err := netrule.New(s.Proxy.Direct, netrule.Options{})
	if err != nil {
		return nil, err
	}
	h := &hop{Proxy: s.Proxy, direct: direct}
	if s.Proxy.TLS {
		name, _, err := net.SplitHostPort(s.Proxy.Address)
		if err == nil {
			err = p.readRoots()
		}
		if err != nil {
			return nil, err
		}
		h.secure = &tls.Config{ServerName: name, RootCAs: p.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	return h, nil
}

// secured is a connection inside TLS with the proxy.
type secured struct {
	*tls.Conn
	tcp *net.TCPConn
	cut atomic.Bool
}

// SetLinger has Close end it at once: nothing more is to be sent, and so no end of TLS.
func (c *secured) SetLinger(seconds int) error {
	c.cut.Store(true)
	return c.tcp.SetLinger(seconds)
}

// Close implements net.Conn.
func (c *secured) Close() error {
	if c.cut.Load() {
		return c.tcp.Close()
	}
	return c.Conn.Close()
}

// SyscallConn is that of the connection to the proxy: the kernel knows when bytes came last.
func (c *secured) SyscallConn() (syscall.RawConn, error) { return c.tcp.SyscallConn() }

// connect connects to the proxy.
func (h *hop) connect(ctx context.Context) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the proxy %s: %w", h.Address, err)
	}
	tcp, ok := c.(*net.TCPConn)
	if h.secure == nil || !ok {
		return c, nil
	}
	s := &secured{Conn: tls.Client(c, h.secure), tcp: tcp}
	if err := s.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot speak TLS with the proxy %s: %s", h.Address, intercept.Reason(err))
	}
	return s, nil
}

// Serves implements egress.Upstream.
func (u upstream) Serves(t netrule.Target) bool {
	h := u.p.hop.Load()
	return h != nil && h.direct.Judge(t).Rule == ""
}

// errNoProxy ends a connection for which there was a proxy a moment ago.
var errNoProxy = errors.New("there is no proxy any more; try again")

// Connect implements egress.Upstream.
func (u upstream) Connect(ctx context.Context, t netrule.Target) (net.Conn, error) {
	h := u.p.hop.Load()
	if h == nil {
		return nil, errNoProxy
	}
	c, err := h.connect(ctx)
	if err != nil {
		return nil, err
	}
	end, _ := ctx.Deadline()
	err = c.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err == nil {
		err = h.join(c, t)
	}
	stop()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// maxHead bounds what a proxy may say before it passes on, in bytes.
const maxHead = 16 << 10

// join has the proxy join a connection to a target.
func (h *hop) join(c net.Conn, t netrule.Target) error {
	head := "CONNECT " + t.String() + " HTTP/1.1\r\nHost: " + t.String() + "\r\n"
	if login := h.Login.Reveal(); login != "" {
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(login)) + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return fmt.Errorf("cannot ask the proxy %s: %w", h.Address, err)
	}
	// A byte at a time: what follows the head is the host's, and stays in the connection.
	var answer strings.Builder
	one := make([]byte, 1)
	for !strings.HasSuffix(answer.String(), "\r\n\r\n") {
		if answer.Len() == maxHead {
			return fmt.Errorf("the proxy %s says more than %d bytes before it connects", h.Address, maxHead)
		}
		if _, err := io.ReadFull(c, one); err != nil {
			return fmt.Errorf("the proxy %s does not answer: %w", h.Address, err)
		}
		answer.WriteByte(one[0])
	}
	line, _, _ := strings.Cut(answer.String(), "\r\n")
	version, status, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(status, " ")
	switch {
	case version != "HTTP/1.1" && version != "HTTP/1.0":
		return fmt.Errorf("the proxy %s does not speak HTTP", h.Address)
	case code == "407", code == "401": // tinyproxy says 401 of a login that is wrong
		return fmt.Errorf("the proxy %s wants another login (%s); set it in upstream_proxy", h.Address, code)
	case len(code) != 3 || code[0] != '2':
		return fmt.Errorf("the proxy %s refuses it with %.3q", h.Address, code)
	}
	return nil
}
