package gate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/policy"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// judgement is what the policy says of one action, ready for the record. It does not
// change once made: a cache hands the same one out again.
type judgement struct {
	policy.Decision
	// recorded is the decision as the record has it; see recordedDecision.
	recorded json.RawMessage
}

// recordedDecision is a decision in the record. docs/protocols/audit.md specifies it, and
// it is frozen: fields are added and never changed.
type recordedDecision struct {
	Level          policy.Level   `json:"level"`
	RiskScore      int            `json:"risk_score"`
	Capabilities   []string       `json:"capabilities"`
	Rules          []string       `json:"rules"`
	NeverWhitelist bool           `json:"never_whitelist,omitempty"`
	Reasons        []string       `json:"reasons"`
	Profile        policy.Profile `json:"profile"`
	Source         string         `json:"source"`
	Policy         string         `json:"policy"`
}

// Bounds of what a record says of a decision, in bytes and in number.
const (
	maxReason  = 256
	maxReasons = 16
	maxRules   = 64
)

// sourceSystem is the source of what nobody asked for.
const sourceSystem = "system"

func judged(d policy.Decision, source string) (*judgement, error) {
	r := recordedDecision{
		Level: d.Level, RiskScore: d.RiskScore, Capabilities: d.Capabilities, Rules: firstFew(d.MatchedRules, maxRules), NeverWhitelist: d.NeverWhitelist,
		Reasons: firstFew(d.Reasons, maxReasons), Profile: d.Profile, Source: source, Policy: d.Policy,
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("cannot write down how it was judged: %w", err)
	}
	return &judgement{Decision: d, recorded: raw}, nil
}

// firstFew are the first n texts, each cut where it is too long, and marked there, so that half
// a secret is known for one.
func firstFew(list []string, n int) []string {
	out := make([]string, 0, min(len(list), n))
	for _, s := range list[:min(len(list), n)] {
		out = append(out, shortReason(s))
	}
	return out
}

func shortReason(s string) string {
	const mark = "…"
	if len(s) <= maxReason {
		return s
	}
	return clipTo(s, maxReason-len(mark)) + mark
}

// inForce is a policy and what it said lately.
type inForce struct {
	engine    *policy.Engine
	decisions decisions
}

// decisions is a bounded memory of decisions about commands. Programs that drive a
// workspace ask for the same few again and again.
type decisions struct {
	mu       sync.Mutex
	now, was map[[sha256.Size]byte]*judgement
}

// keepDecisions is how many are held twice over at most.
const keepDecisions = 512

func (c *decisions) get(key *[sha256.Size]byte) *judgement {
	c.mu.Lock()
	defer c.mu.Unlock()
	if j := c.now[*key]; j != nil {
		return j
	}
	return c.was[*key]
}

func (c *decisions) put(key *[sha256.Size]byte, j *judgement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.now) >= keepDecisions || c.now == nil {
		c.was, c.now = c.now, make(map[[sha256.Size]byte]*judgement, keepDecisions)
	}
	c.now[*key] = j
}

// questionKey names everything that a decision depends on beside the policy. Values of
// variables may be secret: only a digest is kept.
func questionKey(q *policy.Question) [sha256.Size]byte {
	var buf [1024]byte
	b := buf[:0]
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	texts := func(list []string) {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			text(s)
		}
	}
	flags := byte(0)
	if q.Verified {
		flags |= 1
	}
	if q.Seen {
		flags |= 2
	}
	b = append(b, flags)
	for _, s := range [...]string{q.Command, string(q.Profile), string(q.Source), q.Workspace, q.Home, q.Dir} {
		text(s)
	}
	texts(q.Argv)
	texts(q.Env)
	texts(q.Hosts)
	return sha256.Sum256(b)
}

// ask answers a question about a command.
func (f *inForce) ask(q *policy.Question) (*judgement, error) {
	key := questionKey(q)
	if j := f.decisions.get(&key); j != nil {
		return j, nil
	}
	j, err := judged(f.engine.Decide(*q), string(q.Source))
	if err != nil {
		return nil, err
	}
	f.decisions.put(&key, j)
	return j, nil
}

// rules returns the policy in force. The first call loads it.
func (g *Gate) rules() (*inForce, error) {
	if f := g.policy.Load(); f != nil {
		return f, nil
	}
	g.loading.Lock()
	defer g.loading.Unlock()
	if f := g.policy.Load(); f != nil {
		return f, nil
	}
	f, err := g.load()
	if err != nil {
		return nil, err
	}
	g.policy.Store(f)
	return f, nil
}

func (g *Gate) load() (*inForce, error) {
	load := g.cfg.Policy
	if load == nil {
		load = func() (*policy.Engine, error) { return policy.New(policy.Config{}) }
	}
	e, err := load()
	if err != nil {
		return nil, fmt.Errorf("cannot use the policy: %w", err)
	}
	return &inForce{engine: e}, nil
}

// origin is who wrote what p sends. What a client says can only be stricter than what its
// principal allows: only a person is ever taken for the author, and only where they say so.
func origin(p principal.Principal, claimed policy.Origin) policy.Origin {
	if p.Kind == principal.User && claimed == policy.User {
		return policy.User
	}
	return policy.LLM
}

// sourceOf is who wrote a request. What is no command has nothing written in it: a person's
// is a person's.
func sourceOf(r *request) policy.Origin {
	if r.action.Source != "" {
		return policy.Origin(r.action.Source)
	}
	return origin(r.by, policy.User)
}

// judge says what is to happen with a request. It is one policy's answer from the first
// word to the last. An action that cannot be judged is not carried out.
func (g *Gate) judge(ctx context.Context, r *request) (*judgement, error) {
	f, err := g.rules()
	if err != nil {
		return nil, err
	}
	digest := f.engine.Digest()
	switch {
	case r.by.Kind == principal.System:
		return judged(policy.Decision{
			Level: policy.Safe, Capabilities: []string{}, MatchedRules: []string{"action.system"}, Reasons: []string{"carrel does it by itself, by its own settings"},
			Profile: policy.Host, Policy: digest,
		}, sourceSystem)
	case r.action.Kind == action.Exec, r.action.Kind == action.RunOnce:
		return f.ask(g.question(ctx, r))
	}
	source := sourceOf(r)
	return judged(judgeKind(&r.action, source, digest), string(source))
}

// question asks about the command of a request.
func (g *Gate) question(ctx context.Context, r *request) *policy.Question {
	home := "/home/" + string(r.on.Name)
	q := &policy.Question{
		Argv: r.action.Argv, Profile: policy.Workspace, Source: sourceOf(r), Workspace: string(r.on.Key),
		Home: home, Dir: r.action.Cwd, Env: r.env,
	}
	if q.Dir == "" {
		q.Dir = home
	}
	if r.action.Kind == action.RunOnce {
		// It is made after this, and not given the command unless all that is required is
		// verified: see Once. What was accepted as missing is not.
		q.Verified = len(r.action.Accept) == 0
	} else {
		q.Verified = g.verified(ctx, r.on.Name)
	}
	if len(q.Argv) == 0 {
		q.Argv = []string{""} // judged as the empty command that it is
	}
	return q
}

// verified reports whether every required control of a running workspace was seen to hold.
func (g *Gate) verified(ctx context.Context, name id.Workspace) bool {
	g.mu.Lock()
	ok, known := g.proved[name]
	g.mu.Unlock()
	if known {
		return ok
	}
	rep, err := g.cfg.Runtime.Report(ctx, name)
	if err != nil {
		return false // and asked again the next time
	}
	return g.prove(name, rep)
}

// prove notes what the report of a workspace that runs says.
func (g *Gate) prove(name id.Workspace, rep workspace.Report) bool {
	ok := rep.Err() == nil
	g.mu.Lock()
	g.proved[name] = ok
	g.mu.Unlock()
	return ok
}

// refused is the error of an action that the policy does not let pass.
func refused(a *action.Action, j *judgement) error {
	return fmt.Errorf("cannot %s: the policy blocks it: %s (rules %s, risk %d); \"carrel policy explain\" says how it is judged, and an administrator sets the policy: %w",
		verbOf(a), strings.Join(firstFew(j.Reasons, 3), "; "), strings.Join(firstFew(j.MatchedRules, 5), ", "), j.RiskScore, errdefs.ErrPermissionDenied)
}

// verbOf is an action in a sentence.
func verbOf(a *action.Action) string {
	if a.Kind == action.Exec || a.Kind == action.RunOnce {
		return "let the command run"
	}
	return verb(a.Kind) + " it"
}
