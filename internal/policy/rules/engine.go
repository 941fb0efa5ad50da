package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// Config holds the inputs of New.
type Config struct {
	// Rules is a file of rules, which may have knowledge under the key "knowledge". Optional.
	Rules *Source
	// NoBuiltin leaves the built-in rules out. A capability that no rule names is CONFIRM either
	// way.
	NoBuiltin bool
	// Limits bounds the text that is read; zero fields have defaults.
	Limits shell.Limits
}

// Engine decides. It does not change after New, so any number of goroutines may use it. A changed
// policy is a new Engine.
type Engine struct {
	k *knowledge
	// base holds the rules if they are the built-in ones alone.
	base        *builtin
	rules       []*rule
	index       *index
	interactive interactiveLists
	digest      string
	limits      shell.Limits
	rooms       sync.Pool
}

// New compiles a policy. An error, such as an example that does not judge as it says, has file,
// line and column.
func New(c Config) (*Engine, error) {
	b, err := builtIn()
	if err != nil {
		return nil, err
	}
	e := &Engine{limits: c.Limits, k: newKnowledge(b)}
	sum := sha256.New()
	fmt.Fprintf(sum, "carrel policy v2\nbuiltin-rules %t\nbuiltin-knowledge %s", !c.NoBuiltin, b.sections[packDigests].entry(0))
	var files []*ruleFile
	if !c.NoBuiltin {
		fmt.Fprintf(sum, "builtin-rules %s", b.sections[packDigests].entry(1))
	}
	if c.Rules != nil {
		f, own, r, err := loadRules(*c.Rules)
		if err == nil && own != nil {
			err = e.k.add(r, own)
		}
		if err != nil {
			return nil, err
		}
		for _, u := range f.rules {
			u.own = true
		}
		files = append(files, f)
		digestSource(sum, "rules", c.Rules.Data)
	}
	e.k.sortFamilies()
	e.digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if !c.NoBuiltin && c.Rules == nil {
		e.base, e.index = b, b.index() // a test checks the built-in examples
	} else {
		if !c.NoBuiltin {
			files = append([]*ruleFile{b.ruleFile()}, files...)
		}
		e.merge(files)
		if c.Rules != nil {
			e.firstRuns(files[len(files)-1].firstRun, b)
		}
		e.index = newIndex(e.rules)
	}
	if e.Rules() == 0 && c.NoBuiltin && c.Rules == nil {
		return nil, fmt.Errorf("cannot make a policy without rules: give a file of rules or keep the built-in ones: %w",
			errdefs.ErrInvalidArgument)
	}
	return e, e.checkExamples(files)
}

// digestSource adds a source to a digest, with its length first so that two lists of sources
// never give the same bytes.
func digestSource(sum io.Writer, kind string, data []byte) {
	fmt.Fprintf(sum, "%s %d\n%s", kind, len(data), data)
}

// rule returns the rule of a number.
func (e *Engine) rule(i int32) *rule {
	if e.base != nil {
		return e.base.rule(int(i))
	}
	return e.rules[i]
}

// merge joins the rules of files; a later rule replaces an earlier one of the same id.
func (e *Engine) merge(files []*ruleFile) {
	at := map[string]int{}
	for _, f := range files {
		for _, r := range f.rules {
			if i, ok := at[r.id]; ok {
				e.rules[i] = r
				continue
			}
			at[r.id] = len(e.rules)
			e.rules = append(e.rules, r)
		}
		if f.interactive.commands != nil {
			e.interactive.commands = f.interactive.commands
		}
		if f.interactive.flags != nil {
			e.interactive.flags = f.interactive.flags
		}
		if f.interactive.commandFlags != nil {
			e.interactive.commandFlags = f.interactive.commandFlags
		}
	}
}

func (k *knowledge) sortFamilies() {
	slices.SortStableFunc(k.families, func(a, b family) int { return len(b.prefix) - len(a.prefix) })
}

// Digest returns "sha256:" and the hash of the rules and the knowledge.
func (e *Engine) Digest() string { return e.digest }

// Rules returns the number of rules.
func (e *Engine) Rules() int {
	if e.base != nil {
		return len(e.base.rules)
	}
	return len(e.rules)
}

// Decide judges a question. An error on the way is a BLOCK.
func (e *Engine) Decide(q Question) (d Decision) {
	defer func() {
		if r := recover(); r != nil {
			d = e.failed(&q, fmt.Sprintf("the policy could not be evaluated: %v", r))
		}
	}()
	return e.decide(&q)
}

func (e *Engine) failed(q *Question, why string) Decision {
	return Decision{
		Level: Block, RiskScore: 100, Capabilities: []string{}, MatchedRules: []string{"evaluation.error"}, NeverWhitelist: true,
		Reasons: []string{why + "; nothing runs until the policy is fixed"}, Profile: q.Profile, Policy: e.digest,
	}
}

func (e *Engine) decide(q *Question) Decision {
	profile := q.Profile
	switch profile {
	case Host, Remote:
	case Workspace:
		if !q.Verified {
			profile = Host
		}
	default:
		return e.failed(q, fmt.Sprintf("there is no profile %q: it is one of host, remote, workspace", profile))
	}
	llm := false
	switch q.Source {
	case LLM, "":
		llm = true
	case User:
	default:
		return e.failed(q, fmt.Sprintf("there is no source %q: it is user or llm", q.Source))
	}
	r, ok := e.rooms.Get().(*room)
	if !ok {
		r = newRoom()
	}
	facts := &r.facts
	whole := q.Command
	switch {
	case len(q.Argv) > 0 && q.Command != "":
		return e.failed(q, "there are both a command and an argv")
	case len(q.Argv) > 0:
		*facts = shell.Words(q.Argv, e.limits)
		whole = strings.Join(q.Argv, " ")
	default:
		shell.AnalyzeInto(facts, q.Command, e.limits)
	}
	j := newJudge(r, e.k, q, facts, e.limits)
	j.all()
	if len(j.segs) == 0 {
		s := r.segment()
		if len(facts.Commands) == 0 && len(facts.Functions) == 0 && len(facts.Redirects) == 0 {
			s.add(ShellEmpty, "")
		}
		j.segs = append(j.segs, s)
	}
	r.segs = j.segs
	d := e.combine(q, profile, llm, whole, r)
	e.leave(r)
	return d
}

// combine matches the rules against each segment and combines the results.
func (e *Engine) combine(q *Question, profile Profile, llm bool, whole string, room *room) Decision {
	segs := room.segs
	d := Decision{Profile: profile, Policy: e.digest, Segments: make([]Segment, 0, len(segs))}
	var caps Set
	var extra []string
	var matched []*rule
	unspoken := false
	var reasons [3][]string
	u := subject{q: q, profile: profile, llm: llm, whole: whole, engine: e}
	for _, s := range segs {
		s.caps &^= 1 << interpretsInput
		u.s = s
		u.tokens, u.paths = room.tokens[:0], room.paths[:0]
		for i := range s.words {
			u.tokens = append(u.tokens, s.words[i].Text)
		}
		if s.program != "" && len(u.tokens) > 0 {
			u.tokens[0] = s.program
		}
		u.paths = pathCandidates(u.paths, s)
		room.tokens, room.paths = u.tokens, u.paths
		out := Segment{Text: s.text, Program: s.program, Via: s.via}
		s.changes = s.caps&^harmless != 0
		var spoken Set
		var segRules []*rule
		for _, i := range e.index.find(&u, &room.candidates, e.Rules()) {
			r := e.rule(i)
			ok, err := r.match.matches(&u)
			if err != nil {
				return e.failed(q, fmt.Sprintf("the rule %s could not be evaluated: %v", r.id, err))
			}
			if !ok {
				continue
			}
			segRules = append(segRules, r)
			spoken |= r.match.capabilityAny | r.known
		}
		strictest := strictestOf(segRules)
		for _, r := range segRules {
			out.Level = max(out.Level, r.level)
			out.RiskScore = max(out.RiskScore, r.risk)
			s.more = s.more || r.beyond(s.wraps)
			out.MatchedRules = append(out.MatchedRules, r.id)
			out.NeverWhitelist = out.NeverWhitelist || r.neverWhitelist
			why := r.reason
			if w := s.whyOf(r.match.capabilityAny); w != "" {
				why += ": " + w
			} else if s.text != "" && r.level > Safe && r.match.shape {
				why += ": " + clip(s.text)
			}
			if r.own && r.level == Safe && strictest.level > Safe {
				why += " (it says SAFE and has no effect here: " + strictest.id + " is stricter)"
			}
			out.Reasons = append(out.Reasons, why)
			reasons[r.level] = add(reasons[r.level], why)
			if !slices.Contains(matched, r) {
				matched = append(matched, r)
			}
			for _, n := range r.capabilities {
				if _, ok := CapabilityByName(n); !ok {
					extra = add(extra, n)
				}
			}
			s.caps |= r.known
		}
		if open := s.caps &^ spoken &^ harmless; open != 0 {
			unspoken, s.more = true, true
			out.Level = max(out.Level, Confirm)
			out.RiskScore = max(out.RiskScore, 50)
			out.MatchedRules = append(out.MatchedRules, "default")
			why := "no rule covers " + strings.Join(open.Names(), ", ")
			if w := s.whyOf(open); w != "" {
				why += ": " + w
			}
			out.Reasons = append(out.Reasons, why)
			reasons[Confirm] = add(reasons[Confirm], why)
		}
		if out.Level > Safe && s.caps&destructive != 0 {
			out.NeverWhitelist = true
		}
		out.Capabilities = s.caps.Names()
		caps |= s.caps
		d.Segments = append(d.Segments, out)
	}
	for i := range segs {
		out := &d.Segments[i]
		if profile != Workspace && eases(segs, i) {
			out.RiskScore, out.NoRule, out.NeverWhitelist = easedRisk, out.NeverWhitelist, false
		}
		d.NoRule = d.NoRule || out.NoRule
		d.Level = max(d.Level, out.Level)
		d.RiskScore = max(d.RiskScore, out.RiskScore)
		d.NeverWhitelist = d.NeverWhitelist || out.NeverWhitelist
	}
	if d.Level == Confirm {
		plain := room.facts.Plain()
		for i, s := range segs {
			d.Segments[i].Inner = s.fact == nil
			if plain && s.fact != nil {
				d.Segments[i].Words = plainWords(s.fact)
			}
		}
	}
	slices.SortFunc(matched, func(a, b *rule) int { return strings.Compare(a.id, b.id) })
	d.MatchedRules = make([]string, 0, len(matched)+1)
	for _, r := range matched {
		d.MatchedRules = append(d.MatchedRules, r.id)
		d.LegacyRules = add(d.LegacyRules, r.legacy)
	}
	if unspoken {
		d.MatchedRules = append(d.MatchedRules, "default")
	}
	d.Capabilities = append(caps.Names(), extra...)
	if d.Capabilities == nil {
		d.Capabilities = []string{}
	}
	d.Reasons = slices.Concat(reasons[Block], reasons[Confirm], reasons[Safe])
	if d.Reasons == nil {
		d.Reasons = []string{}
	}
	return d
}

// strictestOf returns the first of the strictest rules, nil if there are none.
func strictestOf(rules []*rule) (r *rule) {
	for _, x := range rules {
		if r == nil || x.level > r.level {
			r = x
		}
	}
	return r
}

// maxReasons limits the reasons of one level.
const maxReasons = 64

func add(list []string, s string) []string {
	if len(list) >= maxReasons || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// harmless and destructive are the capabilities with these marks in the table.
var harmless, destructive = func() (h, d Set) {
	for c, info := range Capabilities {
		if info.Harmless {
			h |= 1 << c
		}
		if info.Destructive {
			d |= 1 << c
		}
	}
	return h, d
}()

// whyOf returns the words that gave the capabilities.
func (s *segment) whyOf(set Set) string {
	why := ""
	for _, e := range s.effects {
		if !set.Has(e.cap) || e.why == "" || strings.Contains(why, e.why) {
			continue
		}
		if why != "" {
			why += ", "
		}
		if why += clip(e.why); len(why) > 200 {
			break
		}
	}
	if why == "" && set&s.caps != 0 {
		return clip(s.text)
	}
	return why
}

// clip shortens a text for display, at a character boundary.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && s[cut]&0xc0 == 0x80 {
		cut--
	}
	return s[:cut] + "…"
}

// pathCandidates returns the words of a segment for path keys: as written, and as canonical
// paths.
func pathCandidates(to []string, s *segment) []string {
	for i := range s.words {
		if i == 0 {
			continue
		}
		t := s.words[i].Text
		to = append(to, t)
		if strings.HasPrefix(t, "/") {
			if c := cleanAbsolute(t, ""); !strings.HasPrefix(c, "/~") && c != t {
				to = append(to, c)
			} else if c := path.Clean(t); c != t {
				to = append(to, c)
			}
		}
	}
	for _, p := range s.paths {
		if !slices.Contains(to, p) {
			to = append(to, p)
			if rest, ok := strings.CutPrefix(p, "/~"); ok && (rest == "" || rest[0] == '/') {
				to = append(to, "/root"+rest, "/home/user"+rest)
			}
		}
	}
	return to
}

// checkExamples judges the examples of the rules.
func (e *Engine) checkExamples(files []*ruleFile) error {
	for _, f := range files {
		for _, r := range f.rules {
			if e.base == nil && !slices.Contains(e.rules, r) {
				continue // a later rule replaced it
			}
			for n, list := range [2][]example{r.should, r.not} {
				for _, x := range list {
					q := Question{Command: x.text, Profile: x.profile, Source: x.origin, Verified: true}
					if q.Profile == "" {
						q.Profile = Host
						if len(r.match.profile) > 0 {
							q.Profile = r.match.profile[0]
						}
					}
					if q.Source == "" {
						q.Source = User
						if len(r.match.origin) > 0 {
							q.Source = r.match.origin[0]
						} else if r.match.llmFirstRun {
							q.Source = LLM
						}
					}
					if len(r.match.workspace) > 0 {
						q.Workspace = r.match.workspace[0]
					}
					q.Hosts = r.match.hostAny
					d := e.Decide(q)
					if got := slices.Contains(d.MatchedRules, r.id); got != (n == 0) {
						said := map[bool]string{true: "does not match its example", false: "matches what it must not"}[n == 0]
						return sourceError(r.source, x.at.line, x.at.col, "the rule %s %s %q; it is judged %s by: %s",
							r.id, said, x.text, d.Level, strings.Join(d.MatchedRules, ", "))
					}
				}
			}
		}
	}
	return nil
}
