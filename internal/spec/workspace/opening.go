package workspace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Opening is something that commands may do only in a workspace that was made with it,
// because it makes the boundary weaker. What each gives up is in docs/security.md.
type Opening string

// The openings.
const (
	// UserNS: user namespaces, and others in them, as Chromium's sandbox makes.
	UserNS Opening = "userns"
	// NestedMounts: mounts in such namespaces, as bubblewrap and nix make. It requires UserNS.
	NestedMounts Opening = "mounts"
	// IOUring: the io_uring calls.
	IOUring Opening = "io_uring"
)

// Openings is every opening, in the order in which they are printed.
var Openings = []Opening{UserNS, NestedMounts, IOUring}

// notOpenings are names that one might expect, with what to do instead.
var notOpenings = map[string]string{
	"ptrace-self": "gdb and strace of a workspace's own processes work without it, and no other process is in sight; leave it out",
}

// ParseOpenings reads names and returns them in the order of Openings, each once.
func ParseOpenings(names []string) ([]Opening, error) {
	for _, n := range names {
		if why, ok := notOpenings[n]; ok {
			return nil, fmt.Errorf("cannot allow %s: there is nothing to allow: %s: %w", n, why, errdefs.ErrInvalidArgument)
		}
		if !slices.Contains(Openings, Opening(n)) {
			return nil, fmt.Errorf("cannot allow %.40q: there is no such opening; there are %s: %w",
				n, JoinOpenings(Openings), errdefs.ErrInvalidArgument)
		}
	}
	var set []Opening
	for _, o := range Openings {
		if slices.Contains(names, string(o)) {
			set = append(set, o)
		}
	}
	return set, nil
}

// CheckOpenings reports openings that cannot be combined with the mounts.
func CheckOpenings(set []Opening, mounts []Mount) error {
	known, err := ParseOpenings(OpeningNames(set))
	if err != nil {
		return err
	}
	if !slices.Equal(known, set) {
		return fmt.Errorf("cannot allow %s: each must be named once, in this order: %s: %w",
			JoinOpenings(set), JoinOpenings(Openings), errdefs.ErrInvalidArgument)
	}
	if slices.Contains(set, NestedMounts) && !slices.Contains(set, UserNS) {
		return fmt.Errorf("cannot allow %s without %s: mounts are made in user namespaces; allow both: %w",
			NestedMounts, UserNS, errdefs.ErrInvalidArgument)
	}
	writable := slices.IndexFunc(mounts, func(m Mount) bool { return !m.ReadOnly })
	if writable < 0 {
		return nil
	}
	return CheckWritable(set, "directory "+mounts[writable].Destination)
}

// CheckWritable reports an opening with which nothing of the host may be mounted for
// writing. what names such a mount.
func CheckWritable(set []Opening, what string) error {
	for _, x := range []struct {
		opening Opening
		why     string
	}{
		{NestedMounts, "a command could let go of the mounts that keep its protected names (.git and others) as they are"},
		{IOUring, "a ring passes the system call filter by, which keeps set-uid files of yours from being made there"},
	} {
		if slices.Contains(set, x.opening) {
			return fmt.Errorf("cannot allow %s with the writable %s: %s; mount it read-only (:ro), or leave --allow %s out: %w",
				x.opening, what, x.why, x.opening, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// OpeningNames are openings as text.
func OpeningNames(set []Opening) []string {
	var names []string
	for _, o := range set {
		names = append(names, string(o))
	}
	return names
}

// JoinOpenings lists openings for a person, and for settings: with commas between them.
func JoinOpenings(set []Opening) string { return strings.Join(OpeningNames(set), ",") }
