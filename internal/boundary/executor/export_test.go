package executor

import "time"

// WaitSession waits for the end of the session that leader leads, for at most d, and returns how often
// it was looked at.
func WaitSession(leader int, uid uint32, d time.Duration) (empty bool, looks int) {
	g := &groups{dir: -1, uid: uid, sessions: map[*group]struct{}{}, onLoop: func(f func()) { looks++; f() }}
	s, other := &group{dir: -1, of: g, leader: leader}, &group{of: g}
	g.sessions[s], g.sessions[other] = struct{}{}, struct{}{}
	return s.waitEmpty(d), looks
}
