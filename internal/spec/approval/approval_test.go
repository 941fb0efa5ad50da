package approval_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

var (
	now   = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
	bob   = principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	admin = principal.Principal{Kind: principal.User, UID: 1002, GID: 1002, Admin: true}
	root  = principal.Principal{Kind: principal.User}
)

// subject is alice's; each call has its own slices.
func subject() approval.Subject {
	return approval.Subject{
		Digest: "sha256:aa", By: "uid:1000", Workspace: "ws-2a97516c", Policy: "sha256:bb", Thread: "t1",
		Argv: []string{"cat", "/etc/os-release"},
	}
}

func ask(t *testing.T, change func(*approval.Ask)) approval.Approval {
	t.Helper()
	q := approval.Ask{ID: id.NewApproval(), Subject: subject()}
	if change != nil {
		change(&q)
	}
	a, err := approval.New(q, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func reply(t *testing.T, a approval.Approval, kind approval.Kind) approval.Approval {
	t.Helper()
	a, err := a.Reply(admin, false, kind, "", now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhoMayAnswer(t *testing.T) {
	written := func(a *approval.Ask) { a.Written = true }
	asRoot := func(a *approval.Ask) { a.Subject.By, a.Written = "uid:0", true }
	rootsToken := func(a *approval.Ask) { a.Subject.By, a.Owner, a.Written = "token:0123456789ab", "uid:0", true }
	for _, c := range []struct {
		name     string
		ask      func(*approval.Ask)
		by       principal.Principal
		terminal bool
		pass     bool // may let it pass
		deny     bool
	}{
		{"administrator", nil, admin, false, true, true},
		{"root", nil, root, false, true, true},
		{"who typed it", nil, alice, true, true, true},
		{"who asked, without a terminal", nil, alice, false, false, true},
		{"another user", nil, bob, true, false, false},
		{"nobody", nil, principal.Principal{}, true, false, false},
		{"the daemon", nil, principal.Self(), true, false, false},
		{"the author of what a model wrote", written, alice, true, false, true},
		{"another user, of what a model wrote", written, bob, true, false, false},
		{"administrator, of what a model wrote", written, admin, false, true, true},
		{"root, of what a model wrote as root", asRoot, root, false, true, true},
		{"root, of what root's token asked", rootsToken, root, false, true, true},
		{"another administrator, of what a model wrote as root", asRoot, admin, false, true, true},
	} {
		a := ask(t, c.ask)
		for kind, want := range map[approval.Kind]bool{approval.Once: c.pass, approval.Thread: c.pass, approval.Deny: c.deny} {
			got, err := a.Reply(c.by, c.terminal, kind, "", now)
			if want != (err == nil) || err != nil && (!errdefs.IsPermissionDenied(err) || got.State != approval.Pending) {
				t.Errorf("%s, %s: %v, %s", c.name, kind, err, got.State)
			}
			if self := got.Subject.By == c.by.String() || got.Owner == c.by.Owner(); err == nil && got.Answer.Self != self {
				t.Errorf("%s, %s: answered %+v", c.name, kind, got.Answer)
			}
		}
	}
}

// Where askers and answerers are kept separate, an administrator approves what others asked for, and
// withdraws their own.
func TestSeparateApprovals(t *testing.T) {
	for name, c := range map[string]struct {
		ask  func(*approval.Ask)
		pass bool
	}{
		"another's":                   {nil, true},
		"what a model wrote as root":  {func(a *approval.Ask) { a.Subject.By, a.Owner, a.Written = "uid:0", "uid:0", true }, false},
		"what root's token asked for": {func(a *approval.Ask) { a.Subject.By, a.Owner, a.Written = "token:0123456789ab", "uid:0", true }, false},
	} {
		a := ask(t, c.ask)
		a.Separate = true
		if _, err := a.Reply(root, false, approval.Once, "", now); (err == nil) != c.pass || err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := a.Reply(root, false, approval.Deny, "", now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An approval is spent once, and only for exactly the action it was given for.
func TestSpend(t *testing.T) {
	a := ask(t, nil)
	if _, err := a.Spend(subject(), now); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("nobody has answered: %v", err)
	}
	a = reply(t, a, approval.Once)
	for name, change := range map[string]func(*approval.Subject){
		"digest":    func(s *approval.Subject) { s.Digest += "0" },
		"principal": func(s *approval.Subject) { s.By = "uid:10000" },
		"workspace": func(s *approval.Subject) { s.Workspace += "-1" },
		"policy":    func(s *approval.Subject) { s.Policy = "sha256:cc" },
		"around":    func(s *approval.Subject) { s.Around = "sha256:dd" },
		"thread":    func(s *approval.Subject) { s.Thread = "" },
		"words":     func(s *approval.Subject) { s.Argv = []string{"cat /etc/os-release"} },
	} {
		s := subject()
		change(&s)
		if b, err := a.Spend(s, now); !errdefs.IsPermissionDenied(err) || b.State != approval.Approved {
			t.Errorf("another %s: %v", name, err)
		}
	}
	spent, err := a.Spend(subject(), now)
	if err != nil || spent.State != approval.Spent {
		t.Fatalf("%+v, %v", spent, err)
	}
	if _, err := spent.Spend(subject(), now); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "again") {
		t.Errorf("spent twice: %v", err)
	}
	if _, err := a.Spend(subject(), now.Add(approval.SpendWithin)); !errdefs.IsPermissionDenied(err) {
		t.Errorf("too late: %v", err)
	}
	denied, err := ask(t, nil).Reply(admin, false, approval.Deny, "not on a Sunday", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := denied.Spend(subject(), now); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "not on a Sunday") {
		t.Errorf("denied: %v", err)
	}
}

func TestTimeAndRepetition(t *testing.T) {
	a := ask(t, nil)
	if s := a.At(now.Add(time.Hour - 1)); s != approval.Pending {
		t.Error(s)
	}
	late := now.Add(time.Hour)
	if s := a.At(late); s != approval.Expired {
		t.Error(s)
	}
	if _, err := a.Reply(admin, false, approval.Once, "", late); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("answered too late: %v", err)
	}
	if _, err := a.Spend(subject(), late); !errdefs.IsPermissionDenied(err) {
		t.Errorf("spent unanswered: %v", err)
	}
	for _, first := range []approval.Kind{approval.Once, approval.Deny} {
		b := reply(t, a, first)
		for _, second := range []approval.Kind{approval.Once, approval.Deny} {
			if _, err := b.Reply(root, false, second, "", now); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s after %s: %v", second, first, err)
			}
		}
	}
	for name, c := range map[string]struct {
		kind   approval.Kind
		reason string
	}{
		"kind": {"always", ""}, "empty kind": {"", ""}, "long": {approval.Once, strings.Repeat("x", approval.MaxReason+1)},
		"no text": {approval.Deny, "\xff"},
	} {
		if _, err := a.Reply(admin, false, c.kind, c.reason, now); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*approval.Ask){
		"digest": func(a *approval.Ask) { a.Subject.Digest = "" }, "principal": func(a *approval.Ask) { a.Subject.By = "" },
		"policy": func(a *approval.Ask) { a.Subject.Policy = "" },
	} {
		q := approval.Ask{Subject: subject()}
		change(&q)
		if _, err := approval.New(q, now, 0); !errdefs.IsInvalidArgument(err) {
			t.Errorf("asked without %s: %v", name, err)
		}
	}
	for _, wait := range []time.Duration{-1, approval.MaxWait + 1} {
		if _, err := approval.New(approval.Ask{Subject: subject()}, now, wait); !errdefs.IsInvalidArgument(err) {
			t.Errorf("waits %v: %v", wait, err)
		}
	}
}

// What is remembered is the exact words, of one principal in one thread and workspace, under
// one policy, and nothing that is final.
func TestRemembered(t *testing.T) {
	a := reply(t, ask(t, nil), approval.Thread)
	p, ok := a.Permission()
	if !ok || p.String() != "Bash(cat /etc/os-release)" {
		t.Fatalf("%+v, %v", p, ok)
	}
	other := subject()
	other.Digest = "sha256:another run of the same words"
	if !p.Covers(other, false) {
		t.Error("the same words are not covered")
	}
	if p.Covers(other, true) {
		t.Error("what is final is covered")
	}
	for name, change := range map[string]func(*approval.Subject){
		"more words": func(s *approval.Subject) { s.Argv = append(s.Argv, "/etc/shadow") },
		"fewer":      func(s *approval.Subject) { s.Argv = s.Argv[:1] },
		"joined":     func(s *approval.Subject) { s.Argv = []string{"cat /etc/os-release"} },
		"none":       func(s *approval.Subject) { s.Argv = nil },
		"principal":  func(s *approval.Subject) { s.By = "uid:1001" },
		"workspace":  func(s *approval.Subject) { s.Workspace = "" },
		"thread":     func(s *approval.Subject) { s.Thread = "t2" },
		"no thread":  func(s *approval.Subject) { s.Thread = "" },
		"policy":     func(s *approval.Subject) { s.Policy = "sha256:cc" },
		"around":     func(s *approval.Subject) { s.Around = "sha256:dd" },
	} {
		s := subject()
		change(&s)
		if p.Covers(s, false) {
			t.Errorf("covers another: %s", name)
		}
	}
	if _, ok := reply(t, ask(t, nil), approval.Once).Permission(); ok {
		t.Error("once is remembered")
	}
	if _, ok := reply(t, ask(t, nil), approval.Deny).Permission(); ok {
		t.Error("a denial is remembered")
	}
	for name, change := range map[string]func(*approval.Ask){
		"final":     func(a *approval.Ask) { a.Final = true },
		"no thread": func(a *approval.Ask) { a.Subject.Thread = "" },
		"no words":  func(a *approval.Ask) { a.Subject.Argv = nil },
	} {
		if b, err := ask(t, change).Reply(admin, false, approval.Thread, "", now); err == nil || b.State != approval.Pending {
			t.Errorf("remembered: %s", name)
		}
	}
}

// A person sees exactly what would run.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"cat", "/etc/os-release"}, "cat /etc/os-release"},
		{[]string{"a b", "", "it's"}, `'a b' '' 'it'\''s'`},
		{[]string{"A=1", "A=1"}, "'A=1' A=1"},
		{[]string{"rm", "a;b", "$x", "*", "~", "{a,b}", "#x"}, "rm 'a;b' '$x' '*' '~' '{a,b}' '#x'"},
		{[]string{"echo", "a\nb", "\u202ex'\\", "\x1b[2J", "\xff"}, `echo $'a\x0ab' $'\xe2\x80\xaex\'\\' $'\x1b[2J' $'\xff'`},
		{[]string{"grüße", "日本"}, "'grüße' '日本'"},
	} {
		got := approval.Words(c.argv)
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.argv, got, c.want)
		}
		out, err := exec.CommandContext(t.Context(), "bash", "-c", `printf '%s\0' `+got).Output()
		if err != nil || !slices.Equal(strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), c.argv) {
			t.Errorf("%q: bash reads %q: %v", c.argv, out, err)
		}
	}
}

// A token that may answer lets nothing pass that was asked for its own owner: by them, by
// itself or by another token of theirs. It may deny that, and answer for others as they reach it.
func TestTokensApproveNothingOfTheirOwners(t *testing.T) {
	holder := func(owner string, roles principal.Roles) principal.Principal {
		g := principal.Grant{ID: "0123456789ab", Owner: owner, Roles: roles}
		return principal.Principal{Kind: principal.Token, Grant: &g}
	}
	for _, roles := range []principal.Roles{principal.Approver, principal.Operator, principal.Admin} {
		p := holder("uid:1000", roles)
		for name, change := range map[string]func(*approval.Ask){
			"asked by the owner":       func(a *approval.Ask) { a.Owner = "uid:1000" },
			"typed by the owner":       func(a *approval.Ask) { a.Owner, a.Written = "uid:1000", false },
			"asked by itself":          func(a *approval.Ask) { a.Subject.By, a.Owner, a.Written = p.String(), "uid:1000", true },
			"asked by a token like it": func(a *approval.Ask) { a.Subject.By, a.Owner, a.Written = "token:ffffffffffff", "uid:1000", true },
			"asked without an owner":   func(a *approval.Ask) { a.Subject.By = p.String() },
		} {
			a := ask(t, change)
			for _, terminal := range []bool{false, true} {
				for _, kind := range []approval.Kind{approval.Once, approval.Thread} {
					if _, err := a.Reply(p, terminal, kind, "", now); !errdefs.IsPermissionDenied(err) {
						t.Errorf("%s, %s: %v", name, kind, err)
					}
				}
			}
			if _, err := a.Reply(p, false, approval.Deny, "", now); err != nil {
				t.Errorf("%s: it cannot be denied: %v", name, err)
			}
		}
	}
	other := ask(t, func(a *approval.Ask) { a.Subject.By, a.Owner = "uid:1001", "uid:1001" })
	if _, err := other.Reply(holder("uid:1000", principal.Approver), false, approval.Once, "", now); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another user's: %v", err)
	}
	if _, err := other.Reply(holder("uid:1000", principal.Admin), false, approval.Once, "", now); err != nil {
		t.Errorf("an administrator's: %v", err)
	}
}
