package authn

import (
	"net"
	"time"
)

// Admits reports whether a listener of Fair takes a connection of a user.
func Admits(l net.Listener, uid uint32, now time.Time) bool { return l.(*fair).admits(uid, now) }

// Remembered is how many users it knows.
func Remembered(l net.Listener) int { return l.(*fair).connecting.Len() }
