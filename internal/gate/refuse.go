package gate

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// refusal is an error of an Asker that is recorded as a denial.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Refuse marks an error of an Asker as a refusal, which is recorded.
func Refuse(err error) error { return refusal{err} }

// deny records a refusal and returns it. The refusal stands even if it cannot be recorded. Of
// a principal that is refused again and again, some are counted in the record of the next.
func (x *passing) deny(ctx context.Context, why error) error {
	if x.way != nil {
		x.way.Denied = true
	}
	defer func() { x.passed(why) }()
	if x.g.Full() != nil { // the room that is left is for what makes more
		x.g.cfg.Records.Unrecorded(x.owner(), x.row.Name, record.DiskFull)
		return why
	}
	write, untold := x.g.refusals.count(x.request.By.String(), now())
	if !write {
		return why
	}
	err := x.entry()
	if err == nil {
		rec := x.record.Intent()
		if x.judgement != nil {
			rec.Policy, rec.Decision = x.judgement.Level.String(), x.judgement.Recorded
		}
		if rec = x.record.Denial(rec, why, untold); x.g.Charge(&x.request, rec) != nil {
			return why // which is counted
		}
		_, err = x.record.Append(context.WithoutCancel(ctx), rec) // it was refused, whoever waits to hear of it
	}
	if err != nil {
		x.g.cfg.Log.Error("cannot record a denial", "principal", x.request.By, "action", x.row.Name, "error", err)
	}
	return why
}

// CountLogin reports whether a refused login from an address is to be recorded, and how many
// before it were not.
func (g *Gate) CountLogin(from string) (write bool, untold int64) {
	return g.refusals.login(from, now())
}

// asRead is the record of an operation of class read, which has no outcome.
func asRead(intent audit.Record) audit.Record {
	intent.Type, intent.Status = audit.Read, audit.StatusOK
	return intent
}

// lacks is why a principal may not do an operation at all.
func lacks(by principal.Principal, row *operation.Row) error {
	switch {
	case by.Bound != nil:
		return fmt.Errorf("cannot let a program in workspace %s %s for %s: the tools of a task do not give that; have a person do it from "+
			"outside: %w", by.Bound.Workspace, row.Words, by, errdefs.ErrPermissionDenied)
	case by.Kind == principal.Token:
		missing := strings.Join((row.Needs &^ by.Permissions()).Names(), ", ")
		return fmt.Errorf("cannot let %s do %s: it takes what the token's roles (%s) do not give: %s; use a token with another role: %w",
			by, row.Name, by.RolesOf(), missing, errdefs.ErrPermissionDenied)
	case by.Kind == principal.User && row.Needs != 0:
		return fmt.Errorf("cannot let %s %s: it is for root and the members of the carrel group; use sudo or ask an administrator: %w",
			by, row.Words, errdefs.ErrPermissionDenied)
	}
	return fmt.Errorf("cannot let %s do %s: it is not known who that is, or no rule allows it: %w", by, row.Name, errdefs.ErrPermissionDenied)
}

// elsewhere is why a principal does not reach a target, as far as it may know.
func elsewhere(by principal.Principal, row *operation.Row, on operation.Target) error {
	whose := "it belongs to another user"
	if by.Kind == principal.Token && by.Grant != nil && by.Grant.Scope != nil {
		whose = "it belongs to another user, or is none that the token is limited to"
	}
	no := func(format string, v ...any) error {
		return fmt.Errorf("cannot let %s "+format+": %w", append(append([]any{by}, v...), errdefs.ErrPermissionDenied)...)
	}
	if by.Bound != nil {
		return fmt.Errorf("cannot let a program in workspace %s %s anything else for %s: the tools of a task work in its own workspace "+
			"alone: %w", by.Bound.Workspace, row.Words, by, errdefs.ErrPermissionDenied)
	}
	newKey := on.NewKey
	if on.Kind == operation.Workspace && on.Name == "" {
		newKey = on.Key
	}
	switch {
	case on.Kind == operation.Token:
		return fmt.Errorf("cannot find token %s: there is none of yours with this id; \"carrel token ls\" lists them: %w", on.ID,
			errdefs.ErrNotFound)
	case on.Kind == operation.Secret:
		if by.Owner() != on.Owner {
			return no("%s: it belongs to another user, %s; ask them or an administrator", row.Words, on.Owner)
		}
		return no("%s: secrets are for all workspaces of their owner, and the token is limited to some; use one that is not", row.Words)
	case on.Kind == operation.Approval:
		return no("%s %s: it is about another user's action; ask them or an administrator", row.Words, on.ID)
	case on.Kind == operation.Archive:
		return no("%s %q: %s; ask its owner or an administrator", row.Words, on.ID, whose)
	case newKey != "" && by.MayReach(on.Owner, on.Names()...) || newKey != "" && on.Name == "":
		return no("have a workspace with the key %q: %s; choose a key that it is limited to", newKey, whose)
	case on.Taken:
		return fmt.Errorf("cannot %s workspace %q: another user has one with this key; choose another key: %w", row.Words, on.Key,
			errdefs.ErrPermissionDenied)
	}
	// Its name and not its key, which is for those who may see it.
	return no("%s workspace %q: %s; ask its owner or an administrator", row.Words, on.Name, whose)
}
