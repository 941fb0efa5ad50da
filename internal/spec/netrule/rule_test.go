package netrule_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func TestParseRule(t *testing.T) {
	net := netip.MustParsePrefix
	every := netrule.Ports{First: 1, Last: 65535}
	for text, want := range map[string]netrule.Rule{
		"example.org":             {Name: "example.org"},
		"Example.ORG.":            {Name: "example.org", Text: "example.org"},
		"example.org:22":          {Name: "example.org", Ports: netrule.Ports{First: 22, Last: 22}},
		"example.org:8000-8100":   {Name: "example.org", Ports: netrule.Ports{First: 8000, Last: 8100}},
		"example.org:80-80":       {Name: "example.org", Ports: netrule.Ports{First: 80, Last: 80}, Text: "example.org:80"},
		"example.org:*":           {Name: "example.org", Ports: every},
		"example.org:1-65535":     {Name: "example.org", Ports: every, Text: "example.org:*"},
		"*.example.org":           {Name: "example.org", Below: true},
		"*.org:443":               {Name: "org", Below: true, Ports: netrule.Ports{First: 443, Last: 443}},
		"*.bücher.example":        {Name: "xn--bcher-kva.example", Below: true, Text: "*.xn--bcher-kva.example"},
		"192.0.2.7":               {Net: net("192.0.2.7/32")},
		"192.0.2.7:5432":          {Net: net("192.0.2.7/32"), Ports: netrule.Ports{First: 5432, Last: 5432}},
		"192.0.2.7/32:5432":       {Net: net("192.0.2.7/32"), Ports: netrule.Ports{First: 5432, Last: 5432}, Text: "192.0.2.7:5432"},
		"10.1.0.0/16:5432":        {Net: net("10.1.0.0/16"), Ports: netrule.Ports{First: 5432, Last: 5432}},
		"0.0.0.0/0":               {Net: net("0.0.0.0/0")},
		"[2001:db8::1]:443":       {Net: net("2001:db8::1/128"), Ports: netrule.Ports{First: 443, Last: 443}},
		"[2001:DB8:0::/32]:443":   {Net: net("2001:db8::/32"), Ports: netrule.Ports{First: 443, Last: 443}, Text: "[2001:db8::/32]:443"},
		"[2001:db8::/32]":         {Net: net("2001:db8::/32")},
		"[::1]":                   {Net: net("::1/128")},
		"[::1/128]:*":             {Net: net("::1/128"), Ports: every, Text: "[::1]:*"},
		"[::ffff:192.0.2.7]:5432": {Net: net("192.0.2.7/32"), Ports: netrule.Ports{First: 5432, Last: 5432}, Text: "192.0.2.7:5432"},
		"*":                       {Any: true},
		"*:443":                   {Any: true, Ports: netrule.Ports{First: 443, Last: 443}},
		"*:*":                     {Any: true, Ports: every},
	} {
		for _, a := range []netrule.Action{netrule.Allow, netrule.Deny} {
			want := want
			if want.Action = a; want.Text == "" {
				want.Text = text
			}
			got, err := netrule.ParseRule(a, text)
			if err != nil || got != want {
				t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
				continue
			}
			if again, err := netrule.ParseRule(a, got.Text); err != nil || again != got {
				t.Errorf("%q: %q is read as %+v, %v", text, got.Text, again, err)
			}
		}
	}
}

func TestParseRuleRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                              "empty",
		"2001:db8::1":                   "write brackets",
		"2001:db8::1:443":               "write brackets",
		"2001:db8::/32":                 "write brackets",
		"example.org:22:23":             "write brackets",
		"https://example.org/":          "it is a URL",
		"@llm":                          "expand the set",
		"example.org:":                  "the ports",
		"example.org:0":                 "the ports",
		"example.org:65536":             "the ports",
		"example.org:022":               "the ports",
		"example.org:2-1":               "the ports",
		"example.org:1-":                "the ports",
		"example.org:-1":                "the ports",
		"example.org:1-2-3":             "the ports",
		"example.org:80,443":            "the ports",
		"example.org:**":                "the ports",
		"example.org:http":              "the ports",
		"10.1.2.3/16":                   "write 10.1.0.0/16",
		"[2001:db8::1/32]:443":          "write [2001:db8::/32]",
		"10.0.0.0/33":                   "not a network",
		"10.0.0.0/08":                   "not a network",
		"10.0.0/8":                      "not a network",
		"010.0.0.0/8":                   "not a network",
		"10.0.0.0/255.0.0.0":            "not a network",
		"10.0.0.0/8/8":                  "not a network",
		"[10.0.0.0/8]:443":              "brackets are for IPv6",
		"[10.0.0.1]:443":                "brackets are for IPv6",
		"[2001:db8::/32":                "brackets",
		"[2001:db8::1":                  "brackets",
		"[2001:db8::]/32:443":           "not a network",
		"[2001:db8::1]x":                "brackets",
		"[fe80::1%eth0]:443":            "zones",
		"[fe80::%eth0/64]:443":          "not a network",
		"[::ffff:10.0.0.0/104]:443":     "write the IPv4 network",
		"**.example.org":                "a * stands alone",
		"*.*.example.org":               "a * stands alone",
		"a.*.org":                       "a * stands alone",
		"*example.org":                  "a * stands alone",
		"*.":                            "empty",
		"*.10.0.0.1":                    "write a network",
		"*.[::1]:443":                   "write brackets",
		"*.[::1]":                       "write brackets",
		"*.1":                           "ends in a number",
		"127.1:80":                      "ends in a number",
		"example.org\x00:80":            "cannot be part of a host",
		"user@example.org":              "cannot be part of a host",
		" example.org":                  "not an HTTP method",
		strings.Repeat("x", 5000) + ":": "the ports",
	} {
		r, err := netrule.ParseRule(netrule.Allow, text)
		switch {
		case err == nil:
			t.Errorf("%q is read as %+v", text, r)
		case !errdefs.IsInvalidArgument(err), !strings.Contains(err.Error(), says), !strings.HasPrefix(err.Error(), "cannot read the "),
			len(err.Error()) > 1000:
			t.Errorf("%q: %v; want it to say %s", text, err, says)
		}
	}
	for _, a := range []netrule.Action{"", "Allow", "maybe"} {
		if _, err := netrule.ParseRule(a, "example.org"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("the action %q: %v", a, err)
		}
	}
}

// New takes no rule whose fields say what no text says.
func TestNewRefusesOtherRules(t *testing.T) {
	net := netip.MustParsePrefix
	for name, r := range map[string]netrule.Rule{
		"zero":            {},
		"no action":       {Name: "example.org"},
		"no host":         {Action: netrule.Allow},
		"case":            {Action: netrule.Allow, Name: "Example.org"},
		"dot":             {Action: netrule.Deny, Name: "example.org."},
		"an address":      {Action: netrule.Deny, Name: "192.0.2.7"},
		"a pattern":       {Action: netrule.Allow, Name: "*"},
		"a pattern below": {Action: netrule.Allow, Name: "*.example.org"},
		"all names":       {Action: netrule.Allow, Below: true},
		"two":             {Action: netrule.Allow, Name: "example.org", Any: true},
		"two nets":        {Action: netrule.Allow, Name: "example.org", Net: net("10.0.0.0/8")},
		"any below":       {Action: netrule.Allow, Any: true, Below: true},
		"net below":       {Action: netrule.Allow, Net: net("10.0.0.0/8"), Below: true},
		"host bits":       {Action: netrule.Deny, Net: net("10.0.0.1/8")},
		"mapped":          {Action: netrule.Deny, Net: net("::ffff:10.0.0.0/104")},
		"zone":            {Action: netrule.Deny, Net: netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.1"), 128)},
		"port 0":          {Action: netrule.Allow, Name: "example.org", Ports: netrule.Ports{Last: 1}},
		"last 0":          {Action: netrule.Allow, Name: "example.org", Ports: netrule.Ports{First: 1}},
		"descending":      {Action: netrule.Allow, Name: "example.org", Ports: netrule.Ports{First: 2, Last: 1}},
	} {
		if _, err := netrule.New([]netrule.Rule{r}, netrule.Options{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The text is free, and where there is none the canonical form stands for it.
	for text, want := range map[string]string{"": "example.org", "@x: example.org": "@x: example.org"} {
		r, err := netrule.New([]netrule.Rule{{Action: netrule.Allow, Name: "example.org", Text: text}}, netrule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if v := r.Judge(target(t, "example.org:443")); v.Rule != want {
			t.Errorf("%q: %+v", text, v)
		}
	}
}

// parsed reads lines "allow example.org".
func parsed(t testing.TB, lines ...string) []netrule.Rule {
	t.Helper()
	var rules []netrule.Rule
	for _, line := range lines {
		action, text, _ := strings.Cut(line, " ")
		r, err := netrule.ParseRule(netrule.Action(action), text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	return rules
}
