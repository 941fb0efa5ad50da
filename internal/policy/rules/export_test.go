package rules

// WithoutIndex makes an engine that tries every rule on every segment.
func WithoutIndex(e *Engine) *Engine {
	x := &index{}
	for i := range e.Rules() {
		x.always = append(x.always, int32(i))
	}
	return &Engine{k: e.k, base: e.base, rules: e.rules, index: x, interactive: e.interactive, digest: e.digest, limits: e.limits}
}

// BreakRule makes one rule fail as a programming error would.
func BreakRule(e *Engine) {
	if e.base != nil {
		e.rules, e.base = e.base.ruleFile().rules, nil
	}
	e.rules = append(e.rules, nil)
	e.index.always = append(e.index.always, int32(len(e.rules)-1))
}

// EasedRisk is the score of a wrapper around a command that looks.
const EasedRisk = easedRisk
