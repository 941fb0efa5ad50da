// Package approval is a person's answer to one action: what it is bound to, who may give
// it, how long it holds and what of it may be remembered.
//
// It is pure: it takes the time as an argument and keeps nothing. What an action would do
// is package rules's to say; package store keeps approvals, and the gate spends them.
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
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// State is the state of an approval.
type State string

// The states. Pending and Approved become Expired with time; see At.
const (
	Pending  State = "pending"
	Approved State = "approved"
	Denied   State = "denied"
	Spent    State = "spent"
	Expired  State = "expired"
)

// Limits.
const (
	// MaxWait is the longest wait for an answer, DefaultWait the usual one.
	MaxWait     = 7 * 24 * time.Hour
	DefaultWait = 15 * time.Minute
	// MaxReason is the longest reason of an answer, in bytes.
	MaxReason = 1024
	// SpendWithin is how long a Once answer is valid. The action it is for is waiting, or is
	// asked for again at once.
	SpendWithin = 10 * time.Minute
	// MaxOfSession is how many answers to plans are remembered for one session of an agent.
	MaxOfSession = 64
	// MaxOfThread is how many commands are remembered for one thread, and MaxOfRequester how many answers of both kinds for whoever asks,
	// in all of their threads and workspaces.
	MaxOfThread    = 256
	MaxOfRequester = 2048
)

// Subject is what an approval is bound to. An answer is valid only for an equal subject.
type Subject struct {
	// Digest is the digest of the action in canonical form.
	Digest string `json:"digest"`
	// By is the principal that wants the action, as principal.Principal prints it.
	By        string       `json:"by"`
	Workspace id.Workspace `json:"workspace,omitempty"`
	// Policy is the digest of the policy that asked for the answer.
	Policy string `json:"policy"`
	// Thread is the conversation of the request. Without one nothing is remembered.
	Thread string `json:"thread,omitempty"`
	// Argv is the command, nil if the action has none. Secrets in it may be masked; the digests
	// cover the original words.
	Argv []string `json:"argv,omitempty"`
	// Around is a digest of the command's surroundings: directory, variables with their values,
	// terminal. The same words in other surroundings are another command.
	Around string `json:"around,omitempty"`
}

// Ask is a question for a person.
type Ask struct {
	ID      id.Approval `json:"id"`
	Subject Subject     `json:"subject"`
	// Owner is By itself, or the owner of the token that asks.
	Owner string `json:"owner,omitempty"`
	// Makers are who made that token; see principal.Grant.
	Makers []string `json:"makers,omitempty"`
	// Written says that a model wrote the action or a token sent it, so the sender may not
	// answer.
	Written bool `json:"written,omitempty"`
	// Always is the network rule that an answer of that kind adds, "" if there can be none. Only what runs in a workspace
	// asks with one.
	Always string `json:"always,omitempty"`
	// Steps says that an answer of that kind is possible: the action is a plan of several steps.
	Steps bool `json:"steps,omitempty"`
	// Files are what an answer of that kind chooses from: the action is a plan that changes several files.
	Files []string `json:"files,omitempty"`
	// Keep is what an answer of kind Thread remembers of a plan; nil for any other action, and for a plan that is answered for once.
	Keep *Keep `json:"keep,omitempty"`
	// Final says that no answer beyond Once is allowed: the action destroys something, concerns
	// several hosts, or a rule forbids remembering it.
	Final   bool      `json:"final,omitempty"`
	AskedAt time.Time `json:"asked_at"`
	// Until is when it expires unanswered.
	Until time.Time `json:"until"`
}

// Keep is what may be remembered of a plan: its commands that a person is asked about, each with the digest of all that has to be the
// same when it passes again.
type Keep struct {
	// By is who asked the agent, and Thread its session.
	By     string `json:"by"`
	Thread string `json:"thread"`
	Steps  []Step `json:"steps"`
}

// Step is one command of a plan on its target.
type Step struct {
	Text string `json:"text"`
	Key  string `json:"key"`
}

// Kind is the kind of an answer.
type Kind string

// The kinds of answer.
const (
	// Once allows this action once.
	Once Kind = "once"
	// Thread allows it, and every command with exactly the same words, directory and variables,
	// by the same principal in the same workspace and thread, until the policy changes. Of a plan it is each of its commands that was
	// asked about, on its target, in the session of the agent.
	Thread Kind = "thread"
	// Always allows it from now on, by a rule of the workspace.
	Always Kind = "always"
	// Steps allows the first step of a plan, once. The next one is asked about by itself.
	Steps Kind = "steps"
	// Files allows the part of a plan that is about some of its files, once. The others stay as they are.
	Files Kind = "files"
	// Deny refuses the action.
	Deny Kind = "deny"
)

// Answer is a person's answer.
type Answer struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason,omitempty"`
	// Files are those of an answer of that kind, and Digest that of the smaller action that it allows: nothing else is allowed.
	Files  []string `json:"files,omitempty"`
	Digest string   `json:"digest,omitempty"`
	// By is the principal that answered. Self says that it is who asked, or the owner of the token
	// that did.
	By   string    `json:"by"`
	Self bool      `json:"self,omitempty"`
	At   time.Time `json:"at"`
}

// Approval is a question with its answer and state.
type Approval struct {
	Ask
	State  State   `json:"state"`
	Answer *Answer `json:"answer,omitempty"`
	// Separate says that administrators approve nothing of their own either. It is a setting as it
	// is now, and not kept.
	Separate bool `json:"-"`
}

// New returns an unanswered question. A wait of 0 means DefaultWait.
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

// At returns the state at a time. A time before the question or the answer means that the clock
// was set back: the elapsed time is unknown, so it counts as expired.
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

// MayAnswer returns nil if p may give an answer of this kind, else permission_denied. terminal
// says that p is a person at a terminal who has seen the question there.
//
// An administrator who is a user of the host may answer everything, their own too, so that a person
// alone on a server is never stuck, unless what is asked and what answers are kept separate. Anybody
// else may withdraw what they asked for, but may not approve what a model or a token wrote in their
// name; the owner of the token that asked may approve at a terminal, and so may who made it. A token
// never approves a request of its own owner, or of anybody of whom it or its makers come, or who
// come of those: it may have been made for that. None approves what runs in a workspace and asks:
// whoever holds it may have started that.
func (a Approval) MayAnswer(p principal.Principal, kind Kind, terminal bool) error {
	why, own := "", p.String() == a.Subject.By
	theirs := a.asked(p)
	kin := theirs || a.oneLine(p)
	switch {
	case p.Kind != principal.User && p.Kind != principal.Token:
		why = "only people and tokens answer"
	case !p.Can(principal.Answer):
		why = "answering takes the role operator, approver or admin"
	case !theirs && !p.Can(principal.Any):
		why = "it is another user's, and you are no administrator of carrel"
	case kind == Deny:
	case p.Kind == principal.Token && principal.IsInside(a.Subject.By):
		why = "a program in a workspace asked for it, and whoever holds a token may have started that; a user of the host answers at a terminal"
	case !kin:
	case p.Kind == principal.User && p.Can(principal.Any) && !a.Separate:
	case p.Kind == principal.Token:
		why = "it was asked for the owner of this token or by who made it, or by another token of theirs, and no token approves that; they " +
			"do at a terminal, or another administrator"
	case own && a.Written:
		why = "you, or a program in your name, asked for it, and what a model or a program wrote is for somebody else to approve"
	case !terminal && principal.IsInside(a.Subject.By):
		why = "a program in a workspace of yours asked for it; answer at a terminal, or have an administrator answer"
	case !terminal && own:
		why = "you asked for it yourself; answer where you typed it, or have an administrator answer"
	case !terminal:
		why = "a token of yours, or that you made, asked for it; answer at a terminal, or have an administrator answer"
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("cannot answer approval %s: %s: %w", a.ID, why, errdefs.ErrPermissionDenied)
}

// asked reports whether p asked, or owns the token that did, or is one with the same owner.
func (a Approval) asked(p principal.Principal) bool {
	return p.String() == a.Subject.By || a.Owner != "" && p.Owner() == a.Owner
}

// oneLine reports whether p made who asked, through whatever tokens, or was made by them, or both come of one
// token. That one user made both says nothing: an administrator makes the tokens of agents and of those
// who approve for them.
func (a Approval) oneLine(p principal.Principal) bool {
	return slices.Contains(a.Makers, p.String()) || slices.ContainsFunc(p.Makers(), func(m string) bool {
		return m == a.Subject.By || principal.IsToken(m) && slices.Contains(a.Makers, m)
	})
}

// Reply records the answer of a kind by p. failed_precondition: it is answered or expired.
func (a Approval) Reply(p principal.Principal, terminal bool, kind Kind, reason string, now time.Time) (Approval, error) {
	return a.reply(p, terminal, Answer{Kind: kind, Reason: reason}, now)
}

// Choose records the answer of kind Files by p: some of the question's files, and the digest of the smaller action that is left.
func (a Approval) Choose(p principal.Principal, terminal bool, files []string, digest, reason string, now time.Time) (Approval, error) {
	return a.reply(p, terminal, Answer{Kind: Files, Reason: reason, Files: files, Digest: digest}, now)
}

func (a Approval) reply(p principal.Principal, terminal bool, w Answer, now time.Time) (Approval, error) {
	kind, reason := w.Kind, w.Reason
	if err := a.MayAnswer(p, kind, terminal); err != nil {
		return a, err
	}
	switch state := a.At(now); state {
	case Pending:
	case Expired:
		return a, fmt.Errorf("cannot answer approval %s: it expired at %s; ask for the action again: %w",
			a.ID, a.Until.UTC().Format(time.RFC3339), errdefs.ErrFailedPrecondition)
	case Approved, Denied, Spent:
		return a, fmt.Errorf("cannot answer approval %s: it is %s already: %w", a.ID, state, errdefs.ErrFailedPrecondition)
	}
	switch {
	case len(reason) > MaxReason || !utf8.ValidString(reason):
		return a, fmt.Errorf("cannot take the reason of an answer: it must be UTF-8 of at most %d bytes: %w",
			MaxReason, errdefs.ErrInvalidArgument)
	case kind == Once, kind == Deny, kind == Always && a.Always != "", kind == Steps && a.Steps:
	case kind == Files && len(a.Files) > 0 && w.Digest != "":
		if err := a.chosen(w.Files); err != nil {
			return a, err
		}
	case kind == Files:
		return a, fmt.Errorf("cannot allow a part of the action of approval %s: it is no plan that changes several files; answer once: %w",
			a.ID, errdefs.ErrInvalidArgument)
	case kind == Steps:
		return a, fmt.Errorf("cannot allow the action of approval %s one step at a time: it is no plan of several steps; answer once: %w",
			a.ID, errdefs.ErrInvalidArgument)
	case kind == Always:
		return a, fmt.Errorf("cannot allow the action of approval %s always: it is no connection of a workspace; answer once: %w",
			a.ID, errdefs.ErrInvalidArgument)
	case kind == Thread && a.Final:
		return a, fmt.Errorf("cannot remember an answer to approval %s: it destroys, reaches several hosts or a rule forbids it; answer once: %w",
			a.ID, errdefs.ErrPermissionDenied)
	case kind == Thread && a.Keep == nil && (a.Subject.Thread == "" || len(a.Subject.Argv) == 0):
		return a, fmt.Errorf("cannot remember an answer to approval %s: it is not a command of a thread; answer once: %w",
			a.ID, errdefs.ErrInvalidArgument)
	case kind == Thread:
	default:
		return a, fmt.Errorf("cannot take %q for an answer: it is one of once, steps, files, thread, always, deny: %w", kind,
			errdefs.ErrInvalidArgument)
	}
	a.State = Approved
	if kind == Deny {
		a.State = Denied
	}
	w.By, w.Self, w.At = p.String(), a.asked(p), now
	a.Answer = &w
	return a, nil
}

// chosen says what is wrong with a choice of files.
func (a Approval) chosen(files []string) error {
	for i, f := range files {
		if !slices.Contains(a.Files, f) || slices.Contains(files[:i], f) {
			return fmt.Errorf("cannot take the answer to approval %s: %.80q is not one of its files, or is named twice; there are: %s: %w", a.ID, f,
				strings.Join(a.Files, ", "), errdefs.ErrInvalidArgument)
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("cannot take the answer to approval %s: it names no file; name some, or deny it: %w", a.ID, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Spend uses the approval for an action. It fails unless the approval was given for exactly this
// subject and is unspent.
func (a Approval) Spend(s Subject, now time.Time) (Approval, error) {
	if !a.Subject.Equal(s) {
		return a, fmt.Errorf("cannot use approval %s: it was given for another action: %w", a.ID, errdefs.ErrPermissionDenied)
	}
	switch state := a.At(now); state {
	case Approved:
		a.State = Spent
		return a, nil
	case Denied:
		return a, fmt.Errorf("cannot carry it out: %w: %w", &Denial{a.Answer.By, a.Answer.Reason}, errdefs.ErrPermissionDenied)
	case Pending:
		return a, fmt.Errorf("cannot carry it out yet: nobody has answered; see it with \"carrel approvals show %s\": %w",
			a.ID, errdefs.ErrFailedPrecondition)
	case Expired:
		return a, fmt.Errorf("cannot carry it out: nobody answered approval %s in time; ask again: %w", a.ID, errdefs.ErrPermissionDenied)
	case Spent:
	}
	return a, fmt.Errorf("cannot use approval %s again: it was valid once: %w", a.ID, errdefs.ErrPermissionDenied)
}

// Denial is why an approval that a person denied cannot be used.
type Denial struct{ By, Reason string }

// Error implements error: "uid:1000 denied it: use the mirror".
func (d *Denial) Error() string {
	text := d.By + " denied it"
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	return text
}

// Equal reports whether two subjects are equal in every field.
func (s Subject) Equal(o Subject) bool {
	a, err1 := json.Marshal(s)
	b, err2 := json.Marshal(o)
	return err1 == nil && err2 == nil && string(a) == string(b)
}

// Permission is a remembered answer of kind Thread, or a rule that a person wrote.
type Permission struct {
	// From is the approval's id, or the rule's own.
	From id.Approval `json:"from"`
	// Subject is the approval's, without the digest. That of a rule has words and workspace alone.
	Subject Subject   `json:"subject"`
	By      string    `json:"by"` // who answered, or wrote it
	At      time.Time `json:"at"`
	// Rule is nil for an answer.
	Rule *Rule `json:"rule,omitempty"`
	// Steps are the commands of a plan; then Subject has no words.
	Steps []Step `json:"steps,omitempty"`
}

// Permission returns what to remember of an answer; false if nothing.
func (a Approval) Permission() (Permission, bool) {
	if a.Answer == nil || a.Answer.Kind != Thread || a.Final || a.State == Denied {
		return Permission{}, false
	}
	p := Permission{From: a.ID, Subject: a.Subject, By: a.Answer.By, At: a.Answer.At}
	p.Subject.Digest = ""
	if a.Keep != nil {
		p.Subject, p.Steps = a.Keep.subject(a.Subject), a.Keep.Steps
	}
	return p, true
}

// subject is what a permission for the commands of a plan is bound to, of a plan with the subject s.
func (k *Keep) subject(s Subject) Subject {
	return Subject{By: k.By, Workspace: s.Workspace, Policy: s.Policy, Thread: k.Thread}
}

// Covering returns which permissions together let a plan pass that needs an approval: each of its commands that a person would be asked
// about is remembered by one of them. false: at least one is not.
func (a Ask) Covering(list []Permission) (used []Permission, ok bool) {
	if a.Keep == nil || a.Final || a.Keep.Thread == "" || len(a.Keep.Steps) == 0 {
		return nil, false
	}
	for _, s := range a.Keep.Steps {
		i := slices.IndexFunc(list, func(p Permission) bool {
			return p.Rule == nil && p.Subject.Equal(a.Keep.subject(a.Subject)) && slices.ContainsFunc(p.Steps, func(x Step) bool {
				return s.Key != "" && x.Key == s.Key
			})
		})
		if i < 0 {
			return nil, false
		}
		if !slices.ContainsFunc(used, func(p Permission) bool { return p.From == list[i].From }) {
			used = append(used, list[i])
		}
	}
	return used, true
}

// Covers reports whether the permission allows an action that needs an approval. final is the
// Final of the question.
func (p Permission) Covers(s Subject, final bool) bool {
	s.Digest = ""
	return p.Rule == nil && len(p.Steps) == 0 && !final && s.Thread != "" && len(s.Argv) > 0 && p.Subject.Equal(s)
}

// String returns the permission in the form "Bash(cat /etc/os-release)", or "Plan(host: df -h; host: uptime)".
func (p Permission) String() string {
	if len(p.Steps) == 0 {
		return "Bash(" + Words(p.Subject.Argv) + ")"
	}
	texts := make([]string, len(p.Steps))
	for i, s := range p.Steps {
		texts[i] = s.Text
	}
	return "Plan(" + strings.Join(texts, "; ") + ")"
}

// Words quotes a command so that bash reads the same words and a person sees every character.
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

// escaped writes w as $'…' with unusual bytes as codes.
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
