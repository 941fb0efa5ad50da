// Package model serves the API of a model inside a workspace: plain HTTP there, TLS to the host that has the model, and
// the key of that is put in outside of the workspace.
//
//	program in the workspace              handler                              host
//	  │  POST /v1/messages ─────────────► │  Reserve: is there budget? ──────────► │ (the starter)
//	  │  x-api-key: anything              │  POST, x-api-key: KEY, over TLS ─────► │
//	  │ ◄──────── events, as they come ── │ ◄──────────────── events, with usage ─ │
//	  │                                   │  done(usage, digests)                  │
//
// The program is hostile: it chooses paths, headers and bodies, reads slowly or goes away. It gets the calls in table
// and no other; no header of its own says who pays. The model's name is read from the body, which is held in memory, up to
// MaxBody and within Room, because its last member may be the model. A body that two programs could read as two objects is
// refused, so that the model that is counted is the one that answers.
//
// The host is trusted with the key, and with what it says of its usage. It is not trusted otherwise: its redirects are not
// followed nor handed on, its cookies are dropped, and where it repeats the key the program sees asterisks.
//
// Usage is read from JSON and from event streams as they pass. What the host does not tell is estimated, rather too
// high, and marked as unknown: one token for every two bytes of the request, and of the text of the response or 100
// tokens for each second, whichever is more. A program that goes away before the end is charged so. An answer with an
// error status that tells no usage counts none.
//
// For a stream of chat completions the handler asks for usage (stream_options.include_usage) if the program did not, and
// leaves the additional event out of what the program gets.
//
// What was sent and what came is told by its SHA-256, of the bytes at the host's side. They are hashed as they pass, and never
// kept for it.
//
// The package must not decide what may be spent or reached, nor dial: Config hands both in.
package model

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/room"
)

// API is the API that a host has.
type API string

// The APIs. OpenAI stands for every server that is compatible with it.
const (
	Anthropic API = "anthropic"
	OpenAI    API = "openai"
)

// APIs are all of them.
func APIs() []API { return []API{Anthropic, OpenAI} }

// Config holds the dependencies of New.
type Config struct {
	API API
	// Upstream is where the API is: as a program would have it in ANTHROPIC_BASE_URL (https://api.anthropic.com) or
	// OPENAI_BASE_URL (https://api.openai.com/v1).
	Upstream string
	// Key is sent as x-api-key, or as Authorization: Bearer. Required.
	Key redact.Value
	// KeepStreams leaves streams of chat completions as the program asks for them, for servers that refuse
	// stream_options. If they tell no usage it is estimated.
	KeepStreams bool
	// Reserve is asked before each request. The text of an error is told to the program. An error of kind unavailable is one
	// that may go away; any other is meant to last.
	Reserve func(ctx context.Context, r Request) (Lease, error)
	// Transport sends the requests. Its connections are to the host of Upstream. Required; see NewTransport.
	Transport http.RoundTripper
	// Room bounds what requests take in memory, of several handlers together. nil is a room of its own.
	Room *room.Room
	// Idle ends a request for which nothing has come from the host for so long; 30 min.
	Idle time.Duration
	// Longest ends a request in any case; 2 h.
	Longest time.Duration
	// Slow ends a request of which the program has sent or taken nothing for so long; 1 min.
	Slow time.Duration
}

// Request is what a program asks for.
type Request struct {
	// Model is what the program names; "" if the call uses none.
	Model string
	// Bytes is the length of its body.
	Bytes int64
}

// Lease is a request that may be made.
type Lease struct {
	// Done is called once, when the request has ended.
	Done func(Usage, Call)
	// Progress is told from time to time what has been used so far, so that it counts if this process is killed. Optional.
	Progress func(Usage)
}

// The length of a key in bytes.
const (
	MinKey = intercept.MinLength
	MaxKey = intercept.MaxLength
)

// MaxBody bounds the body of a request in bytes.
const MaxBody = 32 << 20

// Handler serves one API. It may be used by many goroutines.
type Handler struct {
	cfg  Config
	base *url.URL
	mask *intercept.Mask
}

// New returns the handler of an API. The error is of kind invalid argument and does not show the key.
func New(c Config) (*Handler, error) {
	bad := func(format string, a ...any) (*Handler, error) {
		return nil, fmt.Errorf("cannot serve a model: "+format+": %w", append(a, errdefs.ErrInvalidArgument)...)
	}
	if !slices.Contains(APIs(), c.API) {
		return bad("there is no API %.20q; use anthropic or openai", c.API)
	}
	base, err := ParseUpstream(c.Upstream)
	if err != nil {
		return nil, err
	}
	key := c.Key.Reveal()
	switch {
	case len(key) < MinKey || len(key) > MaxKey:
		return bad("its key has %d bytes; use %d to %d", len(key), MinKey, MaxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return bad("its key has a space, a line end or a letter that no key has; remove it")
	case c.Reserve == nil || c.Transport == nil:
		return bad("Reserve and Transport are required")
	}
	if c.Room == nil {
		c.Room = room.New()
	}
	for d, usual := range map[*time.Duration]time.Duration{&c.Idle: 30 * time.Minute, &c.Longest: 2 * time.Hour, &c.Slow: time.Minute} {
		if *d == 0 {
			*d = usual
		}
	}
	return &Handler{cfg: c, base: base, mask: intercept.NewMask(key, strings.Repeat("*", len(key)))}, nil
}

// ParseUpstream reads a Config.Upstream: an https URL without login, query and fragment, or an http one whose host is an
// address of this machine's loopback, where nobody listens in between. The error is of kind invalid argument.
func ParseUpstream(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && !IsPlain(u) || u.Host == "" || u.Opaque != "" || u.User != nil || u.RawQuery != "" ||
		u.ForceQuery || u.Fragment != "" || u.RawPath != "" || strings.Contains(u.Path, "..") || strings.ContainsAny(text, " \t\r\n\\") {
		return nil, fmt.Errorf("cannot use %.100q as the URL of a model: write https://HOST[:PORT][/PATH], without login or query, or "+
			"http:// with an address of the loopback such as 127.0.0.1: %w", text, errdefs.ErrInvalidArgument)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// IsPlain reports whether an upstream is asked without TLS: http at an address of the loopback.
func IsPlain(u *url.URL) bool {
	a, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && err == nil && a.Zone() == "" && a.IsLoopback()
}

// Authority is HOST:PORT of an upstream.
func Authority(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Host
	case IsPlain(u):
		return u.Host + ":80"
	}
	return u.Host + ":443"
}
