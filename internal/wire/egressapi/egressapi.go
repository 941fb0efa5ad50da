// Package egressapi holds the messages between carrel-egress and who starts it: lines of JSON on a Unix
// stream socket that the process inherits. It holds the messages and their bounds; neither side's
// behaviour belongs here.
//
//	starter                              carrel-egress
//	  ── Setup ────────────────────────────▶  confines itself, serves
//	  ◀──────────────── Report{Ready: true} ──
//	  ◀───── Report{Begun}, before the first byte of a connection passes ──
//	  ◀───── Report{Moved}, what has passed on those that are open ──
//	  ◀───── Report{Connection}, one for each ended connection and each refusal ──
//	  ── Setup, with other rules or secrets ▶  cuts what is no longer allowed
//	  ◀──────────────── Report{Ready: true} ──  once nothing of it passes any more
//	  ◀───── Report{Ask}, for connections that wait ──
//	  ── Answer ───────────────────────────▶  they go on, or are refused
//	  ◀───── Report{Gone} instead, once none waits any more ──
//	  ◀───── Report{Lease}, before each request to a model ──
//	  ── Granted ──────────────────────────▶  it is made, or refused
//	  ◀───── Report{Progress}, while what it uses grows ──
//	  ◀───── Report{Usage}, when one that was granted has ended ──
//	  ── Slow ─────────────────────────────▶  makes connections later
//	  ── List ─────────────────────────────▶
//	  ◀───── Report{Open}, one or more: the connections that are open ──
//	  ── end of file ──────────────────────▶  ends
package egressapi

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Version is the newest version of the messages that this build speaks. A Setup with rules that have a protocol or
// requests has version 2, so that a carrel-egress that does not know those takes none of them for a rule about a whole
// host. One with a proxy inside TLS has version 3. Any other has version 1.
const Version = 3

// The descriptors that carrel-egress inherits: the control socket, then the sockets of package netns in
// their order.
const (
	ControlFD = 3
	SocketsFD = 4
)

// Bounds of one line in bytes. A Setup has room for 10,000 rules with names of the longest kind.
const (
	MaxSetup  = 4 << 20
	MaxReport = 16 << 10
)

// Setup is what carrel-egress does. A later one replaces all of it.
type Setup struct {
	Version int `json:"version"`
	// Rules are all rules in force; without any nothing is reached.
	Rules []netrule.Rule `json:"rules"`
	// Public are networks that count as public on this host, although their addresses are reserved.
	Public []netip.Prefix `json:"public,omitempty"`
	// Resolver is the name server to ask, as 192.0.2.1:53; without one the host's resolver is used.
	Resolver netip.AddrPort `json:"resolver,omitzero"`
	// Proxy is by which other hosts are reached; nil is none.
	Proxy *Proxy `json:"proxy,omitempty"`
	// Remedy ends the text of a refusal; %s stands for HOST:PORT. "" is none.
	Remedy string `json:"remedy,omitempty"`
	// Secrets replace their placeholders in requests to the hosts that they are bound to. A later Setup with others
	// cuts the connections to those hosts.
	Secrets []Secret `json:"secrets,omitempty"`
	// CA is the key and the certificate that ca.Marshal returned. Required with Secrets; without it, hosts of which rules name
	// requests are not reached by TLS. The starter keeps it, so that a
	// process that replaces another has the CA that the workspace trusts.
	CA Private `json:"ca,omitzero"`
	// Models are served inside. A later Setup with others cuts the connections to those that are no longer the same.
	Models []Model `json:"models,omitempty"`
}

// Proxy is an HTTP proxy outside that serves CONNECT.
type Proxy struct {
	// Address is HOST:PORT.
	Address string `json:"address"`
	// TLS: it is spoken to inside TLS, with its name and the authorities of the host.
	TLS bool `json:"tls,omitempty"`
	// Login is USER:PASSWORD, or empty.
	Login Private `json:"login,omitzero"`
	// Direct are rules, with Deny, for targets that are reached without it.
	Direct []netrule.Rule `json:"direct,omitempty"`
}

// SetVersion sets the oldest version that has all that the Setup says.
func (s *Setup) SetVersion() {
	s.Version = 1
	for i := range s.Rules {
		if s.Rules[i].Narrow() {
			s.Version = 2
		}
	}
	if s.Proxy != nil && s.Proxy.TLS { // another would send the login in the clear
		s.Version = 3
	}
}

// InsideTLS reports whether requests have to be read inside TLS, to judge them or to send secrets.
func (s *Setup) InsideTLS() bool {
	return len(s.Secrets) > 0 || slices.ContainsFunc(s.Rules, func(r netrule.Rule) bool { return r.InsideTLS() })
}

// Check refuses another version.
func (s *Setup) Check() error {
	if s.Version >= 1 && s.Version <= Version {
		return nil
	}
	return fmt.Errorf("cannot serve version %d of egress's messages: this carrel-egress speaks %d; install all programs of one release: %w",
		s.Version, Version, errdefs.ErrFailedPrecondition)
}

// Report is one thing that carrel-egress says.
type Report struct {
	// Ready: it serves by the rules of the last Setup.
	Ready bool `json:"ready,omitempty"`
	// Error says why it ends.
	Error string `json:"error,omitempty"`
	// Connection has ended, or was refused.
	Connection *Connection `json:"connection,omitempty"`
	// Begun is a connection that has got through, with an ID. It ends with the Connection of that, or else with Over.
	Begun *Connection `json:"begun,omitempty"`
	Over  uint64      `json:"over,omitempty"`
	// Moved is what has passed on connections that have begun.
	Moved []Moved `json:"moved,omitempty"`
	// Ask is a new question, Gone the end of one that was not answered.
	Ask  *Ask  `json:"ask,omitempty"`
	Gone *Gone `json:"gone,omitempty"`
	// Lease asks for a request to a model, Usage tells of the end of one. Progress is what one has used so far, in a Usage
	// without Call.
	Lease    *Lease `json:"lease,omitempty"`
	Progress *Usage `json:"progress,omitempty"`
	Usage    *Usage `json:"usage,omitempty"`
	// Open is a part of the answer to a List.
	Open *Open `json:"open,omitempty"`
}

// Connection is what is told of a connection, or of equal refusals.
type Connection struct {
	// ID is that of Report.Begun; 0 if there was none.
	ID    uint64    `json:"id,omitempty"`
	Began time.Time `json:"began"`
	// DurationMS is how long it lasted, in milliseconds.
	DurationMS int64 `json:"duration_ms"`
	// Way is how it was asked for: transparent, connect, http, socks or dns.
	Way string `json:"way"`
	// Host is a canonical name or address; Port is 0 for a name that was only asked about.
	Host string `json:"host"`
	Port uint16 `json:"port,omitempty"`
	// Address is what was connected to, Rule the text of the rule that decided.
	Address string `json:"address,omitempty"`
	Rule    string `json:"rule,omitempty"`
	// Refused says why it was refused, "" if it was not.
	Refused string `json:"refused,omitempty"`
	// SentBytes went to the host, ReceivedBytes came from it.
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
	// Secrets are the names of those that were sent to the host, known of connections that were intercepted. Requests is
	// how many requests there were, known of those and of connections to models.
	Secrets  []string `json:"secrets,omitempty"`
	Requests int64    `json:"requests,omitempty"`
	// Count is how many equal refusals this stands for, at least 1.
	Count int64 `json:"count"`
}
