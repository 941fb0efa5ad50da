package broker_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestUserAddArgs(t *testing.T) {
	want := []string{
		"-M", "-l", "-U", "-u", "1879048193", "-d", "/h/ws-0123abcd", "-s", "/bin/sh", "-c", "carrel workspace",
		"-K", "UID_MIN=1879048193", "-K", "UID_MAX=1879048193", "-K", "GID_MIN=1879048193", "-K", "GID_MAX=1879048193",
		"-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0", "ws-0123abcd",
	}
	if got := broker.UserAddArgs("ws-0123abcd", 1879048193, "/h/ws-0123abcd", "/bin/sh", ""); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	want = slices.Insert(want, len(want)-1, "-G", "carrel-workspaces")
	if got := broker.UserAddArgs("ws-0123abcd", 1879048193, "/h/ws-0123abcd", "/bin/sh", "carrel-workspaces"); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func etc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for n, text := range files {
		if err := os.WriteFile(filepath.Join(dir, n), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestIDsFree(t *testing.T) {
	base := map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\nu:x:5000:6000::/:/bin/sh\n", "group": "root:x:0:\ng:x:7000:u\n",
		"subuid": "u:8000:100\n", "subgid": "u:9000:100\nbroken\n",
	}
	u := broker.UsersAt(etc(t, base), broker.Settings{})
	for firstID, want := range map[uint32]bool{
		4000: true, 4997: true, 4998: false, 5000: false, 5001: true, 6000: false, 6998: false, 7001: true,
		7997: true, 7998: false, 8099: false, 8100: true, 9050: false, 9100: true,
	} {
		got, err := u.IDsFree(workspace.IDsFrom(firstID))
		if err != nil || got != want {
			t.Errorf("%d: got %v, %v", firstID, got, err)
		}
	}
	delete(base, "subuid")
	if ok, err := broker.UsersAt(etc(t, base), broker.Settings{}).IDsFree(workspace.IDsFrom(8000)); !ok || err != nil {
		t.Errorf("without subuid: %v, %v", ok, err)
	}
	delete(base, "group")
	if _, err := broker.UsersAt(etc(t, base), broker.Settings{}).IDsFree(workspace.IDsFrom(8000)); err == nil {
		t.Error("without group there is no error")
	}
}

// TestVerify plants each kind of wrong entry.
func TestVerify(t *testing.T) {
	s := broker.Settings{HomeRoot: "/h", Shell: "/bin/sh"}
	const n = "ws-0123abcd"
	ids := workspace.IDsFrom(4999)
	const passwd, group, shadow = n + ":x:5000:5000:carrel workspace:/h/" + n + ":/bin/sh\n", n + ":x:5000:\n", n + ":!:19000:0:99999:7:::\n"
	if err := broker.UsersAt(etc(t, map[string]string{"passwd": passwd, "group": group, "shadow": shadow}), s).Verify(n, ids); err != nil {
		t.Error(err)
	}
	for what, files := range map[string]map[string]string{
		"uid 0":             {"passwd": n + ":x:0:5000:carrel workspace:/h/" + n + ":/bin/sh\n"},
		"another gid":       {"passwd": n + ":x:5000:0:carrel workspace:/h/" + n + ":/bin/sh\n"},
		"another home":      {"passwd": n + ":x:5000:5000:carrel workspace:/root:/bin/sh\n"},
		"another shell":     {"passwd": n + ":x:5000:5000:carrel workspace:/h/" + n + ":/bin/bash\n"},
		"a password":        {"shadow": n + ":$6$x$y:19000::::::\n"},
		"an empty password": {"shadow": n + "::19000::::::\n"},
		"no shadow":         {"shadow": ""},
		"no passwd":         {"passwd": ""},
		"a member":          {"group": n + ":x:5000:root\n"},
		"group of another":  {"group": n + ":x:0:\n"},
		"twice":             {"passwd": passwd + passwd},
		"cut short":         {"passwd": n + ":x\n"},
	} {
		all := map[string]string{"passwd": passwd, "group": group, "shadow": shadow}
		maps.Copy(all, files)
		if err := broker.UsersAt(etc(t, all), s).Verify(n, ids); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	// A tool that was killed before it came to the last file is not done; a host may have no such file.
	for text, want := range map[string]bool{"": false, "other:!::\n": false, n + ":!::\n": true, "none": true} {
		all := map[string]string{"passwd": passwd, "group": group, "shadow": shadow, "gshadow": text}
		if text == "none" {
			delete(all, "gshadow")
		}
		if got := broker.UsersAt(etc(t, all), s).Complete(n, ids); got != want {
			t.Errorf("with %q in gshadow: complete %v", text, got)
		}
	}
	u := broker.UsersAt(etc(t, map[string]string{"passwd": passwd, "group": "other:x:1:\n"}), s)
	if err := u.NameFree(n); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a name in use: %v", err)
	}
	if err := u.NameFree("ws-0123abce"); err != nil {
		t.Error(err)
	}
	if err := u.NameFree("other-00000000"); err != nil {
		t.Error(err)
	}
}

// Every create reads the user database several times, however many users it has.
func BenchmarkUsers(b *testing.B) {
	var passwd, group, members strings.Builder
	for i := range 2000 {
		name, n := fmt.Sprintf("ws-%08x", i), 1879048193+3*i
		fmt.Fprintf(&passwd, "%s:x:%d:%d:carrel workspace:/var/lib/carrel/homes/%s:/bin/bash\n", name, n, n, name)
		fmt.Fprintf(&group, "%s:x:%d:\n", name, n)
		fmt.Fprintf(&members, ",%s", name)
	}
	dir := b.TempDir()
	for name, text := range map[string]string{
		"passwd": passwd.String(),
		"group":  group.String() + "carrel-workspaces:x:999:" + members.String() + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	u := broker.UsersAt(dir, broker.Settings{})
	b.Run("NameFree", func(b *testing.B) {
		for b.Loop() {
			if err := u.NameFree("ws-ffffffff"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("IDsFree", func(b *testing.B) {
		for b.Loop() {
			if ok, err := u.IDsFree(workspace.IDsFrom(1880000000)); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
}
