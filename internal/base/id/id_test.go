package id_test

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// held reports whether err is nil where it should be, and invalid_argument where not.
func held(err error, ok bool) bool {
	if ok {
		return err == nil
	}
	return errdefs.IsInvalidArgument(err)
}

func TestParseKey(t *testing.T) {
	for s, ok := range map[string]bool{
		"demo": true, "telegram:-100123": true, "../../etc/passwd": true, "a b": true, "ключ": true, "🔑": true, strings.Repeat(
			"x", id.MaxKey,
		): true,
		"": false, " a": false, "a\t": false, "a\nb": false, "a\x00b": false, "a\x7fb": false, "a\u2028b": false,
		"a\u202eb": false, "a\u200bb": false,
		"\xff": false, strings.Repeat("x", id.MaxKey+1): false,
	} {
		if k, err := id.ParseKey(s); !held(err, ok) || ok && string(k) != s {
			t.Errorf("%q: %q, %v", s, k, err)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for s, want := range map[string]string{"ws": "ws", "ws-": "ws", "a1": "a1", "abcdefghijkl": "abcdefghijkl"} {
		if p, err := id.ParsePrefix(s); err != nil || p != want {
			t.Errorf("%q: %q, %v", s, p, err)
		}
	}
	for _, s := range []string{"", "-", "1a", "Ws", "w_s", "w-s", "ws--", "абв", "abcdefghijklm", "root/", "..", "-rf"} {
		if _, err := id.ParsePrefix(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// Names of paths, users and groups on the host have this form.
func TestNames(t *testing.T) {
	if n := id.Derive("ws", "demo", 0); n != "ws-2a97516c" { // printf demo | sha256sum
		t.Errorf("%s", n)
	}
	for _, n := range []int{0, 1, 10, id.MaxCollision} {
		name := id.Derive("abcdefghijkl", "any key", n)
		if _, err := id.ParseWorkspace(string(name)); err != nil || len(name) > 31 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []string{
		"", "root", "ws", "ws-", "-rf", "ws-2a97516", "ws-2a97516cc", "ws-2A97516C",
		"ws-2a97516g", "ws-2a97516c-", "ws-2a97516c-0", "ws-2a97516c-01",
		"ws-2a97516c-10000", "ws-2a97516c--1", "ws-2a97516c-1-1", "ws-2a97516c/..",
		"../ws-2a97516c", "ws-2a97516c\n", "ws-2a97516c\x00", "Ws-2a97516c",
		"ws--2a97516c", "abcdefghijklm-2a97516c", "ws-2a97516c-+1",
	} {
		if _, err := id.ParseWorkspace(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestCommandsAndTraces(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		c, tr := id.NewCommand(), id.NewTrace()
		if _, err := id.ParseCommand(string(c)); err != nil {
			t.Fatal(err)
		}
		if _, err := id.ParseTrace(string(tr)); err != nil {
			t.Fatal(err)
		}
		if seen[string(c)] || seen[string(tr)] {
			t.Fatalf("%s or %s came twice", c, tr)
		}
		seen[string(c)], seen[string(tr)] = true, true
	}
	for _, s := range []string{
		"", "c-", "c-0123456789abcde", "c-0123456789abcdef0", "d-0123456789abcdef", "c-0123456789ABCDEF", "c-0123456789abcde/",
	} {
		if _, err := id.ParseCommand(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", strings.Repeat("a", 31), strings.Repeat("a", 33), strings.Repeat("g", 32)} {
		if _, err := id.ParseTrace(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestReservedKeys(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	for k, want := range map[id.Key]string{
		id.Key(id.NewArchive("ws-2a97516c", at)): "archive", id.Key(id.NewArchive("chat-2a97516c-12", at)): "archive",
		"c-0123456789abcdef": "command", id.Key(id.NewApproval()): "approval",
		"demo": "", "ws-2a97516c": "", "chat-12345678": "", "ws-2a97516c-20260102T030405": "", "ws-2a97516c-20260102T030405.00067": "",
		"ws-2a97516c-20261302T030405.000678": "", "x-20260102T030405.000678": "", "-": "", "c-0123": "",
	} {
		if got := k.Reserved(); got != want {
			t.Errorf("%s is reserved for %q, want %q", k, got, want)
		}
	}
}
