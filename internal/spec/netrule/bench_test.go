package netrule_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// many is 10,000 rules: names, patterns, networks that nest, many ports of one name, and hosts of a
// depth that looks for many patterns.
func many(t testing.TB) *netrule.Rules {
	var lines []string
	for i := range 2000 {
		lines = append(lines,
			fmt.Sprintf("allow host%d.example.org", i),
			fmt.Sprintf("allow *.zone%d.example.org:*", i),
			fmt.Sprintf("allow [2600:%x::/32]:443", i),
			fmt.Sprintf("allow many.example.org:%d", 1000+2*i),
			fmt.Sprintf("deny 8.%d.%d.0/24:25", i>>8, i&255))
	}
	for bits := range 25 {
		lines[5*bits+4] = "allow " + netip.PrefixFrom(netip.MustParseAddr("8.8.8.8"), 8+bits).Masked().String()
	}
	return rules(t, netrule.Options{Own: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, lines...)
}

var asked = map[string]string{
	"exact":    "host1999.example.org:443",
	"below":    "a.b.c.zone1000.example.org:22",
	"unknown":  "www.example.com:443",
	"ports":    "many.example.org:3000",
	"deep":     strings.Repeat("a.", 118) + "zone7.example.org:443",
	"address":  "8.8.8.8:443",
	"IPv6":     "[2600:7::1]:443",
	"no class": "1.1.1.1:443",
	"private":  "10.0.0.1:443",
	"carried":  "[64:ff9b::8.8.8.8]:443",
}

func BenchmarkJudge(b *testing.B) {
	r := many(b)
	for name, text := range asked {
		tt := target(b, text)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Judge(tt)
			}
		})
	}
}

// The same where some of the rules are about requests, of other hosts and of those that are asked for.
func BenchmarkJudgeNarrow(b *testing.B) {
	r := narrowed(b)
	for name, text := range asked {
		tt := target(b, text)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Judge(tt)
			}
		})
	}
	tt := target(b, "host1.example.org:443")
	q := &netrule.Request{Method: "GET", Path: path(b, "/v1/items/77")}
	b.Run("request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l := r.Limits(tt)
			l.Request(netrule.TLS, q, false)
		}
	})
}

// narrowed is 2,000 rules, of which half are about requests.
func narrowed(t testing.TB) *netrule.Rules {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("allow host%d.example.org", i), fmt.Sprintf("allow GET,POST host%d.example.org/v1/*", i+500))
	}
	return rules(t, netrule.Options{}, append(lines, "deny DELETE *.example.org", "allow many.example.org:*", "allow *.zone7.example.org")...)
}

func BenchmarkAddress(b *testing.B) {
	r := many(b)
	tt := target(b, "host1.example.org:443")
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "2600:7::1", "64:ff9b::8.8.8.8"} {
		a := netip.MustParseAddr(text)
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Address(tt, a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseHost(b *testing.B) {
	for _, text := range []string{"www.Example.org.", "bücher.example", "192.0.2.7", "[2001:db8::1]"} {
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := netrule.ParseHost(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	lines := make([]string, 10_000)
	for i := range lines {
		lines[i] = fmt.Sprintf("allow host%d.example.org", i)
	}
	set := parsed(b, lines...)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := netrule.New(set, netrule.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// What is asked for at every connection leaves nothing to collect.
func TestNoAllocation(t *testing.T) {
	r := many(t)
	for name, text := range asked {
		tt := target(t, text)
		for what, r := range map[string]*netrule.Rules{"": r, " with requests": narrowed(t)} {
			if n := testing.AllocsPerRun(100, func() { r.Judge(tt) }); n != 0 {
				t.Errorf("%s%s: %v allocations", name, what, n)
			}
		}
	}
	tt := target(t, "host1.example.org:443")
	for _, a := range []string{"1.1.1.1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2600:7::1"} {
		a := netip.MustParseAddr(a)
		if n := testing.AllocsPerRun(100, func() {
			if err := r.Address(tt, a); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", a, n)
		}
	}
}
