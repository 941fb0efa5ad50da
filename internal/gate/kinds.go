package gate

import (
	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/policy"
)

// kindRule is what is to happen with an action that is no command. docs/policy/actions.md
// is this table for people.
type kindRule struct {
	kind action.Kind
	// rule is what the record names it by, after "action.".
	rule string
	// when limits the row to some actions of the kind; the first row that fits counts.
	when func(*action.Action) bool
	// person is the level if a person asks for it, program if a program or a model does.
	person, program policy.Level
	risk            int
	// capability is that of package policy's table that comes nearest, "" for none.
	capability policy.Capability
	reason     string
	// final: no answer to it is remembered.
	final bool
}

const (
	safe    = policy.Safe
	confirm = policy.Confirm
)

// kindRules is that table. A kind without a row is BLOCK.
var kindRules = []kindRule{
	{
		kind: action.Create, rule: "workspace.create.mounts", when: hasMounts, person: safe, program: confirm, risk: 60, capability: policy.FilesystemMount, final: true,
		reason: "shows files of the host to what runs in the workspace",
	},
	{kind: action.Create, rule: "workspace.create", person: safe, program: safe, risk: 5, reason: "makes an empty workspace within the owner's bounds"},
	{kind: action.Start, rule: "workspace.start", person: safe, program: safe, risk: 0, reason: "starts what is there, with its isolation proved"},
	{kind: action.Stop, rule: "workspace.stop", person: safe, program: safe, risk: 20, reason: "ends what runs in the workspace; files stay"},
	{kind: action.Pause, rule: "workspace.pause", person: safe, program: safe, risk: 5, reason: "holds what runs; resuming takes it back"},
	{kind: action.Resume, rule: "workspace.resume", person: safe, program: safe, risk: 0, reason: "lets what was held go on"},
	{kind: action.Update, rule: "workspace.update", person: safe, program: safe, risk: 20, reason: "changes limits, key or lifetime within the owner's bounds"},
	{
		kind: action.Destroy, rule: "workspace.destroy.purge", when: purges, person: safe, program: safe, risk: 80, capability: policy.FilesystemDestroy, final: true,
		reason: "removes the workspace's home for good",
	},
	{kind: action.Destroy, rule: "workspace.destroy", person: safe, program: safe, risk: 40, reason: "ends the workspace; its home is kept aside"},
	{
		kind: action.Archive, rule: "workspace.archive.destroy", when: purges, person: safe, program: safe, risk: 60, capability: policy.FilesystemDestroy, final: true,
		reason: "removes the workspace's home once its archive is safe",
	},
	{kind: action.Archive, rule: "workspace.archive", person: safe, program: safe, risk: 10, reason: "copies the workspace's own files for its owner"},
	{kind: action.Restore, rule: "workspace.restore", person: safe, program: safe, risk: 10, reason: "makes a workspace from an archive of its owner's"},
	{kind: action.ReadArchive, rule: "archive.read", person: safe, program: safe, risk: 10, reason: "hands an archive to its owner"},
	{
		kind: action.RemoveArchive, rule: "archive.remove", person: safe, program: safe, risk: 80, capability: policy.FilesystemDestroy, final: true,
		reason: "removes an archive for good",
	},
	{kind: action.Attach, rule: "command.attach", person: safe, program: safe, risk: 20, reason: "joins a command that was judged when it was started"},
	{kind: action.Signal, rule: "command.signal", person: safe, program: safe, risk: 20, reason: "signals a command of the workspace's own"},
	{kind: action.CreateToken, rule: "token.create", person: safe, program: safe, risk: 40, reason: "gives no more than who makes it has, and approves nothing of its owner's"},
	{kind: action.RevokeToken, rule: "token.revoke", person: safe, program: safe, risk: 10, reason: "ends what a token gives"},
	{kind: action.Revoke, rule: "permission.revoke", person: safe, program: safe, risk: 0, reason: "has a person asked again"},
	{kind: action.Recover, rule: "daemon.recover", person: safe, program: confirm, risk: 0, reason: "puts right what a crash left"},
	{
		kind: action.Forget, rule: "home.remove", person: safe, program: confirm, risk: 40, final: true,
		reason: "removes a home that was kept for its time",
	},
}

func hasMounts(a *action.Action) bool { return len(a.Mounts) > 0 }
func purges(a *action.Action) bool    { return a.Purge }

// judgeKind judges an action that is no command.
func judgeKind(a *action.Action, source policy.Origin, digest string) policy.Decision {
	d := policy.Decision{Capabilities: []string{}, Profile: policy.Host, Policy: digest}
	for i := range kindRules {
		k := &kindRules[i]
		if k.kind != a.Kind || k.when != nil && !k.when(a) {
			continue
		}
		d.Level, d.RiskScore = k.person, k.risk
		if source != policy.User {
			d.Level = k.program
		}
		d.MatchedRules, d.Reasons, d.NeverWhitelist = []string{"action." + k.rule}, []string{k.reason}, k.final
		if k.capability != policy.NoCapability {
			d.Capabilities = policy.SetOf(k.capability).Names()
		}
		return d
	}
	d.Level, d.RiskScore, d.NeverWhitelist = policy.Block, 100, true
	d.MatchedRules, d.Reasons = []string{"action.unknown"}, []string{"no rule says what is to happen with " + string(a.Kind)}
	return d
}
