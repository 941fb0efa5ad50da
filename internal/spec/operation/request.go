package operation

import (
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Request is one operation that one principal asks for.
type Request struct {
	By principal.Principal
	Op Operation
	On Target
	// Trace joins the records of the request; it is made where there is none.
	Trace id.Trace
	// Thread is the conversation that it belongs to, "" for none.
	Thread string
	// Wait is how long a person may take to answer; 0 is as configured, negative is not to
	// wait.
	Wait time.Duration
	// Gone is closed once nobody waits for it any more: then nobody is asked either. Optional.
	Gone <-chan struct{}
	// Verified: every required control of the target's boundary was seen to hold.
	Verified bool
	// Mounted are the directories of the host that the target has, by their paths inside.
	Mounted []string
}

// Reaches is the one rule on who may do something to a target, beside the permission that it
// takes: a workspace is reached as principal.MayReach says; an approval by who asked for it,
// and by those who answer for its workspace; a token by its owner and by those that made it. A secret is for all
// workspaces of its owner, and not for who is limited to some of them.
func Reaches(by principal.Principal, t Target) bool {
	switch {
	case t.Kind == Daemon:
		return true
	case t.Kind == Approval && by.Bound != nil: // also not what they asked for elsewhere
		return t.Requester == by.String() && by.MayReach(t.Owner, t.Names()...)
	case t.Kind == Approval && t.Requester == by.String():
		return true
	case t.Kind == Approval && !by.Can(principal.Answer):
		return false
	case t.Kind == Token && by.Kind == principal.Token && by.Grant != nil:
		return by.Can(principal.Any) && by.Grant.Scope == nil || slices.Contains(t.Makers, by.Grant.ID)
	case t.Kind == Token:
		return by.MayReach(t.Owner)
	}
	return by.MayReach(t.Owner, t.Names()...) && (t.NewKey == "" || by.MayReach(t.Owner, string(t.NewKey)))
}
