package netrule_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		rules   []string
		targets map[string]string // to "allow RULE", "deny RULE" or "deny"
	}{
		{nil, map[string]string{"example.org:443": "deny", "192.0.2.7:443": "deny", "localhost:80": "deny"}},
		{[]string{"allow example.org"}, map[string]string{
			"example.org:443": "allow example.org", "example.org:80": "allow example.org", "EXAMPLE.ORG.:443": "allow example.org",
			"example.org:79": "deny", "example.org:81": "deny", "example.org:22": "deny", "example.org:444": "deny", "x.example.org:443": "deny",
			"org:443": "deny", "xexample.org:443": "deny", "example.org.evil.example:443": "deny", "8.8.8.8:443": "deny",
		}},
		{[]string{"allow *.example.org:22"}, map[string]string{
			"example.org:22": "deny", "a.example.org:22": "allow *.example.org:22", "b.a.example.org:22": "allow *.example.org:22",
			"aexample.org:22": "deny", "a.example.org:443": "deny", "_.example.org:22": "allow *.example.org:22",
		}},
		// The more exact rule is named, and the narrower range.
		{[]string{
			"allow *", "allow *.org", "allow *.example.org", "allow a.example.org", "allow a.example.org:443", "allow a.example.org:400-500",
		}, map[string]string{
			"a.example.org:443": "allow a.example.org", "a.example.org:450": "allow a.example.org:400-500",
			"a.example.org:80":  "allow a.example.org",
			"b.example.org:443": "allow *.example.org", "example.org:443": "allow *.org", "org:443": "allow *", "example.com:80": "allow *",
			"example.com:22": "deny", "8.8.8.8:443": "allow *", "10.0.0.1:443": "deny", "[::1]:80": "deny",
		}},
		// Deny wins, wherever it stands.
		{[]string{"allow a.example.org:*", "deny *.example.org:22", "allow *.org"}, map[string]string{
			"a.example.org:22": "deny *.example.org:22", "a.example.org:23": "allow a.example.org:*", "b.example.org:22": "deny *.example.org:22",
			"b.example.org:443": "allow *.org",
		}},
		{[]string{"allow *.example.org", "deny secret.example.org"}, map[string]string{
			"secret.example.org:443": "deny secret.example.org", "secret.example.org:9": "deny secret.example.org",
			"x.secret.example.org:443": "allow *.example.org",
		}},
		{[]string{"allow example.org:*", "allow 192.0.2.7:*", "deny *:25"}, map[string]string{
			"example.org:25": "deny *:25", "example.org:26": "allow example.org:*", "192.0.2.7:25": "deny *:25",
			"192.0.2.7:24":   "allow 192.0.2.7:*",
			"example.com:25": "deny *:25", "[::1]:25": "deny *:25",
		}},
		// A rule with Deny and without ports is about all of them.
		{[]string{"allow *:*", "deny example.org", "deny 8.8.8.0/24"}, map[string]string{
			"example.org:22": "deny example.org", "8.8.8.8:1": "deny 8.8.8.0/24", "8.8.9.8:65535": "allow *:*", "example.com:1": "allow *:*",
		}},
		{[]string{"deny *", "allow example.org"}, map[string]string{"example.org:443": "deny *", "example.org:22": "deny *"}},
		// Addresses: the smallest network is named.
		{[]string{"allow 8.0.0.0/8", "allow 8.8.0.0/16", "allow 8.8.8.8", "deny 8.8.4.0/24:443", "allow [2600::/16]:443"}, map[string]string{
			"8.8.8.8:443": "allow 8.8.8.8", "8.8.8.9:443": "allow 8.8.0.0/16", "8.9.0.1:80": "allow 8.0.0.0/8", "9.0.0.1:443": "deny",
			"8.8.4.4:443": "deny 8.8.4.0/24:443", "8.8.4.4:80": "allow 8.8.0.0/16", "8.8.8.8:22": "deny", "[2600::1]:443": "allow [2600::/16]:443",
			"[2601::1]:443": "deny", "[::ffff:8.8.4.4]:443": "deny 8.8.4.0/24:443", "[64:ff9b::8.8.4.4]:443": "deny 8.8.4.0/24:443",
			"7.255.255.255:80": "deny", "8.255.255.255:80": "allow 8.0.0.0/8",
		}},
		// What is not public takes a rule that names it, no wider than its class.
		{[]string{"allow *:443", "allow 10.1.0.0/16:443", "allow 0.0.0.0/0:443", "allow 127.0.0.1:443", "allow [::/0]:443"}, map[string]string{
			"10.1.2.3:443": "allow 10.1.0.0/16:443", "10.2.0.1:443": "deny", "127.0.0.1:443": "allow 127.0.0.1:443", "127.0.0.2:443": "deny",
			"169.254.169.254:443": "deny", "8.8.8.8:443": "allow 0.0.0.0/0:443", "[2600::1]:443": "allow [::/0]:443", "[::1]:443": "deny",
			"[fd00:ec2::254]:443": "deny", "[64:ff9b::10.2.0.1]:443": "deny", "[64:ff9b::10.1.0.1]:443": "allow [::/0]:443",
		}},
		{[]string{"allow *:443", "allow [64:ff9b::/96]:443"}, map[string]string{
			"[64:ff9b::8.8.8.8]:443": "allow [64:ff9b::/96]:443", "[64:ff9b::10.1.0.1]:443": "deny", "[2002:7f00:1::]:443": "deny",
			"[2002:808:808::]:443": "allow *:443",
		}},
	} {
		r := rules(t, netrule.Options{}, c.rules...)
		for text, want := range c.targets {
			v := r.Judge(target(t, text))
			if got := strings.TrimSpace(string(v.Action) + " " + v.Rule); got != want {
				t.Errorf("%q: %s: %s, want %s", c.rules, text, got, want)
			}
		}
		for _, none := range []netrule.Target{{}, {Port: 443}, {Host: target(t, "example.org:443").Host}} {
			if v := r.Judge(none); v.Action != netrule.Deny {
				t.Errorf("%q: %+v: %+v", c.rules, none, v)
			}
		}
	}
	var zero netrule.Rules
	if v := zero.Judge(target(t, "example.org:443")); v != (netrule.Verdict{Action: netrule.Deny}) {
		t.Errorf("no rules: %+v", v)
	}
}

// As the documentation has it, without tables: each rule is looked at.
func TestJudgeAgainstEveryRule(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		var set []netrule.Rule
		for range random.IntN(40) {
			set = append(set, randomRule(t, random))
		}
		r, err := netrule.New(set, netrule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		shuffled := slices.Clone(set)
		random.Shuffle(len(set), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		other, err := netrule.New(shuffled, netrule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			tt := target(t, randomHost(random)+":"+fmt.Sprint(1+random.IntN(8)))
			got := r.Judge(tt)
			if again := other.Judge(tt); again != got {
				t.Fatalf("round %d: %s: %+v, and with the rules in another order %+v", round, tt, got, again)
			}
			if want := judged(set, tt); got != want {
				t.Fatalf("round %d: %s: %+v, want %+v of %v", round, tt, got, want, texts(set))
			}
		}
	}
}

// Names and networks nest, and ports overlap.
func randomHost(random *rand.Rand) string {
	if random.IntN(2) == 0 {
		return fmt.Sprintf("8.8.%d.%d", random.IntN(3), random.IntN(4))
	}
	labels := []string{"a", "b", "c"}
	name := labels[random.IntN(3)]
	for range random.IntN(4) {
		name = labels[random.IntN(3)] + "." + name
	}
	return name
}

func randomRule(t *testing.T, random *rand.Rand) netrule.Rule {
	host := randomHost(random)
	switch {
	case random.IntN(20) == 0:
		host = "*"
	case host[0] == '8':
		host = netip.PrefixFrom(netip.MustParseAddr(host), 16+random.IntN(17)).Masked().String()
	case random.IntN(2) == 0:
		host = "*." + host
	}
	from := 1 + random.IntN(8)
	action := []netrule.Action{netrule.Allow, netrule.Allow, netrule.Allow, netrule.Ask, netrule.Approved, netrule.Deny}[random.IntN(6)]
	r, err := netrule.ParseRule(action, fmt.Sprintf("%s:%d-%d", host, from, from+random.IntN(4)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// judged is Judge for public hosts.
func judged(set []netrule.Rule, t netrule.Target) netrule.Verdict {
	type match struct {
		netrule.Rule
		exact, width int
	}
	var matches []match
	a, literal := t.Host.Addr()
	for _, r := range set {
		exact := 0
		switch {
		case t.Port < r.Ports.First || t.Port > r.Ports.Last:
			continue
		case r.Any:
		case literal && r.Net.IsValid() && r.Net.Contains(a):
			exact = 1 + r.Net.Bits()
		case r.Name != "" && !r.Below && r.Name == t.Host.Name():
			exact = 1000
		case r.Name != "" && r.Below && strings.HasSuffix(t.Host.Name(), "."+r.Name):
			exact = 1 + len(r.Name)
		default:
			continue
		}
		matches = append(matches, match{r, exact, int(r.Ports.Last - r.Ports.First)})
	}
	if len(matches) == 0 {
		return netrule.Verdict{Action: netrule.Deny}
	}
	best := slices.MinFunc(matches, func(x, y match) int {
		return cmp.Or(cmp.Compare(slices.Index(strictest, x.Action), slices.Index(strictest, y.Action)), -cmp.Compare(x.exact, y.exact),
			cmp.Compare(x.width, y.width),
			strings.Compare(x.Text, y.Text))
	})
	if best.Action == netrule.Approved {
		best.Action = netrule.Allow
	}
	return netrule.Verdict{Action: best.Action, Rule: best.Text}
}

// strictest are the actions, the one that wins first.
var strictest = []netrule.Action{netrule.Deny, netrule.Approved, netrule.Ask, netrule.Allow}

func texts(set []netrule.Rule) (all []string) {
	for _, r := range set {
		all = append(all, string(r.Action)+" "+r.Text)
	}
	return all
}

func TestHosts(t *testing.T) {
	r := rules(t, netrule.Options{}, "allow b.example", "allow a.example:22", "allow b.example:22", "allow *.c.example", "deny d.example",
		"allow 192.0.2.7", "allow *", "allow bücher.example")
	want := []string{"a.example", "b.example", "xn--bcher-kva.example"}
	got := r.Hosts()
	if !slices.Equal(got, want) {
		t.Errorf("hosts %q, want %q", got, want)
	}
	got[0] = "changed"
	if !slices.Equal(r.Hosts(), want) {
		t.Error("the caller's change is seen")
	}
}

// New keeps nothing of its arguments, and Rules are used by many at a time.
func TestRulesAreImmutable(t *testing.T) {
	set := parsed(t, "allow example.org", "allow 10.0.0.0/8:443")
	o := netrule.Options{Public: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}, Own: []netip.Addr{netip.MustParseAddr("8.8.8.8")}}
	r, err := netrule.New(set, o)
	if err != nil {
		t.Fatal(err)
	}
	clear(set)
	clear(o.Public)
	clear(o.Own)
	tt := target(t, "example.org:443")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if v := r.Judge(tt); v.Action != netrule.Allow {
					t.Errorf("%+v", v)
				}
				if err := r.Address(tt, netip.MustParseAddr("198.18.0.1")); err != nil {
					t.Error(err)
				}
				if r.Address(tt, netip.MustParseAddr("8.8.8.8")) == nil {
					t.Error("the host's own address is allowed")
				}
			}
		})
	}
	wg.Wait()
}
