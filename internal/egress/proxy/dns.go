package proxy

import (
	"cmp"
	"encoding/binary"
	"io"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// MaxDNS bounds a query and a reply in bytes: what every resolver accepts over UDP (RFC 1035, 2.3.4).
	MaxDNS = 512
	// dnsTTL is how many seconds an address may be cached. It is short because rules change.
	dnsTTL = 5
	// dnsHeader is the length of the header that every message begins with (RFC 1035, 4.1.1).
	dnsHeader = 12
	// badVersion is the low half of BADVERS, an extended code whose upper half is in the OPT record (RFC 6891).
	badVersion = 16
)

// Answer answers a DNS query. lookup is asked for the address of a name in lower case without a final dot, and
// whether it has one; it is asked at most once, and for every type of record. With !ok there is nothing to send:
// the message is too short to have a header, or is itself a reply.
//
// The reply to type A is the address. Every other type gets an empty reply (NODATA), so that a program that asks
// for AAAA or HTTPS beside it goes on with A; the record HTTPS would also bring the keys of ECH.
//
// A name without an address does not exist (NXDOMAIN). REFUSED would be the truth, but glibc repeats such a query
// and then reports "temporary failure", which npm and others retry with delays; musl ignores it and waits 5 s
// for a better one; Go reports "server misbehaving". On NXDOMAIN all of them fail at once, and without an SOA
// record nobody caches it (RFC 2308, 5).
//
// A reply is at most 16 bytes of answer and 11 of EDNS longer than its query, and never longer than MaxDNS.
func Answer(query []byte, lookup func(name string) (netip.Addr, bool)) (reply []byte, ok bool) {
	if len(query) < dnsHeader {
		return nil, false
	}
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil, false
	}
	r := dnsReply{Header: dnsmessage.Header{
		ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true,
	}}
	r.RCode = r.read(&p, query)
	if r.RCode != dnsmessage.RCodeSuccess || r.extended != 0 {
		return r.pack()
	}
	if r.question.Class != dnsmessage.ClassINET {
		r.RCode = dnsmessage.RCodeRefused
		return r.pack()
	}
	name := strings.ToLower(strings.TrimSuffix(r.question.Name.String(), "."))
	a, known := lookup(name)
	switch {
	case !known:
		r.RCode = dnsmessage.RCodeNameError
	case r.question.Type == dnsmessage.TypeA:
		r.address = a
	}
	return r.pack()
}

// MaxDNSTCP bounds a reply over TCP in bytes.
const MaxDNSTCP = 16 << 10

// Records are what a name has of the type SRV or TXT.
type Records struct {
	Services []Service
	Text     []string
	// Missing: there is no such name. Failed: it is not known now.
	Missing, Failed bool
}

// Service is a record of the type SRV (RFC 2782). Target has no final dot.
type Service struct {
	Target                 string
	Port, Priority, Weight uint16
}

// RecordsAsked returns the name, in lower case without a final dot, of a query for SRV, or else TXT. Any other query is !ok, and
// for Answer.
func RecordsAsked(query []byte) (name string, services, ok bool) {
	var p dnsmessage.Parser
	if len(query) < dnsHeader {
		return "", false, false
	}
	h, err := p.Start(query)
	if err != nil || h.Response {
		return "", false, false
	}
	r := dnsReply{Header: dnsmessage.Header{OpCode: h.OpCode}}
	if r.read(&p, query) != dnsmessage.RCodeSuccess || r.extended != 0 || r.question.Class != dnsmessage.ClassINET ||
		r.question.Type != dnsmessage.TypeSRV && r.question.Type != dnsmessage.TypeTXT {
		return "", false, false
	}
	return strings.ToLower(strings.TrimSuffix(r.question.Name.String(), ".")), r.question.Type == dnsmessage.TypeSRV, true
}

// AnswerRecords answers a query that RecordsAsked has taken, in at most so many bytes: with less room, the reply says that there is
// more, and a client asks over TCP.
func AnswerRecords(query []byte, of Records, most int) (reply []byte, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil, false
	}
	r := dnsReply{Header: dnsmessage.Header{
		ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true,
	}}
	r.RCode = r.read(&p, query)
	switch {
	case of.Missing:
		r.RCode = dnsmessage.RCodeNameError
	case of.Failed:
		r.RCode = dnsmessage.RCodeServerFailure
	default:
		r.records = of
	}
	r.most = most
	if reply, ok = r.pack(); !ok {
		r.records, r.Truncated = Records{}, true
		reply, ok = r.pack()
	}
	return reply, ok
}

// dnsReply is a reply under construction.
type dnsReply struct {
	dnsmessage.Header
	question *dnsmessage.Question
	address  netip.Addr
	records  Records
	most     int // bytes; MaxDNS if it is 0
	edns     bool
	extended uint8
}

// read reads a query and returns the code of its reply. The question is set if there is one.
func (r *dnsReply) read(p *dnsmessage.Parser, query []byte) dnsmessage.RCode {
	if r.OpCode != 0 {
		return dnsmessage.RCodeNotImplemented
	}
	count := func(at int) uint16 { return binary.BigEndian.Uint16(query[at:]) }
	if len(query) > MaxDNS || count(4) != 1 || count(6) != 0 || count(8) != 0 || count(10) > 1 {
		return dnsmessage.RCodeFormatError
	}
	q, err := p.Question()
	if err != nil || p.SkipAllQuestions() != nil || p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return dnsmessage.RCodeFormatError
	}
	r.question = &q
	if count(10) == 0 {
		return dnsmessage.RCodeSuccess
	}
	opt, err := p.AdditionalHeader()
	if err != nil || opt.Type != dnsmessage.TypeOPT || opt.Name.String() != "." || p.SkipAdditional() != nil {
		return dnsmessage.RCodeFormatError
	}
	r.edns = true
	if version := uint8(opt.TTL >> 16); version != 0 {
		r.extended = badVersion >> 4
		return dnsmessage.RCode(badVersion & 0xf)
	}
	return dnsmessage.RCodeSuccess
}

func (r *dnsReply) pack() ([]byte, bool) {
	b := dnsmessage.NewBuilder(make([]byte, 0, MaxDNS), r.Header)
	b.EnableCompression()
	var errs [5]error
	if r.question != nil {
		errs[0] = b.StartQuestions()
		errs[1] = b.Question(*r.question)
	}
	if r.address.IsValid() {
		errs[2] = b.StartAnswers()
		head := dnsmessage.ResourceHeader{Name: r.question.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
		errs[3] = b.AResource(head, dnsmessage.AResource{A: r.address.As4()})
	}
	if err := r.packRecords(&b); err != nil {
		return nil, false
	}
	if r.edns {
		errs[4] = b.StartAdditionals()
		head := dnsmessage.ResourceHeader{
			Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: MaxDNS, TTL: uint32(r.extended) << 24,
		}
		if err := b.OPTResource(head, dnsmessage.OPTResource{}); err != nil {
			return nil, false
		}
	}
	for _, err := range errs {
		if err != nil {
			return nil, false
		}
	}
	reply, err := b.Finish()
	return reply, err == nil && len(reply) <= cmp.Or(r.most, MaxDNS)
}

// packRecords adds the records of a name.
func (r *dnsReply) packRecords(b *dnsmessage.Builder) error {
	if len(r.records.Services)+len(r.records.Text) == 0 {
		return nil
	}
	if err := b.StartAnswers(); err != nil {
		return err
	}
	head := dnsmessage.ResourceHeader{Name: r.question.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
	for _, s := range r.records.Services {
		target, err := dnsmessage.NewName(s.Target + ".")
		if err != nil {
			return err
		}
		err = b.SRVResource(head, dnsmessage.SRVResource{Priority: s.Priority, Weight: s.Weight, Port: s.Port, Target: target})
		if err != nil {
			return err
		}
	}
	for _, text := range r.records.Text {
		var parts []string
		for len(text) > maxText {
			parts, text = append(parts, text[:maxText]), text[maxText:]
		}
		if err := b.TXTResource(head, dnsmessage.TXTResource{TXT: append(parts, text)}); err != nil {
			return err
		}
	}
	return nil
}

// maxText is the length of a part of a TXT record (RFC 1035, 3.3).
const maxText = 255

// ReadDNS reads one message from a TCP connection, where each has its length before it (RFC 1035, 4.2.2). At the
// end of the connection the error is io.EOF. A message longer than MaxDNS is of kind invalid argument.
func ReadDNS(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint16(length[:])
	if n < dnsHeader || n > MaxDNS {
		return nil, malformed("the DNS message has %d bytes, not between %d and %d", n, dnsHeader, MaxDNS)
	}
	message := make([]byte, n)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, err
	}
	return message, nil
}

// WriteDNS writes one message to a TCP connection.
func WriteDNS(w io.Writer, message []byte) error {
	framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(message)), uint16(len(message)))
	_, err := w.Write(append(framed, message...))
	return err
}
