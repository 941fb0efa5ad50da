package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"
)

const (
	// maxHandshake bounds the bytes that a host may send before the caller is logged in.
	maxHandshake = 1 << 20
	// MaxBanner bounds the banner of a host, in bytes.
	MaxBanner = 8 << 10
)

// metered is a connection that ends after too many bytes, until it is released.
type metered struct {
	net.Conn
	left atomic.Int64
	free atomic.Bool
}

var errHandshake = fmt.Errorf("it sent more than %d bytes before the login was done", maxHandshake)

func (m *metered) Read(p []byte) (int, error) {
	if !m.free.Load() && m.left.Load() <= 0 {
		return 0, errHandshake
	}
	n, err := m.Conn.Read(p)
	m.left.Add(int64(-n))
	return n, err
}

// through returns a connection over a channel of another host. It ends at once when it is closed, whether that host
// answers or not.
func through(far net.Conn, start func(func())) net.Conn {
	near, inner := net.Pipe()
	start(func() {
		_, _ = io.Copy(inner, far) // an end is seen at near
		inner.Close()
	})
	start(func() {
		_, _ = io.Copy(far, inner)
		far.Close()
	})
	return near
}

// over opens a channel to an address by way of another host. As where a session is opened, package ssh may never answer who asks for one in
// the moment in which the connection ends, so that its end is waited for too.
func over(ctx context.Context, via *link, where string) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := &endedError{unavailable("the connection to the host on the way has ended")}
	go func() {
		select {
		case <-via.gone:
			cancel(ended)
		case <-ctx.Done():
		}
	}()
	conn, err := via.client.DialContext(ctx, "tcp", where)
	if err != nil && errors.Is(context.Cause(ctx), ended) {
		return nil, ended
	}
	return conn, err
}

// dial connects to a host and logs in. start starts goroutines, which end when via does if not before.
func dial(ctx context.Context, t *target, via *link, files *hostFiles, start func(func())) (*ssh.Client, []byte, error) {
	where := net.JoinHostPort(t.host, strconv.Itoa(t.port))
	fail := func(format string, args ...any) (*ssh.Client, []byte, error) {
		return nil, nil, fmt.Errorf("cannot connect to %s (%s): %w", t.name, where, fmt.Errorf(format, args...))
	}
	known, err := files.read(slices.Concat(t.known, t.system))
	if err != nil {
		return fail("%w", err)
	}
	keys := &hostKeys{
		known: known, host: first(t.alias, t.host), address: t.host, port: t.port, files: t.known, behind: via != nil,
	}
	keys.name = knownName(t.host, t.port)
	if t.alias != "" { // without a port, as OpenSSH has it
		keys.name = strings.ToLower(t.alias)
	}
	ring, err := t.keys(ctx)
	if err != nil {
		return fail("%w", err)
	}
	defer ring.Close()

	var hostKeyErr error
	var trusted, asked bool
	var banner []byte
	config := &ssh.ClientConfig{
		User: t.user,
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			asked = true
			return ring.signers, nil
		})},
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			hostKeyErr = keys.check(name, remote, key)
			trusted = hostKeyErr == nil
			return hostKeyErr
		},
		BannerCallback: func(message string) error {
			banner = append(banner, message[:min(len(message), MaxBanner-len(banner))]...)
			return nil
		},
		ClientVersion: "SSH-2.0-carrel",
	}
	if err := restrict(config, t.algorithms); err != nil {
		return fail("%w", err)
	}
	config.HostKeyAlgorithms = keys.algorithms(config.HostKeyAlgorithms)

	var raw net.Conn
	if via != nil {
		if raw, err = over(ctx, via, where); err == nil {
			raw = through(raw, start)
		}
	} else {
		raw, err = (&net.Dialer{}).DialContext(ctx, t.network, where)
	}
	if _, ended := errors.AsType[*endedError](err); ended { // another way may be tried
		return fail("%w", err)
	}
	if err != nil {
		return fail("%w; see that the host is up and that the address and port are right: %w", said(err), errdefs.ErrUnavailable)
	}
	conn := &metered{Conn: raw}
	conn.left.Store(maxHandshake)
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, where, config)
	if !stop() && err == nil { // it ended at the same time
		c.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.Close()
		switch {
		case hostKeyErr != nil:
			return fail("%w", hostKeyErr)
		case ctx.Err() != nil:
			return fail("it did not let %s log in in time: %w: %w", t.user, context.Cause(ctx), errdefs.ErrUnavailable)
		case trusted && asked && !errors.Is(err, errHandshake):
			why := ""
			if len(ring.notes) > 0 {
				why = "; not tried: " + strings.Join(ring.notes, "; ")
			}
			return fail("it does not let %s log in with any of %d keys: %w%s; see that the user and its authorized_keys are right: %w",
				t.user, len(ring.signers), said(err), why, errdefs.ErrUnauthenticated)
		}
		return fail("%w: %w", said(err), errdefs.ErrUnavailable)
	}
	conn.free.Store(true)
	return ssh.NewClient(c, channels, requests), banner, nil
}

// restrict sets the algorithms, of those that package ssh holds for secure, to what the ssh configuration leaves.
func restrict(config *ssh.ClientConfig, lists map[string]string) error {
	have := ssh.SupportedAlgorithms()
	for _, x := range []struct {
		setting string
		from    []string
		to      *[]string
	}{
		{"ciphers", have.Ciphers, &config.Ciphers},
		{"macs", have.MACs, &config.MACs},
		{"kexalgorithms", have.KeyExchanges, &config.KeyExchanges},
		{"hostkeyalgorithms", have.HostKeys, &config.HostKeyAlgorithms},
	} {
		list := lists[x.setting]
		rest, without := strings.CutPrefix(list, "-")
		*x.to = x.from
		if list == "" || list[0] == '+' || list[0] == '^' {
			continue
		}
		*x.to = slices.DeleteFunc(slices.Clone(x.from), func(a string) bool {
			named := slices.ContainsFunc(strings.Split(rest, ","), func(p string) bool {
				ok, err := path.Match(p, a)
				return err == nil && ok
			})
			return named == without
		})
		if len(*x.to) == 0 {
			return invalid("%s of the ssh configuration leaves no algorithm that is supported here", x.setting)
		}
	}
	return nil
}
