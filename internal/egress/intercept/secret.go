package intercept

import (
	"crypto/rand"
	"fmt"
	"math/big"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Bounds of secrets. Lengths are in bytes. What is shorter than MinLength is found by chance.
const (
	MaxSecrets = 64
	MaxName    = 64
	MinLength  = 8
	MaxLength  = 8 << 10
)

// Secret is a secret and where it is sent.
type Secret struct {
	// Name is what records show: letters, digits and ".", "_", "-", up to MaxName.
	Name string
	// Placeholder is what the workspace has in place of the value: see NewPlaceholder. It is printable ASCII without
	// spaces, from MinLength to MaxLength. None is part of another or of a value.
	Placeholder string
	// Value is the secret: no control characters, no space at its edges, from MinLength to MaxLength. If it is as long
	// as the placeholder then responses that are changed keep their length; others lose their Content-Length.
	Value redact.Value
	// Hosts are rules with Allow for names, names below a name, and single addresses. As in all rules, one without
	// ports is for 80 and 443. At least one.
	Hosts []netrule.Rule
	// Headers are the names of the headers in which the placeholder is replaced. Without any it is in all of them.
	Headers []string
	// Sending limits it to some requests, names places in JSON, or has it injected: then it has neither a placeholder nor
	// Headers.
	Sending httprule.Sending
}

// secret is a Secret that was checked.
type secret struct {
	name        string
	placeholder string
	value       redact.Value
	rules       *netrule.Rules
	headers     map[string]bool // in canonical form; empty for all
	sent        httprule.Compiled
}

func (s *secret) bound(t netrule.Target) bool { return s.rules.Judge(t).Action == netrule.Allow }

// in reports whether the placeholder is replaced in a header.
func (s *secret) in(header string) bool { return len(s.headers) == 0 || s.headers[header] }

// Of returns the secrets of a Setup.
func Of(all []egressapi.Secret) (secrets []Secret) {
	for _, s := range all {
		secrets = append(secrets, Secret{
			Name: s.Name, Placeholder: s.Placeholder, Value: s.Value.Value, Hosts: s.Hosts, Headers: s.Headers, Sending: s.Sending,
		})
	}
	return secrets
}

// Check is an error, of kind invalid argument, if New would refuse the secrets. Its text has none of the values.
func Check(all []Secret) error {
	_, err := check(all)
	return err
}

// check returns secrets that keep what Secret promises.
func check(all []Secret) ([]*secret, error) {
	if len(all) > MaxSecrets {
		return nil, bad("", "there are %d; use at most %d for a workspace", len(all), MaxSecrets)
	}
	var checked []*secret
	for n, s := range all {
		c, err := s.check(n)
		if err != nil {
			return nil, err
		}
		for _, o := range append(checked, c) {
			switch {
			case o != c && o.name == c.name:
				return nil, bad(c.name, "there are two of this name")
			case c.placeholder == "" || o.placeholder == "": // there is nothing to be found in a value
			case o != c && (strings.Contains(o.placeholder, c.placeholder) || strings.Contains(c.placeholder, o.placeholder)):
				return nil, bad(c.name, "its placeholder is part of that of %s, or the other way round", o.name)
			case strings.Contains(o.value.Reveal(), c.placeholder) || strings.Contains(c.value.Reveal(), o.placeholder):
				return nil, bad(c.name, "a placeholder is part of a value; make it with NewPlaceholder")
			}
		}
		checked = append(checked, c)
	}
	return checked, nil
}

func (s *Secret) check(n int) (*secret, error) {
	if s.Name == "" || len(s.Name) > MaxName || strings.Trim(s.Name, base62+"._-") != "" {
		return nil, bad("", "the name of number %d is not one; use up to %d letters, digits and . _ -", n+1, MaxName)
	}
	value := s.Value.Reveal()
	switch {
	case len(value) < MinLength || len(value) > MaxLength:
		return nil, bad(s.Name, "its value has %d bytes; use %d to %d", len(value), MinLength, MaxLength)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, bad(s.Name, "its value has a control character, such as a line end; remove it")
	case strings.TrimSpace(value) != value:
		return nil, bad(s.Name, "its value begins or ends with a space; remove it")
	case s.Sending.Inject != "":
	case len(s.Placeholder) < MinLength || len(s.Placeholder) > MaxLength:
		return nil, bad(s.Name, "its placeholder has %d bytes; use %d to %d", len(s.Placeholder), MinLength, MaxLength)
	case !graphic(s.Placeholder):
		return nil, bad(s.Name, "its placeholder is not printable ASCII without spaces")
	}
	if len(s.Hosts) == 0 {
		return nil, bad(s.Name, "it is bound to no host")
	}
	sent, err := s.Sending.Compile()
	switch {
	case err != nil:
		return nil, bad(s.Name, "%v", err)
	case sent.Inject != nil && s.Placeholder+strings.Join(s.Headers, "") != "":
		return nil, bad(s.Name, "it is injected, and so has neither a placeholder nor headers")
	case sent.Inject != nil && sent.Inject.Whole && !strings.Contains(value, ":"):
		return nil, bad(s.Name, "its value is to be USER:PASSWORD, and has no colon")
	}
	for _, r := range s.Hosts {
		if r.Action != netrule.Allow || r.Any || r.Narrow() || r.Net.IsValid() && !r.Net.IsSingleIP() {
			return nil, bad(s.Name, "it is bound by the rule %q; name hosts: example.org, *.example.org or an address", r.Text)
		}
	}
	rules, err := netrule.New(s.Hosts, netrule.Options{})
	if err != nil {
		return nil, bad(s.Name, "%v", err)
	}
	c := &secret{name: s.Name, placeholder: s.Placeholder, value: s.Value, rules: rules, headers: map[string]bool{}, sent: sent}
	for _, h := range s.Headers {
		if h == "" || strings.Trim(h, base62+"!#$%&'*+-.^_`|~") != "" {
			return nil, bad(s.Name, "%q is not the name of a header", h)
		}
		c.headers[http.CanonicalHeaderKey(h)] = true
	}
	return c, nil
}

// bad is the error of a secret. name is "" for all of them.
func bad(name, why string, args ...any) error {
	what := "secrets"
	if name != "" {
		what = "secret " + name
	}
	return fmt.Errorf("cannot use the %s: %s: %w", what, fmt.Sprintf(why, args...), errdefs.ErrInvalidArgument)
}

func graphic(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

const (
	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	// leastRandom is the least number of random characters in a placeholder.
	leastRandom = 8
)

// NewPlaceholder returns a placeholder of this length in bytes: the prefix, which is public, such as "sk-ant-api03-",
// and random letters and digits. Use the length of the value, so that responses that echo it keep their length. The
// error, of kind invalid argument, is for a prefix that leaves too little, or is not printable ASCII without spaces.
func NewPlaceholder(prefix string, length int) (string, error) {
	if !graphic(prefix) || length > MaxLength || length-len(prefix) < leastRandom {
		return "", fmt.Errorf("cannot make a placeholder of %d bytes with a prefix of %d: use printable ASCII without spaces, "+
			"at least %d bytes after the prefix, and at most %d in all: %w",
			length, len(prefix), leastRandom, MaxLength, errdefs.ErrInvalidArgument)
	}
	b := []byte(prefix)
	for len(b) < length {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(base62))))
		if err != nil {
			return "", fmt.Errorf("cannot make a placeholder: %w", err)
		}
		b = append(b, base62[n.Int64()])
	}
	return string(b), nil
}
