// Package judge says what the policy in force has to say of a request: commands are judged
// by its rules, and every other operation by the rules in its row of the table.
//
// It must not carry anything out, ask anybody or write records.
package judge

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Judgement is what the policy says of one request, ready for the record. It does not change
// once made: a cache hands the same one out again.
type Judgement struct {
	rules.Decision
	// Recorded is the decision as the record has it; see recorded.
	Recorded json.RawMessage
}

// Judge holds the policy in force. Its methods may be called from any goroutine.
type Judge struct {
	load func() (*rules.Engine, error)
	// inForce is asked throughout one decision; loading is held while another is made.
	inForce atomic.Pointer[inForce]
	loading sync.Mutex
	allowed atomic.Pointer[allowed]
}

// inForce is a policy and what it said lately.
type inForce struct {
	engine *rules.Engine
	memory memory
	// replaced is closed when another policy is in force.
	replaced chan struct{}
}

// New returns a Judge. load reads the rules: once before the first decision, and for each
// reload; nil is the built-in rules alone.
func New(load func() (*rules.Engine, error)) *Judge {
	if load == nil {
		load = func() (*rules.Engine, error) { return rules.New(rules.Config{}) }
	}
	return &Judge{load: load}
}

// rules returns the policy in force. The first call loads it.
func (j *Judge) rules() (*inForce, error) {
	if f := j.inForce.Load(); f != nil {
		return f, nil
	}
	j.loading.Lock()
	defer j.loading.Unlock()
	if f := j.inForce.Load(); f != nil {
		return f, nil
	}
	f, err := j.read()
	if err != nil {
		return nil, err
	}
	j.inForce.Store(f)
	return f, nil
}

func (j *Judge) read() (*inForce, error) {
	e, err := j.load()
	if err != nil {
		return nil, fmt.Errorf("cannot use the policy: %w", err)
	}
	return &inForce{engine: e, replaced: make(chan struct{})}, nil
}

// Digest names the policy in force, which is loaded if it was not yet.
func (j *Judge) Digest() (string, error) {
	f, err := j.rules()
	if err != nil {
		return "", err
	}
	return f.engine.Digest(), nil
}

// Loaded is the digest of the policy in force, "" if none was loaded yet.
func (j *Judge) Loaded() string {
	if f := j.inForce.Load(); f != nil {
		return f.engine.Digest()
	}
	return ""
}

// Reload reads the rules again and puts them in force for every decision that begins later;
// those under way are made by the rules that they began with. record is told of the change,
// or why there is none, before it counts: its error leaves the rules as they were.
func (j *Judge) Reload(record func(was, now string, rules int, err error) error) (was, now string, rules int, err error) {
	if _, err := j.rules(); err != nil {
		return "", "", 0, err
	}
	j.loading.Lock()
	defer j.loading.Unlock()
	was = j.inForce.Load().engine.Digest()
	next, err := j.read()
	if err == nil {
		now, rules = next.engine.Digest(), next.engine.Rules()
	}
	rerr := record(was, now, rules, err)
	if err != nil {
		return was, was, 0, fmt.Errorf("cannot reload the policy, %.19s… stays in force: %w", was, err)
	}
	if rerr != nil {
		return was, was, 0, fmt.Errorf("cannot record that the policy was reloaded, so it was not, and %.19s… stays in force: %w: %w",
			was, rerr, errdefs.ErrUnavailable)
	}
	if was == now {
		next.replaced = j.inForce.Load().replaced // what waits for another one goes on waiting
		j.inForce.Store(next)
		return was, now, rules, nil
	}
	close(j.inForce.Swap(next).replaced)
	return was, now, rules, nil
}

// Changed returns what is closed once the policy with that digest is in force no more.
func (j *Judge) Changed(digest string) <-chan struct{} {
	if f := j.inForce.Load(); f != nil && f.engine.Digest() == digest {
		return f.replaced
	}
	over := make(chan struct{})
	close(over)
	return over
}

// Origin is who wrote what p sends. What a client claims can only be stricter than what its
// principal allows: only a person is ever taken for the author, and only where they say so. What a
// program in a workspace sends in their name is a model's.
func Origin(p principal.Principal, claimed rules.Origin) rules.Origin {
	if p.Kind == principal.User && p.Bound == nil && claimed == rules.User {
		return rules.User
	}
	return rules.LLM
}

// SourceOf is who wrote a request. An operation that is no command has nothing written in it:
// a person's is a person's.
func SourceOf(r *operation.Request) rules.Origin {
	if c, ok := r.Op.(operation.Commanding); ok {
		return Origin(r.By, rules.Origin(c.Full().Source))
	}
	if _, ok := r.Op.(operation.Patch); ok {
		return rules.LLM
	}
	return Origin(r.By, rules.User)
}

// sourceSystem is the source of what nobody asked for.
const sourceSystem = "system"

// Judge says what is to happen with a request. One policy answers from the first word to the
// last. An error means that the request cannot be judged, and so not be carried out.
func (j *Judge) Judge(r *operation.Request) (*Judgement, error) {
	f, err := j.rules()
	if err != nil {
		return nil, err
	}
	digest := f.engine.Digest()
	if r.By.Kind == principal.System {
		return judgement(rules.Decision{
			Level: rules.Safe, Capabilities: []string{}, MatchedRules: []string{"action.system"},
			Reasons: []string{"carrel does it by itself, by its own settings"}, Profile: rules.Host, Policy: digest,
		}, sourceSystem)
	}
	if c, ok := r.Op.(operation.Commanding); ok && operation.Of(r.Op.Op()).Judged.Command {
		q := question(r, c)
		asked, err := f.ask(q)
		if err != nil || asked.Level != rules.Confirm {
			return asked, err
		}
		if a := j.allowed.Load(); a != nil {
			if passes, err := a.pass(r, q.Argv, asked); passes != nil || err != nil {
				return passes, err
			}
		}
		return asked, nil
	}
	source := SourceOf(r)
	return judgement(byRow(r.Op, source, digest), string(source))
}

// profileOf is the profile that a target is judged by. A workspace whose controls were not
// all verified is judged as the host, by the policy itself.
func profileOf(on operation.Target) rules.Profile {
	switch on.Kind {
	case operation.Workspace:
		return rules.Workspace
	case operation.Remote:
		return rules.Remote
	default:
		return rules.Host
	}
}

// question asks about the command of a request.
func question(r *operation.Request, c operation.Commanding) *rules.Question {
	full := c.Full()
	q := &rules.Question{
		Argv: full.Argv, Profile: profileOf(r.On), Source: SourceOf(r), Workspace: string(r.On.Key),
		Home: "~", Dir: full.Cwd, Env: full.Env, Verified: r.Verified, Mounts: r.Mounted,
	}
	if r.On.Kind == operation.Workspace {
		q.Home = workspace.Home
		if q.Dir == "" {
			q.Dir = q.Home
		}
	}
	return q
}

// byRow judges an operation that is no command.
func byRow(op operation.Operation, source rules.Origin, digest string) rules.Decision {
	d := rules.Decision{Level: rules.Safe, Capabilities: []string{}, Profile: rules.Host, Policy: digest}
	for _, r := range operation.Of(op.Op()).Judged.Rules {
		if r.When != nil && !r.When(op) {
			continue
		}
		if r.Asks && source != rules.User {
			d.Level = rules.Confirm
		}
		d.RiskScore, d.NeverWhitelist = r.Risk, r.Final && (r.Unless == nil || !r.Unless(op))
		if r.Scored != nil {
			d.RiskScore = max(r.Risk, r.Scored(op))
		}
		d.MatchedRules, d.Reasons = []string{"action." + r.Name}, []string{r.Reason}
		if r.Capability != "" {
			d.Capabilities = []string{r.Capability}
		}
		return d
	}
	d.Level, d.RiskScore, d.NeverWhitelist = rules.Block, 100, true
	d.MatchedRules, d.Reasons = []string{"action.unknown"}, []string{"no rule says what is to happen with " + string(op.Op())}
	return d
}

// Refusal is the error of a request that the policy blocks.
func (j *Judgement) Refusal(what string) error {
	return fmt.Errorf("cannot %s: the policy blocks it: %s (rules %s, risk %d); \"carrel policy explain\" says how it is judged, and an "+
		"administrator sets the policy: %w",
		what, strings.Join(few(j.Reasons, 3), "; "), strings.Join(few(j.MatchedRules, 5), ", "), j.RiskScore, errdefs.ErrPermissionDenied)
}

// Reason is the first reason of a judgement, for people.
func (j *Judgement) Reason() string {
	if len(j.Reasons) == 0 {
		return "no rule speaks of it"
	}
	return short(j.Reasons[0])
}
