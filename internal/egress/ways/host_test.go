package ways_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// The host's file is refused if others may change it, or if it cannot be read in full.
func TestReadHost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egress.yaml")
	for _, missing := range []string{path, filepath.Join(dir, "no", "egress.yaml")} {
		if c, err := ways.ReadHost(missing); err != nil || len(c.Rules) != 0 || len(c.Sets) == 0 {
			t.Errorf("without a file: %+v, %v", c, err)
		}
	}
	for text, want := range map[string]string{
		"allow: [example.org]\ndeny: ['*.ads.example.org']\nsets: {mine: [a.example.org]}\n" +
			"treat_as_public: [203.0.113.0/24]\nresolver: 192.0.2.53:53": "",
		"":                           "",
		"allow: ['@npm']":            "cannot find the set \"@npm\": there are @",
		"allow: [https://x]":         "egress.yaml",
		"secrets: {}":                "unknown field",
		"treat_as_public: [0.0.0.0]": "is not a network",
		"allow: [a.example.org]\n" + strings.Repeat("#", conf.MaxFile): "more than",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := ways.ReadHost(path)
		if want == "" && (err != nil || text != "" && (len(c.Rules) != 2 || len(c.Public) != 1 || !c.Resolver.IsValid())) {
			t.Errorf("%.60q: %+v, %v", text, c, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		if _, err := ways.ReadHost(path); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(path, 0o664)
	refused("a file that a group may change")
	chmod(path, 0o644)
	chmod(dir, 0o777)
	refused("a directory that everybody may change")
	chmod(dir, 0o755)
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		refused("a file of another user")
	} else {
		t.Log("not root: a file of another user is not tried")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nothing", path); err != nil {
		t.Fatal(err)
	}
	if _, err := ways.ReadHost(path); err == nil {
		t.Error("a link to nothing is taken for no file")
	}
}

// Rules of a workspace are refused if they cannot be used with the host's.
func TestCheck(t *testing.T) {
	w := ways.New(ways.Config{Conf: parse(t, "sets: {mine: [a.example.org]}")})
	for _, good := range []string{"example.org", "@mine", "@github", "10.0.0.0/8:22", "*"} {
		if err := w.Check(workspace.Reach{Allow: []string{good}, Deny: []string{good}}, true); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"@npm", "@others", "", "https://x", "a b", "ftp://x"} {
		if w.Check(workspace.Reach{Allow: []string{bad}}, true) == nil || w.Check(workspace.Reach{Deny: []string{bad}}, true) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	many := make([]string, 100000)
	for i := range many {
		many[i] = "example.org"
	}
	if err := w.Check(workspace.Reach{Allow: many}, true); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many: %v", err)
	}
	if err := w.Reload(nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(workspace.Reach{Allow: []string{"@mine"}}, true); !errdefs.IsNotFound(err) {
		t.Errorf("a set that is gone: %v", err)
	}
}

// Who reaches not every workspace names no address that is not public, but by a set of the host's.
func TestCheckInner(t *testing.T) {
	w := ways.New(ways.Config{Conf: parse(t, "sets: {db: ['10.1.0.7:5432']}\ntreat_as_public: [203.0.113.0/24]")})
	for _, fine := range []string{"example.org", "*", "@db", "203.0.113.9:443", "8.8.8.8:53", "0.0.0.0/0:443"} {
		if err := w.Check(workspace.Reach{Allow: []string{fine}, Deny: []string{"10.0.0.1"}}, false); err != nil {
			t.Errorf("%s: %v", fine, err)
		}
	}
	inner := []string{"127.0.0.1:80", "10.1.0.7:5432", "169.254.169.254:80", "[::1]:80", "[::ffff:127.0.0.1]:80"}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			inner = append(inner, netip.AddrPortFrom(p.Addr().WithZone(""), 22).String())
		}
	}
	for _, bad := range inner {
		// Also if a person is asked, or was.
		for _, r := range []workspace.Reach{{Allow: []string{"example.org", bad}}, {Ask: []string{bad}}, {Approved: []string{bad}}} {
			if err := w.Check(r, false); !errdefs.IsPermissionDenied(err) {
				t.Errorf("%+v: %v", r, err)
			}
			if err := w.Check(r, true); err != nil {
				t.Errorf("an administrator's %+v: %v", r, err)
			}
		}
	}
}
