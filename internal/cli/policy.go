package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// maxPolicyLine bounds a line that eval reads, in bytes: more than a shell text may have.
const maxPolicyLine = 1 << 20

func (a *app) policyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "policy",
		Short: "Judge commands, allow some, and test and reload a policy",
		Long: `policy asks the rules that judge commands. It runs nothing. Only reload, allow, rules and
disallow, and explain with --workspace, need a daemon.

Without a daemon, a workspace's boundary is taken for verified; the daemon judges one that
was not as a host.`,
		Example: `  carrel policy explain 'curl -fsSL https://example.com/install | sh'
  carrel policy eval --profile workspace < commands.jsonl
  carrel policy allow --workspace demo -- git push origin main
  carrel policy test policy.yaml`,
	}, a.policyEvalCommand(), a.policyExplainCommand(), a.policyTestCommand(), a.policyReloadCommand(),
		a.policyAllowCommand(), a.policyRulesCommand(), a.policyDisallowCommand())
}

// policyFlags are the flags that eval and explain share.
type policyFlags struct {
	profile, source, file string
	noBuiltin             bool
}

func (f *policyFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.profile, "profile", "host", "where it would run: host, remote or workspace")
	c.Flags().StringVar(&f.source, "source", "user", "who wrote it: user, or llm for its first run by a model")
	completeFrom(c, "profile", "host", "remote", "workspace")
	completeFrom(c, "source", "user", "llm")
	c.Flags().StringVar(&f.file, "policy", "", "a file of rules to judge by as well")
	c.Flags().BoolVar(&f.noBuiltin, "no-builtin", false, "judge by the rules of --policy alone")
	c.DisableFlagsInUseLine = true
}

// engine compiles the policy and returns the question without its command.
func (f *policyFlags) engine(c *cobra.Command) (*rules.Engine, rules.Question, error) {
	q := rules.Question{Profile: rules.Profile(f.profile), Source: rules.Origin(f.source), Verified: true}
	switch q.Profile {
	case rules.Host, rules.Remote, rules.Workspace:
	default:
		return nil, q, usage(c, "cannot use the profile %q: it is one of host, remote, workspace", f.profile)
	}
	switch q.Source {
	case rules.User, rules.LLM:
	default:
		return nil, q, usage(c, "cannot use the source %q: it is user or llm", f.source)
	}
	if f.noBuiltin && f.file == "" {
		return nil, q, usage(c, "cannot judge without rules: --no-builtin needs --policy")
	}
	e, err := compilePolicy(f.file, f.noBuiltin)
	return e, q, err
}

// maxPolicyFile bounds a file with rules, in bytes.
const maxPolicyFile = 16 << 20

func compilePolicy(file string, noBuiltin bool) (*rules.Engine, error) {
	conf := rules.Config{NoBuiltin: noBuiltin}
	if file != "" {
		b, err := treefile.Read(file, maxPolicyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the policy: %w", err)
		}
		conf.Rules = &rules.Source{Name: file, Data: b}
	}
	return rules.New(conf)
}

func (a *app) policyReloadCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "reload",
		Short: help(operation.ReloadPolicy),
		Long: `reload applies the rules of policy.path as they are now; SIGHUP to carreld does the same.
If the file cannot be used, the rules stay as they are, and the error says what is wrong
with it. Answers that were given under other rules no longer count.`,
		Example: "  sudo carrel policy reload",
		Args:    exactly(),
	}, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, system.ReloadPolicy, &carrelv1.ReloadPolicyRequest{})
		if err != nil {
			return nil, nil, err
		}
		if m.GetOld() == m.GetNew() {
			return objectOf(m), textf("unchanged: %s, policy %s\n", counted(m.GetRules(), "rule"), m.GetNew()), nil
		}
		return objectOf(m), textf("in force: %s, policy %s; before %s\n", counted(m.GetRules(), "rule"), m.GetNew(), m.GetOld()), nil
	})
}

// evalQuestion is a line that eval reads.
type evalQuestion struct {
	ID      json.RawMessage `json:"id"`
	Command *string         `json:"command"`
	Argv    []string        `json:"argv"`
}

// evalAnswer is a line that eval writes.
type evalAnswer struct {
	ID             json.RawMessage `json:"id"`
	Level          rules.Level     `json:"level"`
	RiskScore      int             `json:"risk_score"`
	Capabilities   []string        `json:"capabilities"`
	MatchedRules   []string        `json:"matched_rules"`
	NeverWhitelist bool            `json:"never_whitelist"`
	Reasons        []string        `json:"reasons"`
}

func (a *app) policyEvalCommand() *cobra.Command {
	var f policyFlags
	c := &cobra.Command{
		Use:   "eval",
		Short: "Judge commands, one JSON object a line from the standard input",
		Long: `eval reads one JSON object a line and writes one for each, in order. It reads a shell text or
words that no shell reads, and writes the judgement:

  {"id": …, "command": "…"}
  {"id": …, "argv": ["…"]}

  {"id", "level", "risk_score", "capabilities", "matched_rules",
   "never_whitelist", "reasons"}

A line that is not such an object ends it with an error; what was read before is answered.`,
		Example: `  echo '{"id":1,"command":"rm -rf build"}' | carrel policy eval --profile host`,
		Args:    exactly(),
	}
	f.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		e, q, err := f.engine(c)
		if err != nil {
			return err
		}
		// A decision allocates little compared with the rules in memory: collect rarely.
		debug.SetGCPercent(400)
		out := bufio.NewWriterSize(a.Out, 64<<10)
		err = evalLines(a.In, out, func(in *evalQuestion) (*evalAnswer, error) {
			q := q
			switch {
			case (in.Command == nil) == (in.Argv == nil):
				return nil, fmt.Errorf("give either \"command\" or \"argv\": %w", errdefs.ErrInvalidArgument)
			case in.Command != nil:
				q.Command = *in.Command
			default:
				q.Argv = in.Argv
			}
			d := e.Decide(q)
			return &evalAnswer{in.ID, d.Level, d.RiskScore, d.Capabilities, d.MatchedRules, d.NeverWhitelist, d.Reasons}, nil
		})
		return errors.Join(err, out.Flush())
	}
	return c
}

// evalLines answers each line of in. It hands out what it has whenever it would wait for
// more, so that one who asks line by line is answered line by line.
func evalLines(in io.Reader, out *bufio.Writer, answer func(*evalQuestion) (*evalAnswer, error)) error {
	r := bufio.NewReaderSize(in, 256<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for n := 1; ; n++ {
		line, err := readLine(r)
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("cannot read line %d: %w", n, err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			var q evalQuestion
			d := json.NewDecoder(bytes.NewReader(line))
			if err := d.Decode(&q); err != nil {
				return fmt.Errorf("cannot read line %d as a JSON object of id and command or argv: %w", n, err)
			}
			if q.ID == nil {
				q.ID = json.RawMessage("null")
			}
			ans, err := answer(&q)
			if err != nil {
				return fmt.Errorf("cannot judge line %d: %w", n, err)
			}
			if err := enc.Encode(ans); err != nil {
				return fmt.Errorf("cannot write the answer to line %d: %w", n, err)
			}
		}
		if r.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return fmt.Errorf("cannot write the answer to line %d: %w", n, err)
			}
		}
	}
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	whole := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(whole) > maxPolicyLine {
			return nil, fmt.Errorf("it is longer than %d bytes: %w", maxPolicyLine, errdefs.ErrInvalidArgument)
		}
		line, err = r.ReadSlice('\n')
		whole = append(whole, line...)
	}
	return whole, err
}

func (a *app) policyExplainCommand() *cobra.Command {
	var f policyFlags
	var workspace string
	c := &cobra.Command{
		Use:   "explain COMMAND [ARG...]",
		Short: help(operation.ExplainCommand),
		Long: `explain judges a shell text and says why, segment by segment. It runs nothing. Several words
are a command that no shell reads, as exec takes it.

With --workspace the daemon judges it for that workspace: by the rules in force there, and by
whether its isolation was seen to hold. Without, the rules of this program are asked, and
those of --policy.`,
		Example: `  carrel policy explain 'find . -name "*.tmp" | xargs rm'
  carrel policy explain --workspace demo --source llm 'git push --force'
  carrel policy explain --workspace demo -- git push --force`,
		Args: atLeast("COMMAND"),
	}
	f.add(c)
	c.Flags().StringVar(&workspace, "workspace", "", "ask the daemon about this `WORKSPACE`")
	c.MarkFlagsMutuallyExclusive("workspace", "profile")
	c.MarkFlagsMutuallyExclusive("workspace", "policy")
	c.MarkFlagsMutuallyExclusive("workspace", "no-builtin")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flag is there
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		if workspace != "" {
			argv := args
			if len(args) == 1 {
				argv = []string{"/bin/sh", "-c", args[0]}
			}
			return a.explainFor(c, workspace, f.source, argv)
		}
		e, q, err := f.engine(c)
		if err != nil {
			return nil, nil, err
		}
		if len(args) == 1 {
			q.Command = args[0]
		} else {
			q.Argv = args
		}
		d := e.Decide(q)
		return d, explained(&d, ""), nil
	})
}

// explainFor asks the daemon how a command would be judged in a workspace.
func (a *app) explainFor(c *cobra.Command, workspace, source string, argv []string) (any, printer, error) {
	m, err := ask(c.Context(), a, commands.Explain, &carrelv1.ExplainRequest{
		Workspace: workspace, Command: &carrelv1.Command{Argv: argv, Source: source},
	})
	if err != nil {
		return nil, nil, err
	}
	var d rules.Decision
	if err := json.Unmarshal(m.GetDecision(), &d); err != nil {
		return nil, nil, fmt.Errorf("cannot read the daemon's decision: %w", err)
	}
	how := "its isolation was seen to hold"
	switch {
	case m.GetAssumed():
		how = "it does not run; its isolation will be seen to hold when it starts"
	case !m.GetVerified():
		how = "its isolation was not seen to hold, so that it is judged as a host; \"carrel inspect\" says what does not"
	}
	shown := struct {
		rules.Decision
		Workspace string `json:"workspace"`
		Verified  bool   `json:"verified"`
		Assumed   bool   `json:"assumed"`
	}{d, workspace, m.GetVerified(), m.GetAssumed()}
	return shown, explained(&d, fmt.Sprintf("workspace %s: %s\n", workspace, how)), nil
}

// explained is a decision for people, after a head.
func explained(d *rules.Decision, head string) *shaped {
	return &shaped{whole: text(head + explanation(d, false)), narrow: text(head + explanation(d, true))}
}

// explanation is the text of a decision, with reasons in lines that fit.
func explanation(d *rules.Decision, fit bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  risk %d  profile %s\npolicy %s\n", d.Level, d.RiskScore, d.Profile, d.Policy)
	for _, s := range d.Segments {
		fmt.Fprintf(&b, "\n%q", cmp.Or(s.Text, "(the whole text)"))
		if s.Via != "" {
			fmt.Fprintf(&b, "  run by %s", s.Via)
		}
		fmt.Fprintf(&b, "\n  %s  risk %d\n", s.Level, s.RiskScore)
		if len(s.Capabilities) > 0 {
			fmt.Fprintf(&b, "  capabilities: %s\n", strings.Join(s.Capabilities, ", "))
		}
		for i, id := range s.MatchedRules {
			reason := fmt.Sprintf("  %s: %q\n", id, s.Reasons[i])
			if fit {
				reason = strings.TrimPrefix(wrap(reason, "    "), "  ")
			}
			b.WriteString(reason)
		}
	}
	if d.NeverWhitelist {
		b.WriteString("\nan answer to it is never remembered\n")
	}
	return b.String()
}

func (a *app) policyTestCommand() *cobra.Command {
	var noBuiltin bool
	c := &cobra.Command{
		Use:   "test FILE",
		Short: "Check a file of rules and its examples",
		Long: `test compiles a file of rules as the daemon would and checks the examples of each rule.
Errors have file, line and column, and the exit code is 1. A rule with level SAFE that a
stricter one overrides is named on stderr: it is no error, and lets nothing pass.`,
		Example: "  carrel policy test /etc/carrel/policy.yaml",
		Args:    exactly("FILE"),
	}
	c.Flags().BoolVar(&noBuiltin, "no-builtin", false, "leave the built-in rules out")
	c.RunE = func(_ *cobra.Command, args []string) error {
		e, err := compilePolicy(args[0], noBuiltin)
		if err != nil {
			return err
		}
		for _, o := range e.Overridden() {
			if err := say(a.Err, "carrel: %s\n", o); err != nil {
				return err
			}
		}
		return say(a.Out, "ok: %s, policy %s\n", counted(e.Rules(), "rule"), e.Digest())
	}
	return c
}
