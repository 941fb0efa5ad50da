package netrule_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The first, a middle and the last address of each class, and those beside it. The list is that of
// IANA's registries, written again from them and not from the table under test.
func TestAddressClasses(t *testing.T) {
	r := rules(t, netrule.Options{}, "allow example.org", "allow *")
	tt := target(t, "example.org:443")
	for says, addrs := range map[string]string{
		"unspecified":                "0.0.0.0 0.0.0.1 0.255.255.255 :: ::ffff:0.0.0.0",
		"private address (RFC 1918)": "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 ::ffff:10.0.0.1",
		"carrier NAT":                "100.64.0.0 100.100.100.199 100.127.255.255",
		"loopback":                   "127.0.0.0 127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1",
		"link-local address":         "169.254.0.0 169.254.169.253 169.254.169.255 169.254.255.255 fe80:: fe80::1 febf:ffff::1",
		"metadata": "169.254.169.254 ::ffff:169.254.169.254 169.254.170.2 169.254.170.23 fd00:ec2::254 fd00:ec2::23 100.100.100.200 " +
			"168.63.129.16 " +
			"192.0.0.192 fd20:ce::254",
		"IETF protocols": "192.0.0.0 192.0.0.8 192.0.0.170 192.0.0.255 2001:1:: 2001:1::4 2001:1ff:ffff::1",
		"documentation": "192.0.2.0 192.0.2.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255 2001:db8:: " +
			"2001:db8:ffff::1 3fff:: 3fff:fff:ffff::1",
		"6to4 relay":      "192.88.99.0 192.88.99.255",
		"benchmarking":    "198.18.0.0 198.19.255.255 2001:2:: 2001:2:0:ffff::1",
		"multicast":       "224.0.0.0 224.0.0.251 239.255.255.255 ff00:: ff02::1 ffff:ffff::1",
		"reserved":        "240.0.0.0 255.255.255.254",
		"broadcast":       "255.255.255.255",
		"IPv4-compatible": "::2 ::8.8.8.8 ::ffff:ffff",
		"local NAT64":     "64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:808:808",
		"discard":         "100:: 100::ffff:1",
		"dummy":           "100:0:0:1:: 100:0:0:1:ffff::",
		"ORCHIDv2":        "2001:20:: 2001:2f:ffff::1",
		"drones":          "2001:30:: 2001:3f:ffff::1",
		"segment routing": "5f00:: 5f00:ffff::1",
		"unique local":    "fc00:: fd00::1 fdff:ffff::1 fd00:ec2::253",
		"site-local":      "fec0:: feff:ffff::1",
		"outside of what is assigned": "1:: 64:ff9a:ffff::1 64:ff9b:0:0:0:1:: 64:ff9b:2:: 100:0:0:2:: ::ffff:0:8.8.8.8 4000:: 8000:: fe00:: " +
			"fe7f:ffff::1",
		"loopback address (RFC 1122); allow 127.0.0.1:443 if": "64:ff9b::127.0.0.1 2002:7f00:1:: 2002:7f00:0001:ffff::1 " +
			"2001:0:808:808:0:0:80ff:fffe 2001:0:7f00:1:0:0:f7f7:f7f7",
		"192.168.0.1 is a private": "64:ff9b::192.168.0.1 2002:c0a8:1:: 2001:0:808:808:0:0:3f57:fffe",
		"169.254.169.254 is the m": "64:ff9b::169.254.169.254 2002:a9fe:a9fe::1 ::ffff:169.254.169.254",
	} {
		for text := range strings.FieldsSeq(addrs) {
			a := netip.MustParseAddr(text)
			err := r.Address(tt, a)
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), says) ||
				!strings.HasPrefix(err.Error(), "cannot reach example.org:443 at ") {
				t.Errorf("%s: %v; want it to say %s", text, err, says)
			}
			// A target that is the address is judged alike, before anything is resolved.
			if v := r.Judge(netrule.Target{Host: host(t, text), Port: 443}); v.Action != netrule.Deny {
				t.Errorf("%s as a target: %+v", text, v)
			}
		}
	}
	for text := range strings.FieldsSeq("1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 " +
		"169.253.255.255 169.255.0.0 " +
		"172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.31.196.1 192.52.193.1 192.88.98.1 192.88.100.0 192.167.255.255 " +
		"192.169.0.0 " +
		"192.175.48.1 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 8.8.8.8 ::ffff:8.8.8.8 " +
		"2000:: 2600::1 2001:200:: 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9:: 2001:1::1 2001:1::2 2001:1::3 2001:3::1 2001:4:112::1 " +
		"2620:4f:8000::1 2003:: 3ffe:ffff::1 3fff:1000:: 64:ff9b::8.8.8.8 2002:808:808::1 2001:0:808:808:0:0:f7f7:f7f7") {
		if err := r.Address(tt, netip.MustParseAddr(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if v := r.Judge(netrule.Target{Host: host(t, text), Port: 443}); v.Action != netrule.Allow || v.Rule != "*" {
			t.Errorf("%s as a target: %+v", text, v)
		}
	}
}

// What is not public is reached by a rule that names it for the port, and no other.
func TestAddressByRule(t *testing.T) {
	for _, c := range []struct{ rules, target, yes, no string }{
		{
			"10.1.0.0/16:5432", "db.example:5432", "10.1.0.0 10.1.2.3 ::ffff:10.1.2.3 64:ff9b::10.1.2.3 2002:a01:203::",
			"10.0.0.1 10.2.0.0 127.0.0.1 172.16.0.1",
		},
		{"10.1.0.0/16:5432", "db.example:5433", "8.8.8.8", "10.1.2.3 64:ff9b::10.1.2.3"},
		{"10.0.0.0/8:*", "db.example:5432", "10.1.2.3 10.255.0.1", "192.168.0.1"},
		{"127.0.0.1:5432", "db.example:5432", "127.0.0.1", "127.0.0.2 ::1 0.0.0.0 2002:7f00:2::"},
		{"[::1]:5432", "db.example:5432", "::1", "127.0.0.1 :: ::2"},
		{"169.254.169.254:80", "metadata.example:80", "169.254.169.254", "169.254.169.253 fd00:ec2::254"},
		// A network wider than the class names no address of the class.
		{
			"0.0.0.0/0:* [::/0]:*", "db.example:5432", "8.8.8.8 2600::1",
			"0.0.0.0 10.1.2.3 127.0.0.1 169.254.1.1 169.254.169.254 192.168.0.1 :: ::1 fd00::1 " +
				"fe80::1 2001:db8::1 ff02::1 64:ff9b::127.0.0.1 2002:7f00:1::",
		},
		{"0.0.0.0/1:* 8.0.0.0/5:*", "db.example:5432", "8.8.8.8", "10.1.2.3 127.0.0.1 0.0.0.0"},
		{
			"169.254.0.0/16:* 100.64.0.0/10:* 192.0.0.0/24:*", "db.example:5432", "169.254.1.1 100.64.0.1 192.0.0.8",
			"169.254.169.254 100.100.100.200 192.0.0.192",
		},
		// The carrier is named, what it carries is not.
		{
			"[64:ff9b::/96]:* [2002::/16]:* [2001::/32]:* [::/96]:*", "db.example:5432", "64:ff9b::8.8.8.8 2002:808:808:: ::8.8.8.8",
			"64:ff9b::10.1.2.3 2002:a01:203:: 2002:7f00:1:: 2001:0:808:808:0:0:80ff:fffe ::127.0.0.1 ::10.0.0.1 ::1 ::",
		},
		// In every form of NAT64 within the local prefix: /96, /48, /56, /64.
		{
			"[64:ff9b:1::/48]:*", "db.example:5432", "64:ff9b:1::808:808 64:ff9b:1:808:8:800:: 64:ff9b:1::808:0",
			"64:ff9b:1:: 64:ff9b:1::1 64:ff9b:1:808:8:800:7f00:1 64:ff9b:1:fffe::808:808 64:ff9b:1::7f00:1 64:ff9b:1:7f00:0:100:808:808 " +
				"64:ff9b:1:7f:0:1:808:808 " +
				"64:ff9b:1:0:7f:0:108:808 64:ff9b:1::a01:203",
		},
		{"[64:ff9b:1::/48]:* 10.0.0.0/8:*", "db.example:5432", "64:ff9b:1::a01:203", "64:ff9b:1::7f00:1"},
	} {
		var lines []string
		for rule := range strings.FieldsSeq(c.rules) {
			lines = append(lines, "allow "+rule)
		}
		r := rules(t, netrule.Options{}, append(lines, "allow *.example:*")...)
		for text := range strings.FieldsSeq(c.yes) {
			if err := r.Address(target(t, c.target), netip.MustParseAddr(text)); err != nil {
				t.Errorf("%s: %s: %v", c.rules, text, err)
			}
		}
		for text := range strings.FieldsSeq(c.no) {
			if err := r.Address(target(t, c.target), netip.MustParseAddr(text)); !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s: %s: %v", c.rules, text, err)
			}
		}
	}
}

func TestAddressDenied(t *testing.T) {
	r := rules(t, netrule.Options{}, "allow *:*", "allow 8.8.8.8:*", "allow 10.0.0.0/8:*", "deny 8.8.0.0/16:443",
		"deny 10.9.0.0/16", "deny [2600::/16]")
	for text, denied := range map[string]bool{
		"8.8.8.8": true, "::ffff:8.8.8.8": true, "64:ff9b::8.8.8.8": true, "2002:808:808::1": true, "2001:0:909:909:0:0:f7f7:f7f7": true,
		"2001:0:808:808:0:0:f6f6:f6f6": true, "8.9.8.8": false, "10.9.0.1": true, "10.8.0.1": false, "2600::1": true, "2601::1": false,
	} {
		if err := r.Address(target(t, "example.org:443"), netip.MustParseAddr(text)); errdefs.IsPermissionDenied(err) != denied ||
			denied && !strings.Contains(err.Error(), "denies it") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := r.Address(target(t, "example.org:80"), netip.MustParseAddr("8.8.8.8")); err != nil {
		t.Errorf("on another port: %v", err)
	}
}

// A target that is an address has that one only, and no address has a zone.
func TestAddressIsThatOfTheTarget(t *testing.T) {
	r := rules(t, netrule.Options{}, "allow *:*", "allow [fe80::/10]:*", "allow 127.0.0.1:*")
	for _, c := range []struct {
		target, addr string
		ok           bool
	}{
		{"8.8.8.8:443", "8.8.8.8", true},
		{"8.8.8.8:443", "::ffff:8.8.8.8", true},
		{"8.8.8.8:443", "8.8.4.4", false},
		{"8.8.8.8:443", "127.0.0.1", false},
		{"[64:ff9b::8.8.8.8]:443", "8.8.8.8", false},
		{"example.org:443", "fe80::1", true},
		{"example.org:443", "fe80::1%eth0", false},
		{"example.org:443", "::ffff:8.8.8.8%eth0", false},
	} {
		if err := r.Address(target(t, c.target), netip.MustParseAddr(c.addr)); (err == nil) != c.ok || !c.ok && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s at %s: %v", c.target, c.addr, err)
		}
	}
	if err := r.Address(target(t, "example.org:443"), netip.Addr{}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("no address: %v", err)
	}
	if err := r.Address(netrule.Target{Host: host(t, "example.org")}, netip.MustParseAddr("8.8.8.8")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("no port: %v", err)
	}
	if err := r.Address(netrule.Target{Port: 443}, netip.MustParseAddr("8.8.8.8")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("no host: %v", err)
	}
	var zero netrule.Rules
	if zero.Address(target(t, "example.org:443"), netip.MustParseAddr("10.0.0.1")) == nil {
		t.Error("no rules allow 10.0.0.1")
	}
}

func TestOptions(t *testing.T) {
	net, addr := netip.MustParsePrefix, netip.MustParseAddr
	o := netrule.Options{
		Public: []netip.Prefix{
			net("198.18.0.0/15"), net("10.1.0.0/16"), net("fd00::/8"), net("0.0.0.0/1"), net("169.254.0.0/16"), net("::/0"),
			net("100.64.0.0/10"), net("168.0.0.0/8"), net("192.0.0.0/24"), net("240.0.0.0/4"),
		},
		Own: []netip.Addr{addr("8.8.4.4"), addr("10.1.0.1"), addr("::ffff:9.9.9.9"), addr("fe80::1%eth0"), addr("127.0.0.1"), addr("fd00::1")},
	}
	r := rules(t, o, "allow *:*", "allow 8.8.4.0/24:*", "allow 10.1.0.0/16:22", "allow 9.9.9.9:22", "allow 127.0.0.0/8:22")
	for text, want := range map[string]string{ // to what is said, empty where it is public
		"198.18.0.1": "", "198.19.255.255": "", "10.1.0.2": "", "10.2.0.1": "", "fd00::2": "", "64:ff9b::10.1.0.2": "", "2002:a01:2::": "",
		"169.254.1.1": "",
		"100.64.0.1":  "", "2001:db8::1": "", "fe80::2": "", "8.8.4.5": "",
		"127.0.0.1": "loopback", "0.0.0.0": "unspecified", "169.254.169.254": "metadata", "fd00:ec2::254": "metadata",
		"100.100.100.200": "metadata",
		"168.63.129.16":   "metadata", "168.63.129.17": "", "169.254.170.2": "metadata", "169.254.170.23": "metadata",
		"fd00:ec2::23": "metadata",
		"fd20:ce::254": "metadata", "192.0.0.192": "metadata", "192.0.0.8": "", "255.255.255.255": "broadcast", "255.255.255.254": "",
		"::": "unspecified", "::1": "loopback", "ff02::1": "multicast", "64:ff9b::127.0.0.1": "loopback", "192.168.0.1": "private",
		"8.8.4.4": "of this host", "10.1.0.1": "of this host", "9.9.9.9": "of this host", "::ffff:8.8.4.4": "of this host",
		"fe80::1": "of this host",
		"fd00::1": "of this host", "64:ff9b::8.8.4.4": "of this host", "2002:808:404::1": "of this host",
	} {
		err := r.Address(target(t, "example.org:443"), addr(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want it to say %s", text, err, want)
		}
		if v := r.Judge(netrule.Target{Host: host(t, text), Port: 443}); (v.Action == netrule.Allow) != (want == "") {
			t.Errorf("%s as a target: %+v", text, v)
		}
	}
	// A network around the host's own address means the others; a loopback address is never only that.
	for text, ok := range map[string]bool{"10.1.0.1": false, "10.1.0.2": true, "9.9.9.9": true, "127.0.0.1": true} {
		if err := r.Address(target(t, "example.org:22"), addr(text)); (err == nil) != ok {
			t.Errorf("%s by its rule: %v", text, err)
		}
	}
	for _, o := range []netrule.Options{
		{Public: []netip.Prefix{{}}},
		{Public: []netip.Prefix{net("::ffff:10.0.0.0/104")}},
		{Public: []netip.Prefix{net("127.0.0.0/8")}},
		{Public: []netip.Prefix{net("127.1.2.0/24")}},
		{Public: []netip.Prefix{net("169.254.169.254/32")}},
		{Public: []netip.Prefix{net("::1/128")}},
		{Public: []netip.Prefix{net("0.0.0.0/32")}},
		{Public: []netip.Prefix{net("10.0.0.0/8"), net("224.0.0.0/4")}},
		{Own: []netip.Addr{{}}},
	} {
		if _, err := netrule.New(nil, o); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func host(t testing.TB, s string) netrule.Host {
	t.Helper()
	h, err := netrule.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
