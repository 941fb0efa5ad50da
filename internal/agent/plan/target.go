package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

const (
	// MaxNames bounds the names of remote hosts in one target.
	MaxNames = 64
	// MaxHostName bounds the name of a remote host in bytes.
	MaxHostName = 64

	targets = `"host" (this machine), "workspace NAME", "remote NAME…" or "remote *"`
)

// All is the name that stands for every remote host. It stands alone.
const All = "*"

// Target is where something runs: on this machine, in a workspace, or on remote hosts. There is no default. The zero
// Target is not valid.
type Target struct {
	Kind operation.TargetKind
	// Names is empty for the host, the key or name of one workspace, or the names of remote hosts in the order of the text.
	Names []string
}

// ParseTarget reads a target as String writes it. Errors are of kind invalid argument.
func ParseTarget(s string) (Target, error) {
	t, err := parseTarget(s)
	if err != nil {
		return Target{}, fmt.Errorf("cannot use %.80q as a target: %w; write %s: %w", s, err, targets, errdefs.ErrInvalidArgument)
	}
	return t, nil
}

func parseTarget(s string) (Target, error) {
	kind, rest, named := strings.Cut(s, " ")
	switch k := operation.TargetKind(kind); k {
	case operation.Host:
		if named {
			return Target{}, errors.New("a host is this machine and has no name")
		}
		return Target{Kind: k}, nil
	case operation.Workspace:
		// A key may have spaces.
		if _, err := id.ParseKey(rest); err != nil {
			return Target{}, errors.New("the workspace's name is not usable: " + why(err))
		}
		return Target{Kind: k, Names: []string{rest}}, nil
	case operation.Remote:
		names := strings.Split(rest, " ")
		if len(names) > MaxNames {
			return Target{}, fmt.Errorf("it names %d hosts, and at most %d are taken", len(names), MaxNames)
		}
		for i, n := range names {
			switch {
			case n == All && len(names) == 1:
			case n == All:
				return Target{}, errors.New("* stands for all hosts and stands alone")
			case !isHost(n):
				return Target{}, fmt.Errorf("%.40q is not the name of a host", n)
			case slices.Contains(names[:i], n):
				return Target{}, fmt.Errorf("%q is named twice", n)
			}
		}
		return Target{Kind: k, Names: names}, nil
	default:
		return Target{}, errors.New("it is none")
	}
}

// why is an error of package id without the name of its kind.
func why(err error) string {
	return strings.TrimSuffix(err.Error(), ": "+errdefs.ErrInvalidArgument.Error())
}

// isHost reports whether s may be the name of a remote host: letters, digits, dots, hyphens and underscores, the first a
// letter or digit.
func isHost(s string) bool {
	if s == "" || len(s) > MaxHostName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && (i == 0 || c != '.' && c != '-' && c != '_') {
			return false
		}
	}
	return true
}

// One reports whether the target is a single place: not several hosts, nor all of them.
func (t Target) One() bool {
	return t.Kind == operation.Host || len(t.Names) == 1 && (t.Kind != operation.Remote || t.Names[0] != All)
}

// String returns the text that ParseTarget reads.
func (t Target) String() string {
	return strings.Join(append([]string{string(t.Kind)}, t.Names...), " ")
}

// MarshalText implements encoding.TextMarshaler. It fails for a target that is not valid.
func (t Target) MarshalText() ([]byte, error) {
	s := t.String()
	if _, err := ParseTarget(s); err != nil {
		return nil, err
	}
	return []byte(s), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Target) UnmarshalText(b []byte) (err error) {
	*t, err = ParseTarget(string(b))
	return err
}
