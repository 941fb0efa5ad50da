package principal

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Bounds of a token.
const (
	// MaxLife is the longest lifetime of a token, DefaultLife the default.
	MaxLife     = 366 * 24 * time.Hour
	DefaultLife = 30 * 24 * time.Hour
	// MaxRate is the highest limit of requests a second, and of how many at once.
	MaxRate = 100_000
	// MaxTokenName is the longest name, in bytes.
	MaxTokenName = 128
	// MaxMakers is how many makers a token may have: itself, a token that a token makes is one
	// further from the user.
	MaxMakers = 32
)

// Issued is a stored token: everything except its secret.
type Issued struct {
	Grant
	// Name is for people to tell tokens apart.
	Name string
	// Hash is SHA-256 of the secret.
	Hash [32]byte
	// Parent is the token that made this one, "" if a user did. It ends with its parent.
	Parent string
	// Maker is who made it, as Principal.String has it.
	Maker   string
	Created time.Time
	Expires time.Time
	// MaxUses is how many requests it may make, 0 for any number. Uses is how many it made,
	// counted only if there is a maximum.
	MaxUses, Uses int64
	// Rate is how many requests a second it may make, 0 for any number, and Burst how many
	// at once.
	Rate  float64
	Burst int
	// Revoked is when it was revoked, LastUsed when it was used last, to the minute; both are
	// zero for never.
	Revoked, LastUsed time.Time
}

// Ended says why the token is no longer valid, or "" if it is valid.
func (t *Issued) Ended(now time.Time) string {
	switch {
	case !t.Revoked.IsZero():
		return "revoked"
	// By the monotonic clock, which nobody sets, and by the wall clock, which advances while the
	// machine sleeps.
	case !now.Before(t.Expires), !now.Round(0).Before(t.Expires.Round(0)):
		return "expired"
	case t.MaxUses > 0 && t.Uses >= t.MaxUses:
		return "used up"
	default:
		return ""
	}
}

// Wanted describes a requested token. MayGrant fills in zero fields.
type Wanted struct {
	Name string
	// Owner is the owner of the workspaces; "" is the maker.
	Owner   string
	Roles   Roles
	Scope   Scope
	Life    time.Duration
	MaxUses int64
	Rate    float64
	Burst   int
}

// MayGrant is the rule on the tokens that p may make: none may give more than p has. It returns
// the token without its id, hash and parent. made is the token of p, nil if p is a user.
//
// Scope, end and rate are taken over from made if they are not given.
func (p Principal) MayGrant(w Wanted, made *Issued, now time.Time) (Issued, error) {
	no := func(format string, v ...any) (Issued, error) {
		return Issued{}, fmt.Errorf("cannot make the token: "+format+": %w", append(v, errdefs.ErrPermissionDenied)...)
	}
	bad := func(format string, v ...any) (Issued, error) {
		return Issued{}, fmt.Errorf("cannot make the token: "+format+": %w", append(v, errdefs.ErrInvalidArgument)...)
	}
	t := Issued{
		Grant: Grant{Owner: p.Owner(), Roles: w.Roles, Scope: w.Scope, Makers: append([]string{p.String()}, p.Makers()...)},
		Name:  w.Name, Maker: p.String(), Created: now, MaxUses: w.MaxUses, Rate: w.Rate, Burst: w.Burst,
	}
	switch {
	case !p.Can(Tokens):
		return no("%s may make none; it takes the role operator or admin", p)
	case (p.Kind == Token) != (made != nil):
		return no("it is not known what %s holds", p)
	case w.Roles&^AllRoles != 0 || w.Roles == 0:
		return bad("it has no role; give one or more of %s", strings.Join(AllRoles.Names(), ", "))
	case len(w.Name) > MaxTokenName || !utf8.ValidString(w.Name):
		return bad("its name must be UTF-8 of at most %d bytes", MaxTokenName)
	case w.Life < 0 || w.Life > MaxLife:
		return bad("it must expire within %d days", MaxLife/(24*time.Hour))
	case w.MaxUses < 0:
		return bad("its number of uses must not be negative")
	case w.Rate < 0 || w.Rate != w.Rate || w.Rate > MaxRate || w.Burst < 0 || w.Burst > MaxRate:
		return bad("its rate must be from 0 to %d a second, and its burst from 0 to %d", MaxRate, MaxRate)
	}
	if more := w.Roles.Permissions() &^ p.Permissions(); more != 0 {
		return no("the role %s would let it do what %s may not: %s", w.Roles, p, strings.Join(more.Names(), ", "))
	}
	if w.Owner != "" && w.Owner != t.Owner {
		if !p.Can(Any) || made != nil {
			return no("its owner would be %s, and you are %s: only a user with the role admin makes tokens for others", w.Owner, t.Owner)
		}
		t.Owner = w.Owner
	}
	t.Expires = now.Add(w.Life)
	if w.Life == 0 {
		t.Expires = now.Add(DefaultLife)
	}
	if t.Rate > 0 && t.Burst == 0 {
		t.Burst = int(max(1, t.Rate))
	}
	if made == nil {
		return t, nil
	}
	if len(t.Makers) > MaxMakers {
		return no("%d tokens have made each other up to %s; make it with one of the first of them", MaxMakers-1, p)
	}
	if made.MaxUses > 0 {
		return no("%s is good for a number of requests, and those of another token would not be counted", p)
	}
	if t.Scope == nil {
		t.Scope = made.Scope
	}
	if !t.Scope.Within(made.Scope) {
		return no("it would reach workspaces that %s does not", p)
	}
	if w.Life == 0 && t.Expires.After(made.Expires) {
		t.Expires = made.Expires
	}
	if t.Expires.After(made.Expires) {
		return no("it would expire after %s does, at %s", p, made.Expires.UTC().Format(time.RFC3339))
	}
	if made.Rate > 0 && t.Rate == 0 {
		t.Rate, t.Burst = made.Rate, made.Burst
	}
	if made.Rate > 0 && (t.Rate > made.Rate || t.Burst > made.Burst) {
		return no("it might make more requests a second than %s", p)
	}
	return t, nil
}
