package judge

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// recorded is a decision in the record. docs/protocols/audit.md specifies it, and it is
// frozen: fields are added and never changed.
type recorded struct {
	Level          rules.Level   `json:"level"`
	RiskScore      int           `json:"risk_score"`
	Capabilities   []string      `json:"capabilities"`
	Rules          []string      `json:"rules"`
	NeverWhitelist bool          `json:"never_whitelist,omitempty"`
	Reasons        []string      `json:"reasons"`
	Profile        rules.Profile `json:"profile"`
	Source         string        `json:"source"`
	Policy         string        `json:"policy"`
}

// Bounds of what a record says of a decision, in bytes and in number.
const (
	maxReason  = 256
	maxReasons = 16
	maxRules   = 64
)

func judgement(d rules.Decision, source string) (*Judgement, error) {
	raw, err := json.Marshal(recorded{
		Level: d.Level, RiskScore: d.RiskScore, Capabilities: d.Capabilities, Rules: few(d.MatchedRules, maxRules),
		NeverWhitelist: d.NeverWhitelist, Reasons: few(d.Reasons, maxReasons), Profile: d.Profile, Source: source, Policy: d.Policy,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot write down how it was judged: %w", err)
	}
	return &Judgement{Decision: d, Recorded: raw}, nil
}

// few are the first n texts, each cut where it is too long.
func few(list []string, n int) []string {
	out := make([]string, 0, min(len(list), n))
	for _, s := range list[:min(len(list), n)] {
		out = append(out, short(s))
	}
	return out
}

// short marks where a text is cut, so that half a secret is known for one.
func short(s string) string {
	const mark = "…"
	if len(s) <= maxReason {
		return s
	}
	return record.ClipTo(s, maxReason-len(mark)) + mark
}

// memory is a bounded memory of decisions about commands: programs that drive a workspace
// ask for the same few again and again. It is for the benchmark "exec".
type memory struct {
	mu       sync.Mutex
	now, was map[[sha256.Size]byte]*Judgement
}

// keepDecisions is how many are held twice over at most.
const keepDecisions = 512

func (m *memory) get(key *[sha256.Size]byte) *Judgement {
	m.mu.Lock()
	defer m.mu.Unlock()
	if j := m.now[*key]; j != nil {
		return j
	}
	return m.was[*key]
}

func (m *memory) put(key *[sha256.Size]byte, j *Judgement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.now) >= keepDecisions || m.now == nil {
		m.was, m.now = m.now, make(map[[sha256.Size]byte]*Judgement, keepDecisions)
	}
	m.now[*key] = j
}

// keyOf names everything that a decision depends on beside the policy. Values of variables
// may be secret: only a digest is kept.
func keyOf(q *rules.Question) [sha256.Size]byte {
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
	texts(q.Mounts)
	return sha256.Sum256(b)
}

// ask answers a question about a command.
func (f *inForce) ask(q *rules.Question) (*Judgement, error) {
	key := keyOf(q)
	if j := f.memory.get(&key); j != nil {
		return j, nil
	}
	j, err := judgement(f.engine.Decide(*q), string(q.Source))
	if err != nil {
		return nil, err
	}
	f.memory.put(&key, j)
	return j, nil
}
