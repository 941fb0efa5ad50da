package authn_test

import (
	"context"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/peercred"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

func TestJudge(t *testing.T) {
	g, err := user.LookupGroup("daemon")
	if err != nil {
		t.Skipf("skipped: this host has no group daemon: %v", err)
	}
	if g.Gid != "1" {
		t.Skipf("skipped: group daemon is %s here, not 1", g.Gid)
	}
	withGroup, err := authn.New("daemon")
	if err != nil {
		t.Fatal(err)
	}
	rootOnly, err := authn.New("")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		peers *authn.Peers
		cred  peercred.Cred
		admin bool
	}{
		{"root", rootOnly, peercred.Cred{}, true},
		{"root, with a group set", withGroup, peercred.Cred{}, true},
		{"primary group", withGroup, peercred.Cred{UID: 1000, GID: 1}, true},
		{"supplementary group", withGroup, peercred.Cred{UID: 1000, GID: 1000, Groups: []uint32{27, 1}}, true},
		{"stranger", withGroup, peercred.Cred{UID: 1000, GID: 1000, Groups: []uint32{27}}, false},
		{"uid equal to the gid", withGroup, peercred.Cred{UID: 1, GID: 1000}, false},
		// gid 0 must not match the unset group.
		{"gid 0 without a group set", rootOnly, peercred.Cred{UID: 1000, GID: 0, Groups: []uint32{0}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.peers.Judge(c.cred)
			if p.Admin != c.admin || p.Kind != principal.User || p.UID != c.cred.UID || p.GID != c.cred.GID {
				t.Errorf("Judge(%+v) = %+v, want admin %v", c.cred, p, c.admin)
			}
		})
	}
}

func TestNewRefusesUnknownGroup(t *testing.T) {
	if _, err := authn.New("no-such-group-here"); !errdefs.IsNotFound(err) {
		t.Errorf("err = %v, want not_found", err)
	}
}

func TestConnContext(t *testing.T) {
	peers, err := authn.New("")
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := new(net.Dialer).DialContext(t.Context(), "unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p := authn.FromContext(peers.ConnContext(t.Context(), server))
	if p.Kind != principal.User || p.UID != uint32(os.Getuid()) || p.Admin != (os.Getuid() == 0) {
		t.Errorf("principal = %+v", p)
	}

	// A connection without credentials must leave a caller who may do nothing.
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if p := authn.FromContext(peers.ConnContext(t.Context(), a)); p != (principal.Principal{}) {
		t.Errorf("principal of a pipe = %+v, want the zero one", p)
	}
	if p := authn.FromContext(context.Background()); p.MayReach("uid:0") {
		t.Error("a context without a caller reaches a workspace")
	}
}
