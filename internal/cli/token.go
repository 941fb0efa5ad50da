package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// tokenView is the JSON of a token.
type tokenView struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Owner      string     `json:"owner"`
	Roles      []string   `json:"roles"`
	Workspaces []string   `json:"workspaces"`
	State      string     `json:"state"`
	Maker      string     `json:"maker"`
	Parent     string     `json:"parent,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	MaxUses    int64      `json:"max_uses"`
	Uses       int64      `json:"uses"`
	Rate       float64    `json:"rate"`
	Burst      int32      `json:"burst"`
	RevokedAt  *time.Time `json:"revoked_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
}

func tokenViewOf(t *carrelv1.Token) tokenView {
	at := func(ms int64) *time.Time {
		if ms == 0 {
			return nil
		}
		u := time.UnixMilli(ms).UTC()
		return &u
	}
	return tokenView{
		ID: t.GetId(), Name: t.GetName(), Owner: t.GetOwner(), Roles: notNil(t.GetRoles()), Workspaces: notNil(t.GetWorkspaces()), State: t.GetState(),
		Maker: t.GetMaker(), Parent: t.GetParent(), CreatedAt: time.UnixMilli(t.GetCreatedUnixMs()).UTC(), ExpiresAt: time.UnixMilli(t.GetExpiresUnixMs()).UTC(),
		MaxUses: t.GetMaxUses(), Uses: t.GetUses(), Rate: t.GetRate(), Burst: t.GetBurst(), RevokedAt: at(t.GetRevokedUnixMs()), LastUsedAt: at(t.GetLastUsedUnixMs()),
	}
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func (a *app) tokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Make, list and revoke tokens for programs and people elsewhere",
		Long: `A token lets a program, or somebody elsewhere, use carrel with exactly the roles that it
was made with, for the workspaces of one owner. It never gives more than who makes it
has. What is done with it is recorded under its id and its owner.

  admin     everything, with everybody's workspaces
  operator  everything with the owner's workspaces, and tokens that give no more
  approver  see the owner's workspaces, and what waits for a person
  auditor   read the record of what everybody does
  agent     run commands in the owner's workspaces that there are`,
		Example: `  carrel token create --role agent --workspace demo --expires 24h
  carrel token ls
  carrel token revoke 0123456789ab`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(c, "cannot use the argument %q: token has create, ls, show and revoke", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.tokenCreateCommand(), a.tokenLsCommand(), a.tokenShowCommand(), a.tokenRevokeCommand())
	return c
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var roles, workspaces []string
	var name, owner, expires, rate string
	var uses int64
	c := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a token and print it, once",
		Long: `Make a token and print it on stdout; it is kept nowhere. What it is for and where it is
good is printed on stderr.`,
		Example: `  carrel token create --role agent --workspace demo --expires 24h
  CARREL_TOKEN=$(carrel token create --role agent --workspace 'bot-*' --rate 10/s)
  sudo carrel token create --role operator --owner uid:1000 --name "alice's laptop"
  carrel token create --role agent --max-uses 1 -o json`,
		Args: exactly(),
	}
	f := c.Flags()
	f.StringArrayVar(&roles, "role", []string{"agent"}, "what it may do: admin, operator, approver, auditor or agent; may be repeated")
	f.StringArrayVarP(&workspaces, "workspace", "w", nil, "limit it to a workspace by key or name, or by the beginning of a key and *; may be repeated (default all of the owner's)")
	f.StringVar(&expires, "expires", "", "how long it is good, as 90m, 24h or 30d (default 30d, at most 366d)")
	f.Int64Var(&uses, "max-uses", 0, "how many requests it is good for (default any number)")
	f.StringVar(&rate, "rate", "", "how many requests it may make, as 10/s, 30/m or 10/s:50 for 50 at once (default any number)")
	f.StringVar(&name, "name", "", "what to call it")
	f.StringVar(&owner, "owner", "", "whose workspaces it is for, as uid:1000; for administrators (default yours)")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"admin", "operator", "approver", "auditor", "agent"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		req := &carrelv1.CreateTokenRequest{Name: name, Roles: roles, Workspaces: workspaces, Owner: owner, MaxUses: uses}
		var err error
		if req.LifeMs, err = lifeFrom(expires); err != nil {
			return usage(c, "cannot use --expires %q: %w", expires, err)
		}
		if req.Rate, req.Burst, err = rateFrom(rate); err != nil {
			return usage(c, "cannot use --rate %q: %w", rate, err)
		}
		if uses < 0 || c.Flags().Changed("max-uses") && uses == 0 {
			return usage(c, "cannot use --max-uses %d: give a number of requests from 1, or leave it out", uses)
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Tokens().CreateToken(c.Context(), connect.NewRequest(req))
		if err != nil {
			return err
		}
		m := res.Msg
		if *out == asJSON {
			return a.printJSON(struct {
				Token       string    `json:"token"`
				Address     string    `json:"address"`
				Fingerprint string    `json:"fingerprint"`
				About       tokenView `json:"about"`
			}{m.GetSecret(), m.GetAddress(), m.GetFingerprint(), tokenViewOf(m.GetToken())})
		}
		if _, err := fmt.Fprintln(a.Out, m.GetSecret()); err != nil {
			return err
		}
		a.explainToken(m)
		return nil
	}
	return c
}

// explainToken says on stderr what a new token is for, and how to use it.
func (a *app) explainToken(m *carrelv1.CreateTokenResponse) {
	t := m.GetToken()
	var b strings.Builder
	where := "all workspaces of " + t.GetOwner()
	if w := t.GetWorkspaces(); len(w) > 0 {
		where = "of " + t.GetOwner() + " only " + shellQuote(w)
	}
	fmt.Fprintf(&b, "Token %s, %s, for %s, is good until %s.\nIt is not shown again; \"carrel token revoke %s\" ends it.\n",
		t.GetId(), strings.Join(t.GetRoles(), ", "), printable(where), time.UnixMilli(t.GetExpiresUnixMs()).Format(time.RFC3339), t.GetId())
	if m.GetAddress() != "" {
		fmt.Fprintf(&b, "From elsewhere:\n  export %s=%s\n  export %s=%s\n  export %s=…\n", carrel.HostEnv, m.GetAddress(), carrel.FingerprintEnv, m.GetFingerprint(), carrel.TokenEnv)
	} else {
		b.WriteString("It is good on this host's socket; set \"listen\" in the configuration to serve it elsewhere.\n")
	}
	_, _ = a.Err.WriteString(b.String()) // the token is out
}

// lifeFrom reads a duration that may also be a number of days.
func lifeFrom(s string) (ms int64, err error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if n, err = strconv.Atoi(days); err == nil && n <= 366 {
			d = time.Duration(n) * 24 * time.Hour
		}
	}
	if err != nil || d < time.Second || d > 366*24*time.Hour {
		return 0, errors.New("give a time from 1s to 366d, as 90m, 24h or 30d")
	}
	return d.Milliseconds(), nil
}

// rateFrom reads N/s, N/m or N/h, with :BURST or without.
func rateFrom(s string) (rate float64, burst int32, err error) {
	if s == "" {
		return 0, 0, nil
	}
	wrong := errors.New("give a number of requests and a time, as 10/s, 30/m or 10/s:50")
	s, at, hasBurst := strings.Cut(s, ":")
	if hasBurst {
		n, err := strconv.ParseInt(at, 10, 32)
		if err != nil || n < 1 {
			return 0, 0, wrong
		}
		burst = int32(n)
	}
	count, unit, ok := strings.Cut(s, "/")
	seconds, known := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseUint(count, 10, 31)
	if !ok || !known || err != nil || n == 0 {
		return 0, 0, wrong
	}
	return float64(n) / seconds, burst, nil
}

func (a *app) tokenLsCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List tokens",
		Example: "  carrel token ls --all",
		Args:    exactly(),
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "those that are not good any more too")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Tokens().ListTokens(c.Context(), connect.NewRequest(&carrelv1.ListTokensRequest{}))
		if err != nil {
			return err
		}
		views := []tokenView{}
		t := newTable(1, "TOKEN", "STATE", "ROLES", "OWNER", "WORKSPACES", "EXPIRES", "LAST USED", "NAME")
		for _, x := range res.Msg.GetTokens() {
			v := tokenViewOf(x)
			if v.State != "good" && !all {
				continue
			}
			views = append(views, v)
			where, used := "all", "never"
			if len(v.Workspaces) > 0 {
				where = shellQuote(v.Workspaces)
			}
			if v.LastUsedAt != nil {
				used = age(*v.LastUsedAt) + " ago"
			}
			t.add(v.ID, v.State, strings.Join(v.Roles, ","), v.Owner, cut(where, 40), v.ExpiresAt.Local().Format("2006-01-02 15:04"), used, cut(printable(v.Name), 40))
		}
		if *out == asJSON {
			return a.printJSON(views)
		}
		return t.print(a.Out)
	}
	return c
}

func (a *app) tokenShowCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "show [flags] TOKEN",
		Short:             "Show a token by its id, without its secret",
		Example:           "  carrel token show 0123456789ab",
		Args:              exactly("TOKEN"),
		ValidArgsFunction: a.completeToken,
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Tokens().GetToken(c.Context(), connect.NewRequest(&carrelv1.GetTokenRequest{Id: tokenID(args[0])}))
		if err != nil {
			return err
		}
		v := tokenViewOf(res.Msg.GetToken())
		if *out == asJSON {
			return a.printJSON(v)
		}
		return a.printToken(v)
	}
	return c
}

func (a *app) printToken(v tokenView) error {
	t := newTable(-1, "token", v.ID)
	t.add("state", v.State)
	t.add("name", printable(v.Name))
	t.add("roles", strings.Join(v.Roles, ", "))
	t.add("owner", v.Owner)
	where := "all of the owner's"
	if len(v.Workspaces) > 0 {
		where = shellQuote(v.Workspaces)
	}
	t.add("workspaces", where)
	made := v.Maker + " at " + v.CreatedAt.Local().Format(time.RFC3339)
	t.add("made by", made)
	t.add("expires", v.ExpiresAt.Local().Format(time.RFC3339))
	if v.MaxUses > 0 {
		t.add("uses", fmt.Sprintf("%d of %d", v.Uses, v.MaxUses))
	}
	if v.Rate > 0 {
		t.add("rate", fmt.Sprintf("%g a second, %d at once", v.Rate, v.Burst))
	}
	if v.RevokedAt != nil {
		t.add("revoked", v.RevokedAt.Local().Format(time.RFC3339))
	}
	if v.LastUsedAt != nil {
		t.add("last used", v.LastUsedAt.Local().Format(time.RFC3339))
	}
	return t.print(a.Out)
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOKEN...",
		Short: "End tokens, and what they have under way",
		Long: `End tokens by their ids: the part between the underscores, or the whole token. What was
made with one ends with it, and so do the streams and commands that are attached to it.`,
		Example:           "  carrel token revoke 0123456789ab",
		Args:              atLeast("TOKEN"),
		ValidArgsFunction: a.completeToken,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			var errs []error
			for _, ref := range args {
				res, err := client.Tokens().RevokeToken(c.Context(), connect.NewRequest(&carrelv1.RevokeTokenRequest{Id: tokenID(ref)}))
				if err != nil {
					errs = append(errs, err)
					continue
				}
				for _, id := range res.Msg.GetRevoked() {
					if _, err := fmt.Fprintln(a.Out, id); err != nil {
						return err
					}
				}
			}
			return errors.Join(errs...)
		},
	}
}

// tokenID takes the id out of a whole token, so that nobody has to send one to end it.
func tokenID(ref string) string {
	if parts := strings.SplitN(ref, "_", 3); len(parts) == 3 && parts[0] == "crl" {
		return parts[1]
	}
	return ref
}

func (a *app) completeToken(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	client, err := a.clientIfUp()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	res, err := client.Tokens().ListTokens(ctx, connect.NewRequest(&carrelv1.ListTokensRequest{}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, t := range res.Msg.GetTokens() {
		if t.GetState() == "good" {
			ids = append(ids, cobra.CompletionWithDesc(t.GetId(), strings.Join(t.GetRoles(), ",")+" "+printable(t.GetName())))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) whoamiCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "whoami",
		Short:   "Show whom carrel takes you for, and what you may do",
		Example: "  carrel whoami\n  CARREL_TOKEN=… carrel whoami -o json",
		Args:    exactly(),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Tokens().WhoAmI(c.Context(), connect.NewRequest(&carrelv1.WhoAmIRequest{}))
		if err != nil {
			return err
		}
		m := res.Msg
		v := struct {
			Principal   string     `json:"principal"`
			Kind        string     `json:"kind"`
			Owner       string     `json:"owner"`
			Roles       []string   `json:"roles"`
			Permissions []string   `json:"permissions"`
			Host        string     `json:"host"`
			Token       *tokenView `json:"token,omitempty"`
		}{m.GetPrincipal(), m.GetKind(), m.GetOwner(), notNil(m.GetRoles()), notNil(m.GetPermissions()), client.Host(), nil}
		if m.GetToken() != nil {
			t := tokenViewOf(m.GetToken())
			v.Token = &t
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		t := newTable(-1, "you are", v.Principal)
		if v.Owner != v.Principal {
			t.add("acting for", v.Owner)
		}
		t.add("roles", strings.Join(v.Roles, ", "))
		t.add("may", strings.Join(v.Permissions, ", "))
		if v.Token != nil && len(v.Token.Workspaces) > 0 {
			t.add("in", shellQuote(v.Token.Workspaces))
		}
		if v.Token != nil {
			t.add("until", v.Token.ExpiresAt.Local().Format(time.RFC3339))
		}
		t.add("at", v.Host)
		return t.print(a.Out)
	}
	return c
}

// connection is the daemon at host with what the flags and the environment say of it: for
// carrel, unlike other programs over the SDK, they go together whoever names the host.
func (a *app) connection(host string) (*carrel.Client, error) {
	o := carrel.Options{Host: host, TokenFile: a.tokenFile, Fingerprint: a.fingerprint}
	if o.TokenFile == "" {
		o.Token, o.TokenFile = os.Getenv(carrel.TokenEnv), os.Getenv(carrel.TokenFileEnv)
	}
	if o.Fingerprint == "" {
		o.Fingerprint = os.Getenv(carrel.FingerprintEnv)
	}
	return carrel.New(o)
}
