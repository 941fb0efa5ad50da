package egressapi

import "time"

// AskWithin is how long connections wait for an answer.
const AskWithin = 5 * time.Minute

// MostAsked is how many questions of one carrel-egress are open at once.
const MostAsked = 64

// MaxReason bounds Answer.Reason in bytes.
const MaxReason = 2 << 10

// Ask has a person asked whether a target may be reached. Connections wait for the Answer.
type Ask struct {
	// ID is not that of another open question.
	ID uint64 `json:"id"`
	// Host is a canonical name or address.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// Rule is the text of the rule that asks.
	Rule string `json:"rule"`
}

// Gone says that nobody waits for the answer to a question any more.
type Gone struct {
	ID uint64 `json:"id"`
}

// Answer is the answer to a question. One that nobody waits for is ignored.
type Answer struct {
	ID    uint64 `json:"id"`
	Allow bool   `json:"allow"`
	// Reason says why not, for people.
	Reason string `json:"reason,omitempty"`
}

// Slow has the next connection to a host wait: all workspaces of an owner make too many. It is said only to a carrel-egress that
// tells of connections that begin.
type Slow struct {
	MS int64 `json:"ms"`
}

// Line is what the starter says in one line: an Answer, a Granted, a List, a Slow, or else a Setup.
type Line struct {
	Setup
	Answer  *Answer  `json:"answer,omitempty"`
	Granted *Granted `json:"granted,omitempty"`
	List    *List    `json:"list,omitempty"`
	Slow    *Slow    `json:"slow,omitempty"`
}
