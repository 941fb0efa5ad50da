package operation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Plan is what an agent proposes to do: commands on targets, in their order. All of it is bound by its digest, so that an
// answer is to these commands on these targets and to no other.
type Plan struct {
	// ID is the command that the agent's task is, and Number tells the plans of one task from each other.
	ID     id.Command `json:"command,omitempty"`
	Number int        `json:"number,omitempty"`
	// Goal is what the agent says that it is for.
	Goal  string     `json:"goal,omitempty"`
	Steps []PlanStep `json:"steps,omitempty"`
	// Says is what else the agent says of it, as a person reads it: its risk, that it needs root, what it changes beside.
	Says []string `json:"says,omitempty"`
	// From is the number of the first of these steps, where they are one of a plan of Whole steps that a person approves one at
	// a time; 0 for a whole plan.
	From  int `json:"from,omitempty"`
	Whole int `json:"whole,omitempty"`
	// Undoes is the number of the plan whose rollback steps these are, after one of its steps had failed; 0 for any other.
	Undoes int `json:"undoes,omitempty"`
	// Asks: the policy has a person asked about one of the steps. It follows from them.
	Asks bool `json:"asks,omitempty"`

	// Files are what the patch of the plan calls its files, where a person may approve some of them alone; Part then returns the
	// plan that is left, which has a digest of its own. Neither is part of the digest: both follow from the steps.
	Files []string                           `json:"-"`
	Part  func(files []string) (Plan, error) `json:"-"`
	// Again returns the plan as the policy says of it now, where that has changed while a person was asked; an error refuses the plan.
	Again func() (Plan, error) `json:"-"`
	// Keep is what an answer for the session remembers of the plan; nil if it can be answered for once only. It is no part of the
	// digest: it follows from the steps.
	Keep *Keep `json:"-"`
}

// Keep is what an answer for a session of an agent remembers of a plan.
type Keep struct {
	// Session is the session, and By is who asked the agent: what one of them allows is for nobody else.
	Session, By string
	// Steps are those that a person is asked about.
	Steps []KeptStep
}

// KeptStep is one command that a person is asked about.
type KeptStep struct {
	// Target and Command are those of the step.
	Target, Command string
	// Key is the digest of all that has to be the same for the command to pass again: its words and what is around them, its target, what
	// the policy says of it and the policy itself.
	Key string
}

// PlanStep is one command of a plan on one target.
type PlanStep struct {
	// Part is the part of the plan that it belongs to: "preflight", "patch", "command", "verification" or "rollback".
	Part string `json:"part"`
	// Target is "host", "workspace NAME" or "remote NAME"; NAME is the derived name of a workspace.
	Target   string `json:"target"`
	Command  string `json:"shell"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Profile is what holds it on the user's machine, one of Profiles; "" elsewhere.
	Profile string `json:"profile,omitempty"`
	// As is as whom, on which machine and in which directory it runs on a host, as a person reads it; "" if that is not known.
	As string `json:"as,omitempty"`
	// Background: the plan goes on while it runs, for at most LimitMS.
	Background bool  `json:"background,omitempty"`
	LimitMS    int64 `json:"limit_ms,omitempty"`
	// Level and Risk are what the policy says of it.
	Level string `json:"level"`
	Risk  int    `json:"risk"`
	// FirstRun: a person is asked about it only because a model wrote it.
	FirstRun bool `json:"first_run,omitempty"`
	// Digest is that of the operation that it is.
	Digest string `json:"digest"`
	// Together is how many steps, from this one on, are not run one after the other, and Order in which order they are
	// instead. It is 0 for a step that is run by itself, and for those behind the first.
	Together int    `json:"together,omitempty"`
	Order    string `json:"order,omitempty"`
	// Why says what the policy asks about it for, beside that a model wrote it. It is no part of the digest: it follows from the step and
	// the policy.
	Why []string `json:"-"`
	// Diff shows a person what a patch does; it is bound by the digest, and no part of the record.
	Diff string `json:"-"`
}

// Profiles are what can hold a step on the user's machine, as package hostrun makes them. Unheld is that of steps that may change
// something where the user says nothing else, and Inspecting that of those that only read.
var Profiles = []string{Unheld, "read_only", Inspecting, "workspace_write", "privileged_passthrough"}

// Names of Profiles.
const (
	Unheld     = "none"
	Inspecting = "system_inspect"
)

// Op implements Operation.
func (Plan) Op() Name { return RunPlan }

// First is how many of the steps are the first one as it is run: more than one if they are run together.
func (p Plan) First() int {
	if len(p.Steps) == 0 {
		return 0
	}
	return min(max(p.Steps[0].Together, 1), len(p.Steps))
}

// Passing is how many of the steps an answer lets pass by which a person approves them one at a time: the first. It is none where that
// is a change to several files: they are asked about it by itself, so that they can choose from the files.
func (p Plan) Passing() int {
	if len(p.Files) > 0 {
		return 0
	}
	return p.First()
}

// planAsks reports whether a person is asked about a plan.
func planAsks(op Operation) bool {
	p, ok := op.(Plan)
	return ok && p.Asks
}

// planKept reports whether an answer to a plan may be for its session.
func planKept(op Operation) bool {
	p, ok := op.(Plan)
	return ok && p.Keep != nil
}

// planRisk is the highest risk of a plan's steps.
func planRisk(op Operation) (risk int) {
	p, _ := op.(Plan)
	for _, s := range p.Steps {
		risk = max(risk, s.Risk)
	}
	return risk
}

// Lines are the steps of a plan as a person reads them, one a line.
func (p Plan) Lines() []string {
	lines := make([]string, 0, len(p.Steps))
	order, last, before := "", -1, max(p.From-1, 0)
	for i, s := range p.Steps {
		if s.Together > 1 {
			order, last = fmt.Sprintf("%d to %d: %s", before+i+1, before+i+s.Together, s.Order), i+s.Together-1
		}
		part := ""
		if s.Part != "command" {
			part = s.Part + ", "
		}
		why := s.Level
		if s.FirstRun {
			why += ", as a model wrote it"
		}
		if s.Background {
			part += fmt.Sprintf("in the background for at most %v, ", time.Duration(s.LimitMS)*time.Millisecond)
		}
		held := ""
		if s.Profile != "" {
			held = ", profile " + s.Profile
		}
		if s.As != "" {
			held += ", as " + s.As
		}
		lines = append(lines, fmt.Sprintf("%d. %s%s: %s  [%s, risk %d%s]", before+i+1, part, s.Target, s.Command, why, s.Risk, held))
		if s.Diff != "" {
			lines = append(lines, strings.Split(strings.TrimRight(s.Diff, "\n"), "\n")...)
		}
		if i == last {
			lines = append(lines, order)
		}
	}
	return lines
}

// Patch changes files. A model wrote it, whoever asked the model.
type Patch struct {
	// Digest is that of everything it does: places, contents before and after, modes.
	Digest string `json:"digest"`
	// Files are absolute paths, and Risks say why some need a second look.
	Files []string `json:"files,omitempty"`
	Risks []string `json:"risks,omitempty"`
}

// Op implements Operation.
func (Patch) Op() Name { return ChangeFiles }

// PatchDigest is the digest of a change of which these are the digests of what is done to each file, in their order. It is that
// of package patch, which computes them.
func PatchDigest(parts []string) string {
	return Digest([]byte(strings.Join(append(slices.Clone(parts), ""), "\n")))
}

// OfPatch is an operation on changes to files of a workspace, beside making one.
type OfPatch struct {
	name Name
	// Files are paths as a patch names them, and ID is a change that was made.
	Files []string `json:"files,omitempty"`
	ID    string   `json:"id,omitempty"`
}

// ForPatch returns the operation that reads files in order to compute a change to them.
func ForPatch(files []string) OfPatch { return OfPatch{name: ReadForPatch, Files: files} }

// Undoing returns the operation that undoes a change.
func Undoing(id string) OfPatch { return OfPatch{name: UndoPatch, ID: id} }

// Op implements Operation.
func (o OfPatch) Op() Name { return o.name }

// risky reports whether a patch needs a second look.
func risky(op Operation) bool {
	p, ok := op.(Patch)
	return ok && len(p.Risks) > 0
}
