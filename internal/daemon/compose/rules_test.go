package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// passes reports whether a command passes unasked, and fails the test if it was refused.
func (h *house) passes(p principal.Principal, ref, source string, argv ...string) bool {
	h.t.Helper()
	e := run(argv...)
	e.Asked = execapi.Asked{Source: source, WaitMS: -1}
	_, _, err := h.Run(h.t.Context(), p, ref, e)
	if err != nil && !(errdefs.IsFailedPrecondition(err) && strings.Contains(err.Error(), "a person has to approve it")) {
		h.t.Errorf("%v: %v", argv, err)
	}
	return err == nil
}

func (h *house) allow(p principal.Principal, ref string, everybody bool, argv ...string) approval.Permission {
	h.t.Helper()
	rule, err := h.AllowCommand(h.t.Context(), p, ref, argv, everybody)
	if err != nil {
		h.t.Fatalf("%v: %v", argv, err)
	}
	return rule
}

// A rule lets commands of its shape pass, in its workspaces, from the next command on and until it is taken back; after a
// restart too. The record and explain name it.
func TestAllowCommand(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(alice, "other")
	push := []string{"git", "push", "origin", "feature/x"}
	if h.passes(alice, "demo", "llm", push...) {
		t.Fatal("it passes without a rule")
	}
	at := len(h.records())
	rule := h.allow(root, "demo", false, "git", "push", "origin", "feature/*")
	h.expect(at, "intent permission.allow", "outcome ok")
	if text := string(h.records()[at].Action); !strings.Contains(text, `"argv":["git","push","origin","feature/*"]`) {
		t.Errorf("recorded %s", text)
	}
	try := func() {
		t.Helper()
		at := len(h.records())
		if !h.passes(alice, "demo", "llm", push...) {
			t.Fatal("it does not pass")
		}
		d := decided(t, h.records()[at])
		if d.Level != "SAFE" || !slices.Contains(d.Rules, "allow."+string(rule.From)) || !strings.Contains(d.Reasons[0], "uid:0 allowed it") {
			t.Errorf("recorded %+v", d)
		}
		for _, line := range []string{
			"git push origin feature/x", "cd src && git push origin feature/x 2>&1", "git status; git push origin 'feature/x' >/dev/null",
		} {
			if !h.passes(alice, "demo", "llm", "sh", "-c", line) {
				t.Errorf("%s is asked about", line)
			}
		}
		for _, line := range []string{
			"git push origin feature/x; git push origin main", "git push origin $BRANCH", "git push origin feature/x --force",
			"GIT_SSH_COMMAND=./x git push origin feature/x", "A=b git push origin feature/x", "git push origin feature/x > out",
			"git() { ssh web1 id; }; git push origin feature/x",
			"git push origin feature/x | ssh web1", "alias git=ssh; git push origin feature/x", "git push origin feature/{x,y}",
			"git push origin feature/*", "g''it push origin feature/x && ssh web1", "git push origin feature/../x", "git push origin feature/x\ty",
			"{ git push origin feature/x; } > out",
		} {
			if h.passes(alice, "demo", "llm", "sh", "-c", line) {
				t.Errorf("%s passes", line)
			}
		}
		for _, argv := range [][]string{
			{"git", "push", "origin", "main"},
			{"git", "push", "origin", "feature/x/y"},
			{"git", "push", "origin", "feature/x", "-f"},
			{"sudo", "git", "push", "origin", "feature/x"},
		} {
			if h.passes(alice, "demo", "llm", argv...) {
				t.Errorf("%v passes", argv)
			}
		}
		if h.passes(alice, "other", "llm", push...) {
			t.Error("it passes in another workspace")
		}
	}
	try()
	h.crash()
	h.start()
	try()
	d, _, _, err := h.Explain(ctx, alice, "demo", run(push...))
	if err != nil || d.Level != rules.Safe || !slices.Contains(d.MatchedRules, "allow."+string(rule.From)) {
		t.Errorf("explained as %+v %v", d, err)
	}
	list, err := h.Permissions(ctx, alice, "demo", "")
	if err != nil || len(list) != 1 || list[0].From != rule.From || list[0].String() != "Bash(git push origin 'feature/*')" {
		t.Errorf("listed %+v %v", list, err)
	}
	if err := h.RevokePermission(ctx, bob, rule.From); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a stranger takes it back: %v", err)
	}
	if err := h.RevokePermission(ctx, root, rule.From); err != nil {
		t.Fatal(err)
	}
	if h.passes(alice, "demo", "llm", push...) {
		t.Error("it passes when the rule is gone")
	}
}

// Who may write a rule, and whom it covers: nobody allows what they could not answer.
func TestWhoAllows(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(bob, "bobs")
	of := func(roles principal.Roles) principal.Principal {
		token, _ := h.issue(admin, principal.Wanted{Roles: roles, Owner: "uid:1000"})
		return token
	}
	agent := of(principal.Agent)
	for _, p := range []principal.Principal{agent, of(principal.Operator), of(principal.Approver), of(principal.Admin), {}} {
		for _, everybody := range []bool{false, true} {
			at := len(h.records())
			if _, err := h.AllowCommand(ctx, p, "", []string{"git", "push"}, everybody); !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s: %v", p, err)
			}
			h.expect(at, "denial permission.allow denied permission_denied")
		}
	}
	if _, err := h.AllowCommand(ctx, alice, "", []string{"git", "push"}, true); !errdefs.IsPermissionDenied(err) {
		t.Errorf("alice for everybody: %v", err)
	}
	if _, err := h.AllowCommand(ctx, alice, "bobs", []string{"git", "push"}, false); !errdefs.IsPermissionDenied(err) {
		t.Errorf("alice for bob's: %v", err)
	}
	// Alice's covers what she and her tokens ask for, and not what a model wrote in her own name: a model with her account could
	// have written the rule.
	mine := h.allow(alice, "", false, "git", "push")
	if !h.passes(alice, "demo", "user", "git", "push") || !h.passes(agent, "demo", "", "git", "push") {
		t.Error("alice's rule does not cover her and her tokens")
	}
	if h.passes(alice, "demo", "llm", "git", "push") || h.passes(bob, "bobs", "user", "git", "push") ||
		h.passes(root, "demo", "llm", "git", "push") {
		t.Error("alice's rule covers others")
	}
	if err := h.RevokePermission(ctx, alice, mine.From); err != nil {
		t.Error(err)
	}
	// An administrator's own are for the workspaces of the administrator; those for everybody are for all.
	own := h.allow(root, "", false, "git", "push")
	if h.passes(alice, "demo", "user", "git", "push") {
		t.Error("root's rule for root's own covers alice's")
	}
	all := h.allow(root, "", true, "git", "push")
	if !h.passes(alice, "demo", "llm", "git", "push") || !h.passes(bob, "bobs", "llm", "git", "push") {
		t.Error("a rule for everybody does not cover all")
	}
	if list, err := h.Permissions(ctx, alice, "", ""); err != nil || len(list) != 0 {
		t.Errorf("alice sees %+v %v", list, err)
	}
	for _, x := range []approval.Permission{own, all} {
		if err := h.RevokePermission(ctx, alice, x.From); !errdefs.IsPermissionDenied(err) {
			t.Errorf("alice takes root's back: %v", err)
		}
	}
}

// What is never allowed is refused with the reason, and nothing is kept.
func TestNeverAllowed(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	for line, says := range map[string]string{
		"rm -rf /":                   "no answer to such a command is remembered",
		"sudo apt-get install x":     "no answer to such a command is remembered",
		"dd of=/dev/sda":             "the policy blocks it",
		"kubectl apply -f x":         "no answer to such a command is remembered",
		"terraform apply":            "no answer to such a command is remembered",
		"cat /etc/shadow":            "no answer to such a command is remembered",
		"chmod u+s x":                "no answer to such a command is remembered",
		"ls":                         "no rule is needed",
		"sh -c *":                    "no answer to such a command is remembered",
		"python3 -c *":               "a pattern in its words would let any pass",
		"ssh web1 *":                 "a pattern in its words would let any pass",
		"xargs git push *":           "a pattern in its words would let any pass",
		"timeout 5 git push *":       "a pattern in its words would let any pass",
		"git -c core.pager=x push *": "a pattern in its words would let any pass",
		"* push":                     "the program \"*\" is a pattern",
		"carrel token create":        "the policy blocks it",
	} {
		_, err := h.AllowCommand(t.Context(), root, "demo", strings.Fields(line), false)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if list, err := h.Permissions(t.Context(), root, "", ""); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	// A rule covers no command that does more than its words said.
	h.allow(root, "demo", false, "scp", "*", "web1:")
	if !h.passes(alice, "demo", "llm", "scp", "x", "web1:") {
		t.Error("it does not pass")
	}
	if h.passes(alice, "demo", "llm", "scp", "id_rsa", "web1:") {
		t.Error("a secret passes")
	}
	h.allow(root, "demo", false, "rsync", "a", "*") // as a copy here
	if h.passes(alice, "demo", "llm", "rsync", "a", "web1:") {
		t.Error("what is sent passes as what is copied")
	}
	h.allow(root, "demo", false, "env", "git", "push", "origin", "main") // what it runs passes with it
	if !h.passes(alice, "demo", "llm", "sh", "-c", "env git push origin main; ls") || h.passes(alice, "demo", "llm", "env", "git", "push") {
		t.Error("a command in the words of another does not pass with exactly that")
	}
}
