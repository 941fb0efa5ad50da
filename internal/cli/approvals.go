package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/approval"
)

func (a *app) approvalsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "approvals",
		Short: "See and answer what waits for a person",
		Long: `approvals shows what policy lets nobody do unasked, and takes the answers. You see what
you asked for and what is about your workspaces; root and the members of the carrel group
see and answer everything. Nobody answers for what a model or a program wrote in their own
name.`,
		Example: `  carrel approvals list
  carrel approvals show ap-0123456789abcdef
  carrel approvals approve ap-0123456789abcdef
  carrel approvals deny ap-0123456789abcdef --reason "use the mirror"
  carrel approvals watch
  carrel approvals permissions`,
		Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.approvalsListCommand(), a.approvalsShowCommand(), a.approvalsAnswerCommand("approve"), a.approvalsAnswerCommand("deny"),
		a.permissionsCommand(), a.revokeCommand(), a.approvalsWatchCommand())
	return c
}

// approvalView is the JSON of an approval.
type approvalView struct {
	ID           string        `json:"id"`
	State        string        `json:"state"`
	Requester    string        `json:"requester"`
	Workspace    string        `json:"workspace"`
	Key          string        `json:"key"`
	Owner        string        `json:"owner"`
	Thread       string        `json:"thread"`
	Kind         string        `json:"kind"`
	Argv         []string      `json:"argv"`
	Cwd          string        `json:"cwd"`
	Env          []string      `json:"env"`
	User         string        `json:"user"`
	Source       string        `json:"source"`
	Written      bool          `json:"written"`
	OnceOnly     bool          `json:"once_only"`
	Level        string        `json:"level"`
	RiskScore    int32         `json:"risk_score"`
	Capabilities []string      `json:"capabilities"`
	Rules        []string      `json:"rules"`
	Reasons      []string      `json:"reasons"`
	Segments     []segmentView `json:"segments,omitempty"`
	Profile      string        `json:"profile"`
	Isolation    string        `json:"isolation"`
	ActionDigest string        `json:"action_digest"`
	Policy       string        `json:"policy"`
	Trace        string        `json:"trace"`
	AskedAt      time.Time     `json:"asked_at"`
	Until        time.Time     `json:"until"`
	Answer       *answerView   `json:"answer"`
}

type segmentView struct {
	Text         string   `json:"text"`
	Program      string   `json:"program"`
	Via          string   `json:"via"`
	Level        string   `json:"level"`
	RiskScore    int32    `json:"risk_score"`
	Capabilities []string `json:"capabilities"`
	Rules        []string `json:"rules"`
	Reasons      []string `json:"reasons"`
}

type answerView struct {
	Kind   string    `json:"kind"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Self   bool      `json:"self"`
	At     time.Time `json:"at"`
}

func approvalViewOf(m *carrelv1.Approval) approvalView {
	v := approvalView{
		ID: m.GetId(), State: m.GetState(), Requester: m.GetRequester(), Workspace: m.GetWorkspace(), Key: m.GetKey(), Owner: m.GetOwner(), Thread: m.GetThread(),
		Kind: m.GetKind(), Argv: some(m.GetArgv()), Cwd: m.GetCwd(), Env: some(m.GetEnv()), User: m.GetUser(), Source: m.GetSource(), Written: m.GetWritten(), OnceOnly: m.GetOnceOnly(),
		Level: m.GetLevel(), RiskScore: m.GetRiskScore(), Capabilities: some(m.GetCapabilities()), Rules: some(m.GetRules()), Reasons: some(m.GetReasons()),
		Profile: m.GetProfile(), Isolation: m.GetIsolation(), ActionDigest: m.GetActionDigest(), Policy: m.GetPolicy(), Trace: m.GetTrace(),
		AskedAt: time.UnixMilli(m.GetAskedUnixMs()).UTC(), Until: time.UnixMilli(m.GetUntilUnixMs()).UTC(),
	}
	for _, s := range m.GetSegments() {
		v.Segments = append(v.Segments, segmentView{s.GetText(), s.GetProgram(), s.GetVia(), s.GetLevel(), s.GetRiskScore(), some(s.GetCapabilities()), some(s.GetRules()), some(s.GetReasons())})
	}
	if w := m.GetAnswer(); w != nil {
		v.Answer = &answerView{w.GetKind(), w.GetReason(), w.GetBy(), w.GetSelf(), time.UnixMilli(w.GetUnixMs()).UTC()}
	}
	return v
}

// some is a list that JSON shows as one when it is empty.
func some(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// what is the action of a question in one line.
func (v *approvalView) what() string {
	if len(v.Argv) > 0 {
		return approval.Words(v.Argv)
	}
	return v.Kind
}

func (a *app) approvalsListCommand() *cobra.Command {
	var state, workspace string
	var all bool
	var most int
	c := &cobra.Command{
		Use:   "list [flags]",
		Short: "List approvals, the newest first",
		Long:  "List approvals, the newest first: those that are pending, or with --state or --all others too.",
		Example: `  carrel approvals list
  carrel approvals list --all --workspace demo -o json`,
		Args: exactly(),
	}
	f := c.Flags()
	f.StringVar(&state, "state", "pending", "only those that are pending, approved, denied, spent or expired")
	f.StringVar(&workspace, "workspace", "", "only those about this workspace")
	f.BoolVar(&all, "all", false, "those in every state")
	f.IntVarP(&most, "lines", "n", 1000, "at most so many")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"pending", "approved", "denied", "spent", "expired"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspace)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if most < 1 {
			return usage(c, "cannot list %d approvals: give a number from 1 on", most)
		}
		if all {
			state = ""
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		views := []approvalView{}
		req := &carrelv1.ListApprovalsRequest{State: state, Workspace: workspace}
		for {
			req.PageSize = int32(min(most-len(views), 500))
			res, err := client.Approvals().ListApprovals(c.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			for _, m := range res.Msg.GetApprovals() {
				views = append(views, approvalViewOf(m))
			}
			req.PageToken = res.Msg.GetNextPageToken()
			if req.GetPageToken() == "" || len(views) >= most {
				break
			}
		}
		if *out == asJSON {
			return a.printJSON(views)
		}
		t := newTable(1, "ID", "STATE", "RISK", "WORKSPACE", "ASKED BY", "WROTE", "LEFT", "ACTION")
		for i := range views {
			v := &views[i]
			left := "-"
			if v.State == "pending" {
				left = time.Until(v.Until).Round(time.Second).String()
			}
			t.add(v.ID, v.State, fmt.Sprint(v.RiskScore), printable(v.Key), v.Requester, v.Source, left, cut(v.what(), 60))
		}
		return t.print(a.Out)
	}
	return c
}

func (a *app) approvalsShowCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "show ID",
		Short:             "Show one approval: the action, why it is asked, and the answer",
		Example:           "  carrel approvals show ap-0123456789abcdef",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeApproval("pending"),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		v, err := a.approval(c.Context(), args[0])
		if err != nil {
			return err
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		_, err = fmt.Fprint(a.Out, v.text())
		return err
	}
	return c
}

func (a *app) approval(ctx context.Context, name string) (v approvalView, err error) {
	client, err := a.client()
	if err != nil {
		return v, err
	}
	res, err := client.Approvals().GetApproval(ctx, connect.NewRequest(&carrelv1.GetApprovalRequest{Id: name}))
	if err != nil {
		return v, err
	}
	return approvalViewOf(res.Msg.GetApproval()), nil
}

func (a *app) approvalsAnswerCommand(verb string) *cobra.Command {
	var thread, yes bool
	var reason string
	c := &cobra.Command{
		Use:               verb + " [flags] ID",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeApproval("pending"),
	}
	if verb == "approve" {
		c.Short = "Let an action pass, once or in its thread"
		c.Long = `Let an action pass that waits for it. On a terminal the action is shown and you are asked.

Once is for this action, one time. --thread remembers the answer for the very same words, in
the same directory with the same variables, asked for by the same principal in the same
workspace and thread, until the policy changes or it is revoked; it is refused for what
destroys.`
		c.Example = `  carrel approvals approve ap-0123456789abcdef
  carrel approvals approve --thread ap-0123456789abcdef`
		c.Flags().BoolVar(&thread, "thread", false, "remember it for the same command in its thread")
		c.Flags().BoolVarP(&yes, "yes", "y", false, "do not show it and ask first")
	} else {
		c.Short = "Refuse an action"
		c.Example = `  carrel approvals deny ap-0123456789abcdef --reason "use the mirror"`
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for who asked and for the record")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		req := &carrelv1.AnswerApprovalRequest{Id: args[0], Kind: string(approval.Deny), Reason: reason}
		if verb == "approve" {
			req.Kind = string(approval.Once)
			if thread {
				req.Kind = string(approval.Thread)
			}
			if !yes && isTerminal(a.In) && isTerminal(a.Err) {
				v, err := a.approval(c.Context(), args[0])
				if err != nil {
					return err
				}
				a.forgetTyped()
				fmt.Fprint(a.Err, v.text(), "\nLet it pass? [y/N] ")
				if line, err := a.readLine(c.Context()); err != nil || !strings.EqualFold(strings.TrimSpace(line), "y") {
					return fmt.Errorf("cannot go on: you did not answer y; approval %s is as it was: %w", args[0], errdefs.ErrAborted)
				}
				req.Terminal = true
			}
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Approvals().AnswerApproval(c.Context(), connect.NewRequest(req))
		if err != nil {
			return err
		}
		v := approvalViewOf(res.Msg.GetApproval())
		if *out == asJSON {
			return a.printJSON(v)
		}
		_, err = fmt.Fprintln(a.Out, v.ID, v.State)
		return err
	}
	return c
}

// permissionView is the JSON of a permission.
type permissionView struct {
	ID        string    `json:"id"`
	Text      string    `json:"text"`
	Requester string    `json:"requester"`
	Workspace string    `json:"workspace"`
	Thread    string    `json:"thread"`
	Argv      []string  `json:"argv"`
	Policy    string    `json:"policy"`
	By        string    `json:"by"`
	At        time.Time `json:"at"`
}

func (a *app) permissionsCommand() *cobra.Command {
	var req carrelv1.ListPermissionsRequest
	c := &cobra.Command{
		Use:   "permissions [flags]",
		Short: "List what is remembered of answers",
		Example: `  carrel approvals permissions
  carrel approvals permissions --workspace demo`,
		Args: exactly(),
	}
	c.Flags().StringVar(&req.Workspace, "workspace", "", "only those of this workspace")
	c.Flags().StringVar(&req.Thread, "thread", "", "only those of this thread")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspace) // the flag is there
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Approvals().ListPermissions(c.Context(), connect.NewRequest(&req))
		if err != nil {
			return err
		}
		views := []permissionView{}
		for _, p := range res.Msg.GetPermissions() {
			views = append(views, permissionView{
				p.GetId(), p.GetText(), p.GetRequester(), p.GetWorkspace(), p.GetThread(), some(p.GetArgv()), p.GetPolicy(), p.GetBy(), time.UnixMilli(p.GetUnixMs()).UTC(),
			})
		}
		if *out == asJSON {
			return a.printJSON(views)
		}
		t := newTable(-1, "ID", "WORKSPACE", "THREAD", "ASKED BY", "GIVEN BY", "AGE", "MAY RUN")
		for _, v := range views {
			t.add(v.ID, v.Workspace, printable(v.Thread), v.Requester, v.By, age(v.At), cut(printable(v.Text), 80))
		}
		return t.print(a.Out)
	}
	return c
}

func (a *app) revokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "revoke ID",
		Short:             "Take a permission back",
		Example:           "  carrel approvals revoke ap-0123456789abcdef",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completePermission,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			if _, err := client.Approvals().RevokePermission(c.Context(), connect.NewRequest(&carrelv1.RevokePermissionRequest{Id: args[0]})); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.Out, args[0], "revoked")
			return err
		},
	}
}

func (a *app) completeApproval(state string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		client, err := a.client()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		res, err := client.Approvals().ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{State: state}))
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, m := range res.Msg.GetApprovals() {
			v := approvalViewOf(m)
			out = append(out, cobra.CompletionWithDesc(v.ID, cut(v.what(), 40)))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completePermission(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	client, err := a.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	res, err := client.Approvals().ListPermissions(ctx, connect.NewRequest(&carrelv1.ListPermissionsRequest{}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, p := range res.Msg.GetPermissions() {
		out = append(out, cobra.CompletionWithDesc(p.GetId(), cut(printable(p.GetText()), 40)))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
