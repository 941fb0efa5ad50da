package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// server stands for carrel-egress with only what the self-check sees of it.
type server struct {
	greeting string
	// code is the response code to every question, with an address if it is 0.
	code byte
	// others is what connections to other addresses get.
	others string
}

var honest = server{greeting: netns.Greeting, code: 5}

// ways serves the sockets until the test ends.
func (s server) ways(t *testing.T) func(context.Context, []*os.File) error {
	return func(_ context.Context, files []*os.File) error {
		for i, f := range files {
			if socket := netns.Socket(i); socket != netns.Transparent && socket != netns.DNSOverTCP {
				t.Cleanup(func() { f.Close() })
				continue
			}
			l, err := net.FileListener(f)
			f.Close()
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go s.accept(l)
		}
		return nil
	}
}

func (s server) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		host, _, _ := net.SplitHostPort(c.LocalAddr().String())
		switch host {
		case netns.Probe.String():
			_, _ = io.WriteString(c, s.greeting)
		case netns.DNS.Addr().String():
			query := make([]byte, 2+32)
			if _, err := io.ReadFull(c, query); err == nil {
				query[2+2], query[2+3] = 0x80, s.code
				if s.code == 0 {
					query[2+7] = 1
				}
				_, _ = c.Write(query)
			}
		default:
			_, _ = io.WriteString(c, s.others)
		}
		c.Close()
	}
}

// The control is verified by using the way out, and what does not do its part is seen.
func TestEgressIsProved(t *testing.T) {
	ex, err := launchtest.Start(t, func(c *launch.Config) { c.Ways = honest.ways(t) })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range ex.Report.Controls {
		if c.ID == "egress" && c.State != workspace.Verified || c.ID == "network" && c.State != workspace.Verified {
			t.Errorf("%s is %s: %s", c.ID, c.State, c.Evidence)
		} else if c.ID == "egress" {
			t.Log(c.Evidence)
		}
	}
	for name, s := range map[string]server{
		"greets as somebody else":      {greeting: "hello\n", code: 5},
		"answers for every name":       {greeting: netns.Greeting},
		"lets an address without pass": {greeting: netns.Greeting, code: 5, others: "x"},
	} {
		_, err := launchtest.Start(t, func(c *launch.Config) { c.Ways, c.Log = s.ways(t), nil })
		if err == nil || !strings.Contains(err.Error(), "required control egress is failed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A start whose sockets nobody can serve fails with the reason, and one that nobody serves in time.
func TestEgressIsNotServed(t *testing.T) {
	broken := errors.New("nobody serves them")
	_, err := launchtest.Start(t, func(c *launch.Config) {
		c.Log = nil
		c.Ways = func(_ context.Context, files []*os.File) error {
			for _, f := range files {
				f.Close()
			}
			return broken
		}
	})
	if !errors.Is(err, broken) {
		t.Errorf("the start says %v", err)
	}
	_, err = launchtest.Start(t, func(c *launch.Config) {
		c.Log = nil
		c.Ways = func(_ context.Context, files []*os.File) error {
			for _, f := range files {
				t.Cleanup(func() { f.Close() })
			}
			return nil
		}
	})
	if err == nil || !strings.Contains(err.Error(), "egress") {
		t.Errorf("sockets that nobody accepts from: %v", err)
	}
}

// An authority that a workspace is to trust is in the bundle that its programs read, beside the host's.
func TestTrust(t *testing.T) {
	host, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Skipf("skipped: %v", err)
	}
	const authority = "-----BEGIN CERTIFICATE-----\nof the test\n-----END CERTIFICATE-----\n"
	ex, err := launchtest.Start(t, func(c *launch.Config) { c.Ways, c.Spec.Net.Trust = honest.ways(t), authority })
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", ex.PID)
	for path, want := range map[string]string{
		sandbox.TrustFile: authority, sandbox.BundleFile: string(host) + "\n" + authority,
		"/etc/ssl/certs/ca-certificates.crt": string(host) + "\n" + authority,
	} {
		if got, err := os.ReadFile(root + path); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v, not %d", path, len(got), err, len(want))
		}
	}
	if now, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt"); err != nil || string(now) != string(host) {
		t.Errorf("the host's own has changed: %v", err)
	}
}
