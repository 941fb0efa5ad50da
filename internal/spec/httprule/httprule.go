// Package httprule says which HTTP requests a rule or a secret is for, by method and path, and how a secret is sent with
// them. It reads what people write of that, and paths as programs send them.
//
// A path is read in one way only. One that servers read in different ways (dot segments, empty segments, parameters,
// encoded separators) has no canonical form, and whoever judges by paths refuses it: see ParsePath.
//
// The package must not look at a request's body, know hosts, or hold a secret.
package httprule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Bounds of what people write. Lengths are in bytes.
const (
	MaxMethods  = 16
	MaxPaths    = 32
	MaxPath     = 256 // of a pattern
	MaxPointers = 16
)

// Sending is how a secret is sent, beside its hosts and headers. The zero value: its placeholder is replaced in headers
// of every request.
type Sending struct {
	// Inject has the secret put into requests, in place of replacing a placeholder: see ParseInject.
	Inject string `json:"inject,omitempty"`
	// Methods and Paths limit it to some requests, Paths being patterns. Without any it is for all.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	// Pointers are places in JSON bodies where the placeholder is replaced too: see ParsePointer.
	Pointers []string `json:"json,omitempty"`
}

// IsZero reports whether it is the zero value.
func (s Sending) IsZero() bool {
	return s.Inject == "" && len(s.Methods)+len(s.Paths)+len(s.Pointers) == 0
}

// Equal reports whether two are the same.
func (s Sending) Equal(o Sending) bool {
	return s.Inject == o.Inject && slices.Equal(s.Methods, o.Methods) && slices.Equal(s.Paths, o.Paths) && slices.Equal(s.Pointers, o.Pointers)
}

// Canonical returns the same in the form in which it is kept. Errors are of kind invalid argument.
func (s Sending) Canonical() (Sending, error) {
	c, err := s.Compile()
	if err != nil {
		return s, err
	}
	out := Sending{Methods: c.Limit.methods}
	if s.Inject != "" {
		out.Inject = c.Inject.Text()
	}
	for _, p := range c.Limit.paths {
		out.Paths = append(out.Paths, p.Text())
	}
	for _, p := range c.Pointers {
		out.Pointers = append(out.Pointers, p.Text())
	}
	slices.Sort(out.Paths)
	slices.Sort(out.Pointers)
	out.Paths, out.Pointers = slices.Compact(out.Paths), slices.Compact(out.Pointers)
	return out, nil
}

// Compiled is a Sending that was read.
type Compiled struct {
	// Inject is nil if a placeholder is replaced.
	Inject   *Inject
	Limit    Limit
	Pointers []Pointer
}

// Compile reads a Sending. Errors are of kind invalid argument.
func (s Sending) Compile() (c Compiled, err error) {
	if s.Inject != "" {
		i, err := ParseInject(s.Inject)
		if err != nil {
			return c, err
		}
		c.Inject = &i
		if len(s.Pointers) > 0 {
			return c, bad("secret is injected, so there is no placeholder to be replaced in JSON; leave one of the two out")
		}
	}
	if len(s.Pointers) > MaxPointers {
		return c, bad("%d places in JSON are named, and at most %d are taken", len(s.Pointers), MaxPointers)
	}
	for _, text := range s.Pointers {
		p, err := ParsePointer(text)
		if err != nil {
			return c, err
		}
		c.Pointers = append(c.Pointers, p)
	}
	c.Limit, err = NewLimit(s.Methods, s.Paths)
	return c, err
}

// Limit selects requests by method and path. The zero Limit selects all.
type Limit struct {
	methods []string // sorted
	paths   []Pattern
}

// NewLimit returns the Limit of these methods and patterns of paths; without any of one kind it is for all of that.
func NewLimit(methods, paths []string) (l Limit, err error) {
	if l.methods, err = ParseMethods(methods); err != nil {
		return l, err
	}
	if len(paths) > MaxPaths {
		return l, bad("%d paths are named, and at most %d are taken; use patterns such as /v1/*", len(paths), MaxPaths)
	}
	for _, text := range paths {
		p, err := ParsePattern(text)
		if err != nil {
			return l, err
		}
		l.paths = append(l.paths, p)
	}
	return l, nil
}

// ByMethod and ByPath report whether it looks at these.
func (l *Limit) ByMethod() bool { return len(l.methods) > 0 }

// ByPath reports whether it looks at paths.
func (l *Limit) ByPath() bool { return len(l.paths) > 0 }

// Selects reports whether a request is one of those. p is the zero Path if nothing is limited by paths.
func (l *Limit) Selects(method string, p Path) bool {
	return (len(l.methods) == 0 || slices.Contains(l.methods, method)) &&
		(len(l.paths) == 0 || slices.ContainsFunc(l.paths, func(x Pattern) bool { return x.Matches(p) }))
}

// ParseMethods returns methods in upper case, sorted and each once. CONNECT and TRACE are never sent inside an intercepted
// connection, and are refused.
func ParseMethods(all []string) (methods []string, err error) {
	for _, m := range all {
		m = strings.ToUpper(m)
		switch {
		case m == "" || len(m) > 32 || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
			return nil, bad("%.40q is not an HTTP method; write one as GET or POST", m)
		case m == "CONNECT" || m == "TRACE":
			return nil, bad("%s is not allowed on a connection that carrel-egress intercepts", m)
		}
		methods = append(methods, m)
	}
	slices.Sort(methods)
	methods = slices.Compact(methods)
	if len(methods) > MaxMethods {
		return nil, bad("%d methods are named, and at most %d are taken; name none for all", len(methods), MaxMethods)
	}
	return methods, nil
}

func bad(why string, args ...any) error {
	return fmt.Errorf(why+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
