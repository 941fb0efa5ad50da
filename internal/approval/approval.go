// Package approval is a person's answer to one action: what it is bound to, who may give
// it, how long it holds and what of it may be remembered.
//
// It is pure: it takes the time as an argument and keeps nothing. What an action would do
// is package policy's to say; package store keeps approvals, and the gate spends them.
//
// The life of an approval:
//
//	pending ──Answer──► approved ──Spend──► spent
//	   │  │                │
//	   │  └────Answer────► denied
//	   └──────Expired──────┴───► expired
package approval

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
)

// State is how far an approval has come.
type State string

// The states. Expired is what Pending and Approved become with time; see At.
const (
	Pending  State = "pending"
	Approved State = "approved"
	Denied   State = "denied"
	Spent    State = "spent"
	Expired  State = "expired"
)

// Bounds.
const (
	// MaxWait is the longest time for an answer, and DefaultWait the usual one.
	MaxWait     = 7 * 24 * time.Hour
	DefaultWait = 15 * time.Minute
	// MaxReason is the longest reason of an answer, in bytes.
	MaxReason = 1024
	// SpendWithin is how long an answer of once holds: the action that it is for waits for
	// it, or is asked for again at once.
	SpendWithin = 10 * time.Minute
)

// Subject is what an approval is bound to. An answer to one subject says nothing of another
// that differs in any field.
type Subject struct {
	// Digest is that of the action in canonical form.
	Digest string `json:"digest"`
	// By is who wants it done, as principal.Principal has it in words.
	By        string       `json:"by"`
	Workspace id.Workspace `json:"workspace,omitempty"`
	// Policy is the digest of the policy that asked for the answer.
	Policy string `json:"policy"`
	// Thread is the conversation that it belongs to. Without one nothing is remembered.
	Thread string `json:"thread,omitempty"`
	// Argv is the command, nil if the action is none. What is secret in it may be masked:
	// the digests are over the words themselves.
	Argv []string `json:"argv,omitempty"`
	// Around is a digest of the command with all that it has beside its words: its
	// directory, its variables and their values, its terminal. The same words in another
	// place are another command.
	Around string `json:"around,omitempty"`
}

// Ask is a question to a person.
type Ask struct {
	ID      id.Approval `json:"id"`
	Subject Subject     `json:"subject"`
	// Owner is for whom the request was: By itself, or whose token it is.
	Owner string `json:"owner,omitempty"`
	// Written says that a model wrote the action or a token sent it: who sent it cannot
	// answer.
	Written bool `json:"written,omitempty"`
	// Final says that no answer beyond once may be given: it destroys, is about more than
	// one host, or a rule never lets it be remembered.
	Final   bool      `json:"final,omitempty"`
	AskedAt time.Time `json:"asked_at"`
	// Until is when it is taken for denied.
	Until time.Time `json:"until"`
}

// Kind is what an answer says.
type Kind string

// The kinds of answer.
const (
	// Once lets this action pass, one time.
	Once Kind = "once"
	// Thread lets it pass, and every command of exactly the same words, in the same directory
	// and with the same variables, by the same principal in the same workspace and thread, as
	// long as the policy stays.
	Thread Kind = "thread"
	// Deny refuses it.
	Deny Kind = "deny"
)

// Answer is a person's answer.
type Answer struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason,omitempty"`
	// By is who gave it; Self that it was who asked, at a terminal, for a command they typed.
	By   string    `json:"by"`
	Self bool      `json:"self,omitempty"`
	At   time.Time `json:"at"`
}

// Approval is a question and what became of it.
type Approval struct {
	Ask
	State  State   `json:"state"`
	Answer *Answer `json:"answer,omitempty"`
}

// New is a question that nobody has answered. wait of 0 is DefaultWait.
func New(a Ask, now time.Time, wait time.Duration) (Approval, error) {
	if wait == 0 {
		wait = DefaultWait
	}
	if wait < 0 || wait > MaxWait {
		return Approval{}, fmt.Errorf("cannot wait %v for an answer: it must be from 1ns to %v: %w", wait, MaxWait, errdefs.ErrInvalidArgument)
	}
	if a.Subject.Digest == "" || a.Subject.By == "" || a.Subject.Policy == "" {
		return Approval{}, fmt.Errorf("cannot ask for an answer to an action without digest, principal or policy: %w", errdefs.ErrInvalidArgument)
	}
	a.AskedAt, a.Until = now, now.Add(wait)
	return Approval{Ask: a, State: Pending}, nil
}

// At is the state at a time. One before it was asked or answered is that of a clock that was
// set back: how much time has passed is not known then, and it is taken for over.
func (a Approval) At(now time.Time) State {
	switch {
	case a.State == Pending && (!now.Before(a.Until) || now.Before(a.AskedAt)):
		return Expired
	case a.State == Approved && (now.Sub(a.Answer.At) >= SpendWithin || now.Before(a.Answer.At)):
		return Expired
	default:
		return a.State
	}
}

// MayAnswer reports whether p may give an answer of this kind; if not, it is
// permission_denied. terminal says that p is a person at a terminal who has seen the question
// there.
//
// Who asked may take it back, and lets nothing pass that a model or a token wrote in their
// name. What a token asked for, the person whose token it is may let pass at a terminal. A
// token lets nothing pass that was asked for its owner, in whatever name: it may have been
// made for that.
func (a Approval) MayAnswer(p principal.Principal, kind Kind, terminal bool) error {
	why, own := "", p.String() == a.Subject.By
	kin := own || a.Owner != "" && p.Owner() == a.Owner
	switch {
	case p.Kind != principal.User && p.Kind != principal.Token:
		why = "only people and tokens answer"
	case !p.Can(principal.Answer):
		why = "answering takes the role operator, approver or admin"
	case !kin && !p.Can(principal.Any):
		why = "it is another user's, and you are no administrator of carrel"
	case !kin || kind == Deny:
	case p.Kind == principal.Token:
		why = "it was asked for the owner of this token, and no token approves that; its owner does at a terminal, or an administrator"
	case own && a.Written:
		why = "you, or a program in your name, asked for it, and what a model or a program wrote is for somebody else to approve"
	case !terminal && own:
		why = "you asked for it yourself; answer where you typed it, or have an administrator answer"
	case !terminal:
		why = "your token asked for it; answer at a terminal, or have an administrator answer"
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("cannot answer approval %s: %s: %w", a.ID, why, errdefs.ErrPermissionDenied)
}

// Reply gives the answer of a kind by p. failed_precondition: it was answered before or its
// time is over.
func (a Approval) Reply(p principal.Principal, terminal bool, kind Kind, reason string, now time.Time) (Approval, error) {
	if err := a.MayAnswer(p, kind, terminal); err != nil {
		return a, err
	}
	switch state := a.At(now); state {
	case Pending:
	case Expired:
		return a, fmt.Errorf("cannot answer approval %s: its time was over at %s; ask for the action again: %w",
			a.ID, a.Until.UTC().Format(time.RFC3339), errdefs.ErrFailedPrecondition)
	case Approved, Denied, Spent:
		return a, fmt.Errorf("cannot answer approval %s: it is %s already: %w", a.ID, state, errdefs.ErrFailedPrecondition)
	}
	switch {
	case len(reason) > MaxReason || !utf8.ValidString(reason):
		return a, fmt.Errorf("cannot take the reason of an answer: it must be UTF-8 of at most %d bytes: %w",
			MaxReason, errdefs.ErrInvalidArgument)
	case kind == Once, kind == Deny:
	case kind == Thread && a.Final:
		return a, fmt.Errorf("cannot remember an answer to approval %s: it destroys, reaches several hosts or a rule forbids it; answer once: %w",
			a.ID, errdefs.ErrPermissionDenied)
	case kind == Thread && (a.Subject.Thread == "" || len(a.Subject.Argv) == 0):
		return a, fmt.Errorf("cannot remember an answer to approval %s: it is no command of a thread; answer once: %w",
			a.ID, errdefs.ErrInvalidArgument)
	case kind == Thread:
	default:
		return a, fmt.Errorf("cannot take %q for an answer: it is one of once, thread, deny: %w", kind, errdefs.ErrInvalidArgument)
	}
	a.State = Approved
	if kind == Deny {
		a.State = Denied
	}
	a.Answer = &Answer{Kind: kind, Reason: reason, By: p.String(), Self: p.String() == a.Subject.By, At: now}
	return a, nil
}

// Spend uses the approval up for an action. It fails unless it was approved, for exactly
// this subject, and has not been spent.
func (a Approval) Spend(s Subject, now time.Time) (Approval, error) {
	if !a.Subject.Equal(s) {
		return a, fmt.Errorf("cannot use approval %s: it was given for another action: %w", a.ID, errdefs.ErrPermissionDenied)
	}
	switch state := a.At(now); state {
	case Approved:
		a.State = Spent
		return a, nil
	case Denied:
		return a, fmt.Errorf("cannot carry it out: %s denied it%s: %w", a.Answer.By, because(a.Answer.Reason), errdefs.ErrPermissionDenied)
	case Pending:
		return a, fmt.Errorf("cannot carry it out yet: nobody has answered; see it with \"carrel approvals show %s\": %w",
			a.ID, errdefs.ErrFailedPrecondition)
	case Expired:
		return a, fmt.Errorf("cannot carry it out: nobody answered approval %s in time; ask again: %w", a.ID, errdefs.ErrPermissionDenied)
	case Spent:
	}
	return a, fmt.Errorf("cannot use approval %s again: it was for one time: %w", a.ID, errdefs.ErrPermissionDenied)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// Equal reports whether two subjects are the same in every field.
func (s Subject) Equal(o Subject) bool {
	a, err1 := json.Marshal(s)
	b, err2 := json.Marshal(o)
	return err1 == nil && err2 == nil && string(a) == string(b)
}

// Permission is what is remembered of an answer of kind Thread.
type Permission struct {
	From id.Approval `json:"from"`
	// Subject is that of the approval but for the digest.
	Subject Subject   `json:"subject"`
	By      string    `json:"by"` // who gave it
	At      time.Time `json:"at"`
}

// Permission is what is to be remembered of an answer; false if nothing is.
func (a Approval) Permission() (Permission, bool) {
	if a.Answer == nil || a.Answer.Kind != Thread || a.Final || a.State == Denied {
		return Permission{}, false
	}
	p := Permission{From: a.ID, Subject: a.Subject, By: a.Answer.By, At: a.Answer.At}
	p.Subject.Digest = ""
	return p, true
}

// Covers reports whether the permission lets an action pass that a person would have to be
// asked about. final is the question's own.
func (p Permission) Covers(s Subject, final bool) bool {
	s.Digest = ""
	return !final && s.Thread != "" && len(s.Argv) > 0 && p.Subject.Equal(s)
}

// String lists it as what may be run, in the form "Bash(cat /etc/os-release)".
func (p Permission) String() string { return "Bash(" + Words(p.Subject.Argv) + ")" }

// Words writes a command so that bash reads the same words, and a person sees every
// character of them.
func Words(argv []string) string {
	all := make([]string, len(argv))
	for i, w := range argv {
		all[i] = quoted(w, i == 0)
	}
	return strings.Join(all, " ")
}

func quoted(w string, first bool) string {
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.ContainsFunc(w, odd) {
		return escaped(w, odd)
	}
	plain := w != "" && !strings.ContainsFunc(w, func(r rune) bool {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !alnum && !strings.ContainsRune("-_./:@%+,", r) && (r != '=' || first)
	})
	if plain {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// escaped writes w in the form $'…', with what is odd as the codes of its bytes.
func escaped(w string, odd func(rune) bool) string {
	var b strings.Builder
	b.WriteString("$'")
	for len(w) > 0 {
		r, n := utf8.DecodeRuneInString(w)
		switch {
		case odd(r):
			for _, c := range []byte(w[:n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		case r == '\'' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
		w = w[n:]
	}
	return b.String() + "'"
}
