package proxy_test

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
)

var stand = netip.MustParseAddr("198.18.7.9")

// known knows one name.
func known(name string) (netip.Addr, bool) { return stand, name == "example.org" }

func question(name string, kind dnsmessage.Type) dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}
}

func pack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// opt is the EDNS record that resolvers send (RFC 6891).
func opt(version uint32) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{
			Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: 4096, TTL: version << 16,
		},
		Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 10, Data: make([]byte, 8)}}},
	}
}

func TestAnswer(t *testing.T) {
	ask := func(q ...dnsmessage.Question) dnsmessage.Message {
		return dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: q}
	}
	with := func(m dnsmessage.Message, change func(*dnsmessage.Message)) dnsmessage.Message {
		change(&m)
		return m
	}
	a := ask(question("example.org.", dnsmessage.TypeA))
	chaos := question("example.org.", dnsmessage.TypeA)
	chaos.Class = dnsmessage.ClassCHAOS
	for name, c := range map[string]struct {
		query   dnsmessage.Message
		code    dnsmessage.RCode
		address bool
	}{
		"A":             {a, dnsmessage.RCodeSuccess, true},
		"A in capitals": {ask(question("eXAMPLE.oRG.", dnsmessage.TypeA)), dnsmessage.RCodeSuccess, true},
		"AAAA":          {ask(question("example.org.", dnsmessage.TypeAAAA)), dnsmessage.RCodeSuccess, false},
		"HTTPS":         {ask(question("example.org.", 65)), dnsmessage.RCodeSuccess, false},
		"TXT":           {ask(question("example.org.", dnsmessage.TypeTXT)), dnsmessage.RCodeSuccess, false},
		"ANY":           {ask(question("example.org.", dnsmessage.TypeALL)), dnsmessage.RCodeSuccess, false},
		"not allowed":   {ask(question("evil.example.", dnsmessage.TypeA)), dnsmessage.RCodeNameError, false},
		"TXT tunnel":    {ask(question("c2VjcmV0.evil.example.", dnsmessage.TypeTXT)), dnsmessage.RCodeNameError, false},
		"root":          {ask(question(".", dnsmessage.TypeNS)), dnsmessage.RCodeNameError, false},
		"no question":   {ask(), dnsmessage.RCodeFormatError, false},
		"two questions": {ask(a.Questions[0], a.Questions[0]), dnsmessage.RCodeFormatError, false},
		"chaos":         {ask(chaos), dnsmessage.RCodeRefused, false},
		"update":        {with(a, func(m *dnsmessage.Message) { m.OpCode = 5 }), dnsmessage.RCodeNotImplemented, false},
		"EDNS":          {with(a, func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(0)} }), dnsmessage.RCodeSuccess, true},
		"EDNS 1":        {with(a, func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(1)} }), 0, false},
		"two OPT": {
			with(a, func(m *dnsmessage.Message) { m.Additionals = []dnsmessage.Resource{opt(0), opt(0)} }), dnsmessage.RCodeFormatError, false,
		},
		"an answer": {with(a, func(m *dnsmessage.Message) {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: a.Questions[0].Name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{},
			}}
		}), dnsmessage.RCodeFormatError, false},
	} {
		t.Run(name, func(t *testing.T) {
			query := pack(t, c.query)
			reply, ok := proxy.Answer(query, known)
			if !ok || len(reply) > len(query)+27 || len(reply) > proxy.MaxDNS {
				t.Fatalf("%v, %d bytes for %d", ok, len(reply), len(query))
			}
			var m dnsmessage.Message
			if err := m.Unpack(reply); err != nil {
				t.Fatal(err)
			}
			if m.ID != 7 || !m.Response || m.RCode != c.code {
				t.Errorf("got %v", m.GoString())
			}
			if c.code != dnsmessage.RCodeFormatError && m.OpCode == 0 && !slices.Equal(m.Questions, c.query.Questions) {
				t.Errorf("the question is %v", m.Questions)
			}
			if got := len(m.Answers) == 1; got != c.address || len(m.Answers) > 1 {
				t.Fatalf("the answers are %v", m.Answers)
			}
			if c.address {
				body, _ := m.Answers[0].Body.(*dnsmessage.AResource)
				if body == nil || body.A != stand.As4() || m.Answers[0].Header.TTL != 5 {
					t.Errorf("the answer is %v", m.Answers[0])
				}
			}
			if edns := len(c.query.Additionals) == 1; edns != (len(m.Additionals) == 1) && len(c.query.Answers) == 0 {
				t.Errorf("the additional records are %v", m.Additionals)
			}
			if name == "EDNS 1" && m.Additionals[0].Header.ExtendedRCode(m.RCode) != 16 {
				t.Errorf("the extended code is %v", m.Additionals[0].Header.ExtendedRCode(m.RCode))
			}
		})
	}
}

func TestAnswerNothing(t *testing.T) {
	query := pack(t, dnsmessage.Message{Questions: []dnsmessage.Question{question("example.org.", dnsmessage.TypeA)}})
	reply, _ := proxy.Answer(query, known)
	for name, b := range map[string][]byte{"nothing": nil, "short": query[:11], "a reply": reply} {
		if got, ok := proxy.Answer(b, known); ok {
			t.Errorf("%s is answered with %x", name, got)
		}
	}
	long := append(slices.Clone(query), make([]byte, proxy.MaxDNS)...)
	if got, ok := proxy.Answer(long, known); !ok || got[3]&0xf != byte(dnsmessage.RCodeFormatError) || len(got) != 12 {
		t.Errorf("a long query is answered with %x", got)
	}
	loop := append(slices.Clone(query[:12]), 0xc0, 12, 0, 1, 0, 1)
	if got, ok := proxy.Answer(loop, known); !ok || got[3]&0xf != byte(dnsmessage.RCodeFormatError) {
		t.Errorf("a name that points at itself is answered with %x", got)
	}
}

func TestDNSFrames(t *testing.T) {
	var b bytes.Buffer
	message := bytes.Repeat([]byte{1}, 40)
	if err := proxy.WriteDNS(&b, message); err != nil {
		t.Fatal(err)
	}
	stream := dribble{&b}
	if got, err := proxy.ReadDNS(stream); err != nil || !bytes.Equal(got, message) {
		t.Errorf("%x, %v", got, err)
	}
	if _, err := proxy.ReadDNS(stream); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	for _, frame := range []string{"\x02\x01", "\xff\xff", "\x00\x00", "\x00\x0b"} {
		if _, err := proxy.ReadDNS(strings.NewReader(frame)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", frame, err)
		}
	}
	if _, err := proxy.ReadDNS(strings.NewReader("\x00\x20short")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// Whatever comes, a reply is well formed, is for the same query, and is not much longer.
func FuzzAnswer(f *testing.F) {
	a := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{question("example.org.", dnsmessage.TypeA)}}
	f.Add(pack(f, a))
	a.Additionals = []dnsmessage.Resource{opt(0)}
	f.Add(pack(f, a))
	a.Additionals = []dnsmessage.Resource{opt(1)}
	f.Add(pack(f, a))
	f.Fuzz(func(t *testing.T, query []byte) {
		asked := 0
		reply, ok := proxy.Answer(query, func(name string) (netip.Addr, bool) {
			asked++
			if name != strings.ToLower(name) || len(name) > 254 {
				t.Errorf("asked for %q", name)
			}
			return stand, len(name)%2 == 1
		})
		if !ok {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("the reply %x: %v", reply, err)
		}
		// A compressed name in the question is written in full.
		if !m.Response || !bytes.Equal(reply[:2], query[:2]) || asked > 1 || len(m.Answers) > asked || len(reply) > 12+255+4+16+11 {
			t.Errorf("the reply is %s", m.GoString())
		}
	})
}
