package netrule_test

import (
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestParseHost(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := label + "." + label + "." + label + "." + label[:61]
	for text, want := range map[string]string{
		"example.org":                  "example.org",
		"EXAMPLE.Org.":                 "example.org",
		"localhost":                    "localhost",
		"a_b.example":                  "a_b.example",
		"_acme-challenge.example":      "_acme-challenge.example",
		"r3---sn-x.example":            "r3---sn-x.example",
		"1e100.net":                    "1e100.net",
		"1.2.3.4.example":              "1.2.3.4.example",
		"0x7f.example":                 "0x7f.example",
		"0xg":                          "0xg",
		"x0x1":                         "x0x1",
		longest:                        longest,
		longest + ".":                  longest,
		"bücher.example":               "xn--bcher-kva.example",
		"BÜCHER.example":               "xn--bcher-kva.example",
		"bu\u0308cher.example":         "xn--bcher-kva.example",
		"XN--BCHER-KVA.example":        "xn--bcher-kva.example",
		"faß.example":                  "xn--fa-hia.example",
		"例え。テスト":                       "xn--r8jz45g.xn--zckzah",
		"例え.テスト。":                      "xn--r8jz45g.xn--zckzah",
		"ｅｘａｍｐｌｅ．org":                  "example.org",
		"\u212a.example":               "k.example", // the sign of Kelvin
		"exam\u00adple.org":            "example.org",
		"xn--fiqs8s":                   "xn--fiqs8s",
		"192.0.2.7":                    "192.0.2.7",
		"0.0.0.0":                      "0.0.0.0",
		"2001:DB8::0:1":                "2001:db8::1",
		"[2001:db8:0:0::1]":            "2001:db8::1",
		"::":                           "::",
		"::ffff:127.0.0.1":             "127.0.0.1",
		"[::FFFF:7f00:1]":              "127.0.0.1",
		"[0:0:0:0:0:ffff:192.0.2.128]": "192.0.2.128",
		"::127.0.0.1":                  "::7f00:1",
		"64:ff9b::192.0.2.1":           "64:ff9b::c000:201",
	} {
		h, err := netrule.ParseHost(text)
		if err != nil || h.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, h, err, want)
			continue
		}
		if again, err := netrule.ParseHost(h.String()); err != nil || again != h {
			t.Errorf("%q: %q is read as %q, %v", text, h, again, err)
		}
		a, ok := h.Addr()
		if ok == (h.Name() != "") || ok && a != netip.MustParseAddr(want) {
			t.Errorf("%q: address %v and name %q", text, a, h.Name())
		}
	}
	if zero := (netrule.Host{}); zero.String() != "" || zero.Name() != "" {
		t.Errorf("the zero Host is %q", zero)
	}
}

func TestParseHostRefuses(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := label + "." + label + "." + label + "."
	for _, text := range []string{
		// Nothing, and dots.
		"", ".", "..", "example..org", ".example.org", "example.org..", "a.\u00ad.b", "\u00ad", "。",
		// What other parsers end a host at, or skip.
		"example.org\x00", "evil.example\x00.example.org", "example.org\n", "\texample.org", " example.org", "example.org ",
		"exa mple.org", "example\r\n.org", "example.org\x7f", "example.org\u2028", "a\u00a0b.example", "a\u3000b", "\ufeff\x00",
		// URLs and their parts.
		"http://example.org", "user@example.org", "user:password@example.org", "example.org@127.0.0.1", "example.org/", "example.org/x",
		`example.org\x`, `\\example.org`, "example.org?x", "example.org#x", "example.org:443", "example.org:", ":443", "a;b", "a,b", "a&b",
		"a|b",
		"$HOME", "a`b", "'a'", "<a>", "a=b", "*", "*.example.org", "a*b", "@llm", "~", "!", "(a)", "{a}", "a^b", "a+b", `a"b`,
		// Escapes.
		"example%2eorg", "%31%32%37.0.0.1", "127.0.0.1%00", "％31.example", "a℀b", "a⁄b.example／c", "a＠b", "a：80", "a＃b",
		// Addresses in another base, shortened, longer, or written so that somebody reads one.
		"0", "127", "127.1", "127.0.1", "127.0.0.1.", "127.0.0.01", "127.0.0.1.1", "0177.0.0.1", "0177.1", "017700000001", "2130706433",
		"0x7f.1", "0x7f000001", "0X7F000001", "0x7f.0x0.0x0.0x1", "127.0.0.0x1", "0x", "0x.0x.0x.0x", "1.2.3.0x", "256.256.256.256",
		"1.2.3.256",
		"00000000177.0.0.1", "09.0.0.1", "999999999999", "example.1", "example.0x1f", "a.b.c.09", "1.2.3.4.5", "-1", "+1", "1e3.0",
		"２１３０７０６４３３",
		"127。0。0。1", "１２７.0.0.1", "127.0.0.1。", "①②⑦.0.0.1", "0ｘ7f.1", "[127.0.0.1]", "[2130706433]", "[0x7f.1]",
		// IPv6.
		"[", "]", "[]", "[::1", "::1]", "[[::1]]", "[::1].", "[::1]:443", "::1%lo", "[fe80::1%eth0]", "[fe80::1%25eth0]", "fe80::1%1",
		":::1", "1::2::3",
		"::ffff:0177.0.0.1", "::ffff:127.1", "::ffff:0x7f.0.0.1", "12345::", "::g", "1:2:3:4:5:6:7:8:9", "::1 ", "[ ::1]", "::1/128",
		"[::1]/128", "[example.org]",
		"[::1]example.org", "[v1.x:y]",
		// Names.
		"-", "-x.example", "x-.example", "example.-", "-oProxyCommand=x", long + label[:62], long + label, label + "a.example",
		strings.Repeat("a.", 127) + "a", strings.Repeat("ü", 60) + ".example", strings.Repeat("x", 5000),
		strings.Repeat("\u00ad", 600) + "example.org",
		// UTF-8 and Punycode.
		"\xff.example", "a\xc0\x80b", "xn--", "xn--.example", "xn--a", "xn--example-.org", "xn--bcher-kvA1", "xn--xn---3ra.example",
		"xn--0", "xn--127-.0.0.x",
		"xn--a-\u00fc", "\u200d.example", "a\u200db.example", "\u0301.example", "א1a.example", "xn--ls8h-\x00", "\U000e0001.example",
		"xn--fa-hia-.example",
		"xn--MASSE-",
	} {
		h, err := netrule.ParseHost(text)
		switch {
		case err == nil:
			t.Errorf("%q is read as %q", text, h)
		case !utf8.ValidString(text) && !strings.Contains(err.Error(), "it is not UTF-8"):
			t.Errorf("%q: %v", text, err)
		case !errdefs.IsInvalidArgument(err), !strings.HasPrefix(err.Error(), "cannot read the host "), len(err.Error()) > 3000:
			t.Errorf("%q: %v", text, err)
		case h != netrule.Host{}:
			t.Errorf("%q: an error and %q", text, h)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"example.org:443":        "example.org:443",
		"EXAMPLE.org.:1":         "example.org:1",
		"192.0.2.7:65535":        "192.0.2.7:65535",
		"[2001:db8::1]:443":      "[2001:db8::1]:443",
		"[::ffff:192.0.2.7]:443": "192.0.2.7:443",
	} {
		got, err := netrule.ParseTarget(text)
		if err != nil || got.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
			continue
		}
		if again, err := netrule.ParseTarget(got.String()); err != nil || again != got {
			t.Errorf("%q: %q is read as %q, %v", text, got, again, err)
		}
	}
	for _, text := range []string{
		"", ":", "example.org", "example.org:", ":443", "example.org:0", "example.org:65536", "example.org:00", "example.org:0443",
		"example.org:+443",
		"example.org:-1", "example.org: 443", "example.org:443 ", "example.org:4_4", "example.org:0x50", "example.org:http",
		"example.org:443:443",
		"example.org:４４３", "2001:db8::1:443", "2001:db8::1", "[2001:db8::1]", "[2001:db8::1]443", "[2001:db8::1]x:443", "[2001:db8::1",
		"[192.0.2.7]:443",
		"user:x@example.org:443", "example.org:*", "example.org:1-2", "a\x00:443", "127.1:443", "[::1%lo]:443", strings.Repeat("x", 10000),
	} {
		got, err := netrule.ParseTarget(text)
		if err == nil {
			t.Errorf("%q is read as %q", text, got)
		} else if !errdefs.IsInvalidArgument(err) || len(err.Error()) > 1000 {
			t.Errorf("%q: %v", text, err)
		}
	}
}
