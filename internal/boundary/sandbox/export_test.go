package sandbox

import (
	"slices"

	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// Skip leaves out one step of the first stage, as a mistake in it would.
func Skip(name string) bool {
	all := len(steps)
	steps = slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.name == name })
	return len(steps) < all
}

// Unprotect makes the first stage protect nothing in project mounts.
func Unprotect() { protected = func() []hostfiles.TopName { return nil } }

// MaxPinned bounds the names that a project mount has to protect.
const MaxPinned = maxPinned

// Steps names all of them.
func Steps() []string {
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	return slices.Compact(names)
}

// What bounds sockets that no control group counts.
var (
	NetlinkBound = netlinkBound
	SocketsUsed  = socketsUsed
	SocketsOf    = socketsOf
)
