package rules_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// TestKeys holds what each key of a rule matches, by a file in LinuxAgent's format, alone.
func TestKeys(t *testing.T) {
	b, err := os.ReadFile("testdata/linuxagent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e, err := rules.New(rules.Config{NoBuiltin: true, Rules: &rules.Source{Name: "linuxagent.yaml", Data: b}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command, rule string
		not           bool
	}{
		{"ls \x07", "input.validation", false},
		{"echo '", "shell.parse_error", false},
		{"# x", "shell.empty", false},
		{"rm -rf /", "embedded.danger", false},
		{"rm -rf /x", "embedded.danger", true},
		{"r''m -rf /", "embedded.danger", false},
		{"rm -r -f /etc/x", "tree.delete", false},
		{"rm -r /etc/x", "tree.delete", true},
		{"rm -rf /srv/../etc", "tree.delete", false},
		{"sudo rm -rf /usr/x", "tree.delete", false},
		{"rm --force --recursive /var", "tree.delete", false},
		{"dd if=x of=/dev/sda", "disk.write", false},
		{"dd if=/dev/sda of=x", "disk.write", true},
		{"mkfs.ext4 /dev/sda1", "disk.format", false},
		{"mkfs.ext4 img", "disk.format", true},
		{"mkswap /dev/nvme0n1", "disk.format", false},
		{"cat /etc/special", "path.sensitive", false},
		{"cat /proc/1/maps", "path.sensitive", true},
		{"cat /etc/specials", "path.sensitive", true},
		{"systemctl restart x", "service.mutate", false},
		{"systemctl status x", "service.mutate", true},
		{"crontab -r", "crontab.remove", false},
		{"crontab -l", "crontab.remove", true},
		{"git status", "argv.forms", false},
		{"git status -s", "argv.forms", true},
		{"journalctl --unit nginx", "argv.forms", false},
		{"journalctl --unit=nginx", "argv.forms", false},
		{"journalctl --unit=sshd", "argv.forms", true},
		{"uname -a", "argv.forms", false},
		{"uname", "argv.forms", true},
		{"ls --color=always", "argv.forms", false},
		{"ls --color always", "argv.forms", true},
		{"env -i ls", "env.clean", false},
		{"env LD_PRELOAD=x ls", "env.clean", false},
		{"env A=b ls", "env.clean", true},
		{"less f", "interactive.command", false},
		{"psql -e x", "interactive.command", true},
		{"python3 -c 1", "interactive.command", true},
		{"echo 'a`b'", "embedded.danger", true},
		{"echo `id`", "embedded.danger", false},
		{"timeout 5 nice rm -rf /usr", "tree.delete", false},
		{"ls | xargs rm -rf /usr", "tree.delete", false},
	} {
		d := e.Decide(host(c.command))
		if got := slices.Contains(d.MatchedRules, c.rule); got == c.not {
			t.Errorf("%q: %s matches: %t; %v", c.command, c.rule, got, d.MatchedRules)
		}
	}
	if d := e.Decide(rules.Question{Command: "ls", Profile: rules.Host}); !slices.Contains(d.MatchedRules, "llm.first_run") {
		t.Errorf("the first run of a model is judged by %v", d.MatchedRules)
	}
	if d := e.Decide(host("crontab -r")); !slices.Contains(d.Capabilities, "cron.mutate") || !slices.Contains(d.LegacyRules, "DESTRUCTIVE") {
		t.Errorf("names of its own are lost: %v %v", d.Capabilities, d.LegacyRules)
	}
}

func TestOurKeys(t *testing.T) {
	e := rulesOf(t, `
rules:
  - {id: prod, level: BLOCK, risk_score: 99, reason: production, match: {capability_any: [service.*], host_any: ["prod-*"]},
	examples: {match: [systemctl stop x], not_match: [systemctl status x]}}
  - {id: ws, level: CONFIRM, risk_score: 20, reason: careful, match: {command: [make], workspace: ["team-*"],
	profile: [workspace], source: [llm]}}
  - {id: host.filesystem.write, level: SAFE, risk_score: 5, reason: files may be written, match: {capability_any: [filesystem.write]}}
`)
	for _, c := range []struct {
		q    rules.Question
		rule string
		want bool
	}{
		{rules.Question{Command: "systemctl stop x", Hosts: []string{"dev-1", "prod-7"}, Profile: rules.Remote}, "prod", true},
		{rules.Question{Command: "systemctl stop x", Hosts: []string{"dev-1"}, Profile: rules.Remote}, "prod", false},
		{rules.Question{Command: "make", Workspace: "team-a", Profile: rules.Workspace, Verified: true}, "ws", true},
		{rules.Question{Command: "make", Workspace: "team-a", Profile: rules.Workspace}, "ws", false},
		{rules.Question{Command: "make", Workspace: "team-a", Profile: rules.Workspace, Verified: true, Source: rules.User}, "ws", false},
		{rules.Question{Command: "make", Workspace: "x", Profile: rules.Workspace, Verified: true}, "ws", false},
	} {
		if d := e.Decide(c.q); slices.Contains(d.MatchedRules, c.rule) != c.want {
			t.Errorf("%+v is judged by %v", c.q, d.MatchedRules)
		}
	}
	if d := e.Decide(host("echo x > f")); d.Level != rules.Safe {
		t.Errorf("the replaced rule still holds: %s by %v", d.Level, d.MatchedRules)
	}
}

// TestKnowledgeOfUsers holds that a program becomes known.
func TestKnowledgeOfUsers(t *testing.T) {
	e := rulesOf(t, `
knowledge:
  programs:
    ourtool:
      flags: "-o --out =write;--exec =shell"
      sub: {show: read*, drop: "text* :database.mutate"}
rules: []
`)
	for command, want := range map[string]string{
		"ourtool show x": "", "ourtool --out=/etc/x show x": "filesystem.system_write", "ourtool drop": "database.mutate",
		"ourtool --exec 'rm x' show": "filesystem.delete", "ourtool other": "program.unknown",
	} {
		d := e.Decide(host(command))
		if want == "" && d.Level != rules.Safe || want != "" && !slices.Contains(d.Capabilities, want) {
			t.Errorf("%s is %s with %v", command, d.Level, d.Capabilities)
		}
	}
	if d := engine(t).Decide(host("ourtool show x")); d.Level != rules.Confirm {
		t.Error("one user's knowledge is everybody's")
	}
}

func TestWrongPolicies(t *testing.T) {
	const head = "rules:\n  - id: x\n    level: CONFIRM\n    risk_score: 1\n    reason: r\n"
	for text, want := range map[string]string{
		"":                                      "p.yaml:1:1: a policy needs the key \"rules\"",
		"rules: {}":                             "p.yaml:1:8: rules must be a list",
		"rule: []":                              "p.yaml:1:1: a policy has no key \"rule\"",
		"rules: [":                              "p.yaml:1:",
		head:                                    "p.yaml:2:5: a rule needs the key \"match\"",
		head + "    match: {}":                  "p.yaml:6:12: the rule can never match",
		head + "    match: {comand: [x]}":       "p.yaml:6:13: match has no key \"comand\"",
		head + "    match: {command: x}":        "p.yaml:6:22: this must be a list",
		head + "    match: {args_regex: ['(']}": "p.yaml:6:26: cannot enforce the pattern",
		head + "    match: {args_regex: ['(a(?!b))']}": "p.yaml:6:26: cannot enforce the pattern",
		head + "    match: {args_regex: ['(a)\\1']}":   "p.yaml:6:26: cannot enforce the pattern",
		head + "    match: {args_regex: ['@none']}":    "x-patterns has no \"none\"",

		head + "    match: {capability_any: [filesystem.dream]}": "there is no capability \"filesystem.dream\"",

		head + "    match: {profile: [moon]}":                                                       "there is no profile \"moon\"",
		head + "    match: {parse_error: true, command: [x]}":                                       "the rule can never match",
		head + "    match: {argv: [{exact: true, prefix: [a], tokens: [{index: 3, values: [x]}]}]}": "the rule can never match",
		head + "    match: {command: [rm]}\n  - id: x":                                              "is defined twice",

		head + "    match: {command: [rm]}\n    examples: {match: [ls]}": "p.yaml:7:24: the rule x does not match its example \"ls\"",

		head + "    match: {command: [rm]}\n    examples: {not_match: [rm x]}": "p.yaml:7:28: the rule x matches what it must not \"rm x\"",
		"rules: []\nknowledge: {programs: {x: {flags: '-a =dream'}}}":          "there is no role \"dream\"",
		"a: &a [*b]\nrules: []": "has no anchor",

		"rules: []\nversion: 2": "p.yaml:2:10: version must be a whole number from 1 to 1",
	} {
		_, err := rules.New(rules.Config{Rules: &rules.Source{Name: "p.yaml", Data: []byte(text)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, not %q", text, err, want)
		}
	}
	if _, err := rules.New(rules.Config{NoBuiltin: true}); err == nil {
		t.Error("a policy without rules is accepted")
	}
}

// FuzzRules holds that no source of rules takes the compiler down.
func FuzzRules(f *testing.F) {
	b, err := os.ReadFile("testdata/linuxagent.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b))
	f.Add("rules: [{id: x, level: SAFE, risk_score: 1, reason: r, match: {embedded_regex: ['a(?=b)c|(?<!d)e']}}]")
	f.Add("a: &a [*a]\nrules: *a")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := rules.New(rules.Config{NoBuiltin: true, Rules: &rules.Source{Name: "f", Data: []byte(text)}})
		if err == nil {
			e.Decide(host("ls -l /etc; rm x"))
		} else if !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("an error without a place: %v", err)
		}
	})
}

// FuzzDecide holds that every text gets a decision, that no programming error shows as one, and
// that appending text does not make it milder.
func FuzzDecide(f *testing.F) {
	for _, c := range typical {
		f.Add(c)
	}
	f.Add("find . -exec sed -e s/a/b/e {} + | awk '{print | \"sh\"}'")
	e := engine(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		d := e.Decide(host(text))
		if slices.Contains(d.MatchedRules, "evaluation.error") {
			t.Fatalf("%q: %v", text, d.Reasons)
		}
		if more := e.Decide(host("rm -rf /\n" + text)); more.Level != rules.Block {
			t.Errorf("%q hides what stands before it: %s", text, more.Level)
		}
	})
}
