package authn

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Book stores tokens and records logins.
type Book interface {
	// Issued returns the token with an id, valid or not.
	Issued(ref token.ID) (principal.Issued, bool)
	// Spend counts a use, durably if the token has a maximum. The error is permission_denied if
	// no use is left.
	Spend(ctx context.Context, ref token.ID) (principal.Issued, error)
	// Login records a login, or, if refused is not "", a refusal.
	Login(ctx context.Context, from string, by principal.Principal, ref token.ID, refused string) error
	// Now is the time that the expiry of tokens is compared with.
	Now() time.Time
}

// How many logins from one address may fail at once, and how many more each second. The
// secrets are too long to be guessed; this is about the work that guessing makes.
const (
	failureBurst  = 20
	failuresEvery = time.Second
	// maxRemembered bounds the addresses, and the tokens with a rate, that are remembered.
	maxRemembered = 4096
)

// Tokens authenticates requests that bring a token.
type Tokens struct {
	book Book

	mu       sync.Mutex
	failures map[string]time.Time // by address: when all its failures are forgotten
	spent    map[string]time.Time // by id: when all its rate is back
	// live are the running requests, by the id of their token.
	live map[string]map[*visit]struct{}
}

// visit is one running request.
type visit struct{ cancel context.CancelCauseFunc }

// NewTokens returns a Tokens over book.
func NewTokens(book Book) *Tokens {
	return &Tokens{book: book, failures: map[string]time.Time{}, spent: map[string]time.Time{}, live: map[string]map[*visit]struct{}{}}
}

// errRefused is the same for every refusal: an unknown caller must not learn the reason.
var errRefused = fmt.Errorf(
	"cannot let you in with this token: it is unknown, mistyped, expired, revoked or used up; \"carrel token ls\" shows which, and "+
		"\"carrel token create\" makes another: %w", errdefs.ErrUnauthenticated,
)

// nobodysHash is compared if there is no such token, so that the answer takes as long.
var nobodysHash [32]byte

// Enter authenticates a request by the values of its Authorization headers, of which there
// must be one. The context returned has the token's principal, and ends when the token is
// revoked or expires. The caller calls leave at the end of the request.
//
// Errors: unauthenticated, and resource_exhausted for too many requests.
func (t *Tokens) Enter(ctx context.Context, headers []string) (entered context.Context, leave func(), err error) {
	a := arrivalOf(ctx)
	given, why := bearer(headers)
	held, known := t.book.Issued(given.ID())
	hash, want := given.Hash(), nobodysHash
	if known {
		want = held.Hash
	}
	same := subtle.ConstantTimeCompare(hash[:], want[:]) == 1
	switch {
	case why != "":
	case !known:
		why = "unknown"
	case !same:
		why = "wrong"
	default:
		why = held.Ended(t.book.Now())
	}
	if why != "" {
		return nil, nil, t.refuse(ctx, a, given.ID(), why)
	}
	return t.admit(ctx, a, held)
}

// EnterAs is Enter for who has shown, in another way than by the token itself, that its holder lets them in.
func (t *Tokens) EnterAs(ctx context.Context, ref token.ID) (entered context.Context, leave func(), err error) {
	a := arrivalOf(ctx)
	held, known := t.book.Issued(ref)
	why := "unknown"
	if known {
		why = held.Ended(t.book.Now())
	}
	if why != "" {
		return nil, nil, t.refuse(ctx, a, ref, why)
	}
	return t.admit(ctx, a, held)
}

// admit lets in the holder of a token that is valid.
func (t *Tokens) admit(ctx context.Context, a *arrival, held principal.Issued) (entered context.Context, leave func(), err error) {
	ref := token.ID(held.ID)
	if slow, ok := t.within(held); !ok {
		with := ""
		if slow.ID != held.ID {
			with = " with token " + held.ID + " and the others that come of it"
		}
		return nil, nil, fmt.Errorf("cannot take so many requests: token %s%s may make %g a second, and %d at once; wait a moment: %w",
			slow.ID, with, slow.Rate, slow.Burst, errdefs.ErrResourceExhausted)
	}
	if held, err = t.book.Spend(ctx, ref); errdefs.IsPermissionDenied(err) {
		return nil, nil, t.refuse(ctx, a, ref, "used up, or ended just now")
	} else if err != nil {
		return nil, nil, err
	}
	p := principal.Principal{Kind: principal.Token, Grant: &held.Grant}
	if a.first(ref) {
		if err := t.book.Login(ctx, a.From, p, ref, ""); err != nil {
			return nil, nil, err
		}
	}
	entered, leave = t.stay(ctx, held)
	return NewContext(entered, p), leave, nil
}

// Missing is the answer to a request without a token, where one is needed.
func (t *Tokens) Missing(ctx context.Context) error {
	_ = t.refuse(ctx, arrivalOf(ctx), "", "missing")
	return fmt.Errorf(
		"cannot let you in without a token: send one as \"Authorization: Bearer TOKEN\"; \"carrel token create\" on the host makes one: %w",
		errdefs.ErrUnauthenticated,
	)
}

// refuse records the reason, and returns an error without it.
func (t *Tokens) refuse(ctx context.Context, a *arrival, ref token.ID, why string) error {
	_ = t.book.Login(ctx, a.From, principal.Principal{}, ref, why) // it is refused in any case
	t.mu.Lock()
	defer t.mu.Unlock()
	if !take(t.failures, a.From, failureBurst, failuresEvery, time.Now()) {
		return fmt.Errorf("cannot let you in: too many logins from %s have failed; wait a minute: %w", a.From, errdefs.ErrResourceExhausted)
	}
	return errRefused
}

// within takes a request from the rate of a token and from those of the tokens that it comes of,
// or from none: then it returns the first that has nothing left.
func (t *Tokens) within(held principal.Issued) (slow principal.Issued, ok bool) {
	var line []principal.Issued
	for x, known, n := held, true, 0; known && n <= len(held.Makers); n++ {
		if x.Rate > 0 {
			line = append(line, x)
		}
		x, known = t.book.Issued(token.ID(x.Parent))
	}
	if len(line) == 0 {
		return held, true
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range line {
		if !has(t.spent, x.ID, max(1, x.Burst), interval(x), now) {
			return x, false
		}
	}
	for _, x := range line {
		take(t.spent, x.ID, max(1, x.Burst), interval(x), now)
	}
	return held, true
}

// interval is the time after which a token with a rate may make another request.
func interval(x principal.Issued) time.Duration { return time.Duration(float64(time.Second) / x.Rate) }

// has reports whether take would take one.
func has(full map[string]time.Time, who string, burst int, every time.Duration, now time.Time) bool {
	_, wait := bucket.Bound{Burst: burst, Every: every}.Take(full[who], now)
	return wait == 0
}

// take takes one use from a bucket that holds burst of them and gains one after every interval.
// full is when each bucket is full again. If there are too many buckets, full ones are removed
// first, and then any; a removed bucket counts as full.
func take(full map[string]time.Time, who string, burst int, every time.Duration, now time.Time) bool {
	if !has(full, who, burst, every, now) {
		return false
	}
	if _, ok := full[who]; !ok && len(full) >= maxRemembered {
		for k, f := range full {
			if now.After(f) || len(full) >= maxRemembered {
				delete(full, k)
			}
		}
	}
	full[who], _ = bucket.Bound{Burst: burst, Every: every}.Take(full[who], now)
	return true
}

// stay makes a request end when its token ends.
func (t *Tokens) stay(ctx context.Context, held principal.Issued) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	v := &visit{cancel: cancel}
	ends := time.AfterFunc(held.Expires.Sub(t.book.Now()), func() { cancel(errEnded(held.ID, "has expired")) })
	t.mu.Lock()
	if t.live[held.ID] == nil {
		t.live[held.ID] = map[*visit]struct{}{}
	}
	t.live[held.ID][v] = struct{}{}
	t.mu.Unlock()
	// It may have been revoked before it was added here.
	if now, ok := t.book.Issued(token.ID(held.ID)); !ok || !now.Revoked.IsZero() {
		cancel(errEnded(held.ID, "was revoked"))
	}
	return ctx, func() {
		ends.Stop()
		cancel(nil)
		t.mu.Lock()
		defer t.mu.Unlock()
		if delete(t.live[held.ID], v); len(t.live[held.ID]) == 0 {
			delete(t.live, held.ID)
		}
	}
}

// Revoked ends the running requests of these tokens.
func (t *Tokens) Revoked(ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		for v := range t.live[id] {
			v.cancel(errEnded(id, "was revoked"))
		}
	}
}

// ErrEnded is wrapped by the cause of a context that ended with its token.
var ErrEnded = fmt.Errorf("the token has ended: %w", errdefs.ErrUnauthenticated)

func errEnded(id, how string) error {
	return fmt.Errorf("cannot go on: token %s %s meanwhile: %w", id, how, ErrEnded)
}

// bearer takes the token out of the Authorization headers of a request.
func bearer(headers []string) (token.Secret, string) {
	if len(headers) != 1 {
		return token.Secret{}, "malformed"
	}
	scheme, text, ok := strings.Cut(headers[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return token.Secret{}, "malformed"
	}
	s, err := token.Parse(strings.TrimLeft(text, " "))
	if err != nil {
		return token.Secret{}, "malformed"
	}
	return s, ""
}

// arrival is a connection on which tokens may arrive.
type arrival struct {
	// From is its origin: an address, or the user of a Unix socket.
	From string

	mu   sync.Mutex
	seen map[token.ID]bool
}

// first reports whether a token is used on this connection for the first time. If a connection
// uses very many tokens, some are forgotten.
func (a *arrival) first(ref token.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen[ref] {
		return false
	}
	if a.seen == nil || len(a.seen) >= 64 {
		a.seen = map[token.ID]bool{}
	}
	a.seen[ref] = true
	return true
}

type arrivalKey struct{}

func withArrival(ctx context.Context, from string) context.Context {
	return context.WithValue(ctx, arrivalKey{}, &arrival{From: from})
}

func arrivalOf(ctx context.Context) *arrival {
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok {
		return a
	}
	return &arrival{From: "somewhere"}
}

// From is the origin of the connection of a request.
func From(ctx context.Context) string { return arrivalOf(ctx).From }

// Arriving is for requests that come from within the daemon, for a principal that is known. from says in records for what.
func Arriving(ctx context.Context, from string) context.Context {
	return withArrival(NewContext(ctx, principal.Principal{}), from)
}

// Remote is the hook of http.Server for connections from elsewhere, which have no principal
// without a token.
func Remote(ctx context.Context, c net.Conn) context.Context {
	return withArrival(NewContext(ctx, principal.Principal{}), address(c.RemoteAddr()))
}

// address is the key under which failures of an address are counted: for IPv6 the network that
// one customer has.
func address(a net.Addr) string { return Networks(a)[0] }

// Networks are the keys under which connections from an address are counted, the narrowest first: an
// address of IPv4, and of IPv6 the networks that a customer has, 64 bits or 56 long.
func Networks(a net.Addr) []string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return []string{"somewhere"}
	}
	ip := ap.Addr().Unmap().WithZone("")
	if !ip.Is6() {
		return []string{ip.String()}
	}
	return []string{netip.PrefixFrom(ip, 64).Masked().String(), netip.PrefixFrom(ip, 56).Masked().String()}
}
