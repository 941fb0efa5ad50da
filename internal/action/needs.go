package action

import "github.com/carrel-dev/carrel/internal/principal"

// needs is the permission that each kind of action takes of who asks for it. Whose
// workspace it may be done to is another question: see principal.MayReach. What is not here
// nobody may do.
var needs = map[Kind]principal.Permission{
	Create: principal.Make, Start: principal.Lifecycle, Stop: principal.Lifecycle, Destroy: principal.Lifecycle,
	Pause: principal.Lifecycle, Resume: principal.Lifecycle, Update: principal.Lifecycle,

	Archive: principal.Keep, ReadArchive: principal.Keep, RemoveArchive: principal.Keep, Archives: principal.Keep,
	// It makes a workspace too.
	Restore: principal.Keep | principal.Make,

	Exec: principal.Run, Attach: principal.Run, Signal: principal.Run, Resize: principal.Run, RunOnce: principal.Run,

	List: principal.Look, Inspect: principal.Look, Stats: principal.Look, Watch: principal.Look, Commands: principal.Look, Logs: principal.Look,

	CreateToken: principal.Tokens, RevokeToken: principal.Tokens, ListTokens: principal.Tokens,

	// Agents see what they asked for.
	InspectApproval: principal.Look, Answer: principal.Answer, Revoke: principal.Answer,

	Policy: principal.Policy,

	Audit: principal.Audit, Mended: principal.Host,
	Version: principal.Known, WhoAmI: principal.Known,

	// The daemon's own.
	Recover: principal.Any, Forget: principal.Any,
}

// Needs is the permission that an action of this kind takes, 0 for one that nobody may do.
func (k Kind) Needs() principal.Permission { return needs[k] }
