package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli/timearg"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) tokenCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "token",
		Short: "Make, list and revoke tokens for programs and people elsewhere",
		Long: `A token lets a program, or somebody elsewhere, use carrel with exactly the roles that it
was made with, for the workspaces of one owner. It never gives more than its maker has.
What is done with it is recorded under its id and its owner.

  admin     everything, with everybody's workspaces
  operator  everything with the owner's workspaces, and tokens that give no more
  approver  see the owner's workspaces, and what waits for a person
  auditor   read the record of what everybody does
  agent     run commands in the owner's existing workspaces`,
		Example: `  carrel token create --role agent --workspace demo --expires 24h
  carrel token ls
  carrel token revoke 0123456789ab`,
	}, a.tokenCreateCommand(), a.tokenLsCommand(), a.tokenShowCommand(), a.tokenRevokeCommand())
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var roles, workspaces []string
	var name, owner, expires, rate string
	var uses int64
	c := &cobra.Command{
		Use:   "create [flags]",
		Short: help(operation.CreateToken),
		Long: `Make a token and print it on stdout; it is stored nowhere. What it is for and where it is
valid is printed on stderr.`,
		Example: `  carrel token create --role agent --workspace demo --expires 24h
  CARREL_TOKEN=$(carrel token create --role agent --workspace 'bot-*')
  sudo carrel token create --role operator --owner uid:1000 --name laptop
  eval "$(carrel token create --e2b)"
  carrel token create --role agent --max-uses 1 -o json`,
		Args: exactly(),
	}
	f := c.Flags()
	f.StringArrayVar(&roles, "role", []string{"agent"}, "what it may do: admin, operator, approver, auditor or agent; may be repeated")
	f.StringArrayVarP(&workspaces, "workspace", "w", nil,
		"limit it to a workspace by key or name, or by the beginning of a key and *; may be repeated (default all of the owner's)")
	f.StringVar(&expires, "expires", "", "how long it is valid, as 90m, 24h or 30d (default 30d, at most 366d)")
	f.Int64Var(&uses, "max-uses", 0, "how many requests it may make in all (default any number)")
	f.StringVar(&rate, "rate", "", "how many requests it may make, as 10/s, 30/m or 10/s:50 for 50 at once (default any number)")
	f.StringVar(&name, "name", "", "what to call it")
	f.StringVar(&owner, "owner", "", "whose workspaces it is for, as uid:1000; for administrators (default yours)")
	completeFrom(c, "role", "admin", "operator", "approver", "auditor", "agent")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flag is there
	forE2B := c.Flags().Bool("e2b", false, "print what programs that were written for E2B need, to be run by a shell: E2B_API_KEY and URLs")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *forE2B && !c.Flags().Changed("role") {
			roles = []string{"operator"} // who makes sandboxes and ends them
		}
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
		m, err := ask(c.Context(), a, tokens.CreateToken, req)
		if err != nil {
			return err
		}
		if *out == asJSON {
			return a.printJSON(object{
				{"token", m.GetSecret()}, {"address", m.GetAddress()}, {"fingerprint", m.GetFingerprint()}, {"about", objectOf(m.GetToken())},
			})
		}
		if *forE2B {
			return a.printE2B(m)
		}
		if _, err := fmt.Fprintln(a.Out, m.GetSecret()); err != nil {
			return err
		}
		a.explainToken(m)
		return nil
	}
	return c
}

// printE2B prints a token as the variables that SDKs of E2B read. Some of them want an API key of hexadecimal digits.
func (a *app) printE2B(m *carrelv1.CreateTokenResponse) error {
	var b strings.Builder
	fmt.Fprintf(&b, "export E2B_API_KEY=e2b_%x\n", m.GetSecret())
	if m.GetE2BUrl() != "" {
		fmt.Fprintf(&b, "export E2B_API_URL=%s\nexport E2B_SANDBOX_URL=%s\n", shellQuote([]string{m.GetE2BUrl()}),
			shellQuote([]string{m.GetE2BUrl()}))
	}
	if m.GetE2BDomain() != "" {
		fmt.Fprintf(&b, "export E2B_DOMAIN=%s\n", shellQuote([]string{m.GetE2BDomain()}))
	}
	if _, err := a.Out.Write([]byte(b.String())); err != nil {
		return err
	}
	a.explainToken(m)
	if m.GetE2BUrl() == "" {
		_, _ = a.Err.WriteString("The daemon serves no programs of E2B: set \"e2b_listen\" in its configuration, as 127.0.0.1:7300, and " +
			"start it again.\n")
	}
	return nil // the token is out
}

// explainToken says on stderr what a new token is for, and how to use it.
func (a *app) explainToken(m *carrelv1.CreateTokenResponse) {
	t := m.GetToken()
	var b strings.Builder
	where := "all workspaces"
	if w := t.GetWorkspaces(); len(w) > 0 {
		where = "only " + shellQuote(w)
	}
	where += " of " + t.GetOwner()
	fmt.Fprintf(&b, "Token %s, %s, for %s, is good until %s.\nIt is not shown again; \"carrel token revoke %s\" ends it.\n",
		t.GetId(), strings.Join(t.GetRoles(), ", "), printable(where), clock(t.GetExpiresUnixMs()), t.GetId())
	if m.GetAddress() != "" {
		fmt.Fprintf(&b, "From elsewhere, with the token in a file that only you may read:\n  carrel context add NAME --host %s \\\n    "+
			"--fingerprint %s \\\n    --token-file FILE --use\n", m.GetAddress(), m.GetFingerprint())
	} else {
		b.WriteString("It is good on this host's socket; set \"listen\" in the configuration to serve it elsewhere.\n")
	}
	_, _ = a.Err.WriteString(b.String()) // the token is out
}

// lifeFrom reads how long a token is valid.
func lifeFrom(s string) (ms int64, err error) {
	if s == "" {
		return 0, nil
	}
	d, err := timearg.ParseDays(s)
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

// goodToken is the state of a token that can be used.
const goodToken = "good"

func (a *app) tokenLsCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "ls [flags]",
		Short:   help(operation.ListTokens),
		Example: "  carrel token ls --all",
		Args:    exactly(),
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "include those that are no longer valid")
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, tokens.ListTokens, &carrelv1.ListTokensRequest{})
		if err != nil {
			return nil, nil, err
		}
		list := m.GetTokens()
		if !all {
			list = slices.DeleteFunc(list, func(t *carrelv1.Token) bool { return t.GetState() != goodToken })
		}
		t := newTable(1, "TOKEN", "STATE", "ROLES", "OWNER", "WORKSPACES", "EXPIRES", "LAST USED", "NAME").
			wideOnly("OWNER", "LAST USED").freeText()
		for _, x := range list {
			used := "never"
			if ms := x.GetLastUsedUnixMs(); ms != 0 {
				used = age(at(ms)) + " ago"
			}
			t.add(x.GetId(), x.GetState(), strings.Join(x.GetRoles(), ","), x.GetOwner(), cut(cmp.Or(shellQuote(x.GetWorkspaces()), "all"), 40),
				at(x.GetExpiresUnixMs()).Format("2006-01-02 15:04Z"), used, keyText(x.GetName()))
		}
		return objectsOf(list), t, nil
	})
}

func (a *app) tokenShowCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:               "show [flags] TOKEN",
		Short:             "Show a token by its id, without its secret",
		Example:           "  carrel token show 0123456789ab",
		Args:              exactly("TOKEN"),
		ValidArgsFunction: a.completeToken(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, tokens.GetToken, &carrelv1.GetTokenRequest{Id: tokenID(args[0])})
		if err != nil {
			return nil, nil, err
		}
		t, uses, rate := m.GetToken(), "", ""
		if t.GetMaxUses() > 0 {
			uses = fmt.Sprintf("%d of %d", t.GetUses(), t.GetMaxUses())
		}
		if t.GetRate() > 0 {
			rate = fmt.Sprintf("%g a second, %d at once", t.GetRate(), t.GetBurst())
		}
		return objectOf(t), pairs([][2]string{
			{"token", t.GetId()},
			{"state", t.GetState()},
			{"name", printable(t.GetName())},
			{"roles", strings.Join(t.GetRoles(), ", ")},
			{"owner", t.GetOwner()},
			{"workspaces", cmp.Or(shellQuote(t.GetWorkspaces()), "all of the owner's")},
			{"made by", t.GetMaker() + " at " + clock(t.GetCreatedUnixMs())},
			{"expires", clock(t.GetExpiresUnixMs())},
			{"uses", uses},
			{"rate", rate},
			{"revoked", clock(t.GetRevokedUnixMs())},
			{"last used", clock(t.GetLastUsedUnixMs())},
		}...), nil
	})
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOKEN...",
		Short: help(operation.RevokeToken),
		Long: `Revoke tokens by their ids: the part between the underscores, or the whole token. Tokens
that were made with one end with it, and so do the streams and commands attached to it.`,
		Example:           "  carrel token revoke 0123456789ab",
		Args:              atLeast("TOKEN"),
		ValidArgsFunction: a.completeToken(),
		RunE: func(c *cobra.Command, args []string) error {
			var errs []error
			for _, ref := range args {
				m, err := ask(c.Context(), a, tokens.RevokeToken, &carrelv1.RevokeTokenRequest{Id: tokenID(ref)})
				if err == nil {
					err = lines(m.GetRevoked()).render(a.Out)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

// tokenID takes the id out of a whole token, so that a token is not sent to be revoked.
func tokenID(ref string) string {
	if parts := strings.SplitN(ref, "_", 3); len(parts) == 3 && parts[0] == "crl" {
		return parts[1]
	}
	return ref
}

func (a *app) completeToken() cobra.CompletionFunc {
	return a.completion(func(ctx context.Context, client *carrel.Client, _ []string) (out []string, err error) {
		m, err := askOf(ctx, client, tokens.ListTokens, &carrelv1.ListTokensRequest{})
		for _, t := range m.GetTokens() {
			if t.GetState() == goodToken {
				out = append(out, cobra.CompletionWithDesc(t.GetId(), strings.Join(t.GetRoles(), ",")+" "+printable(t.GetName())))
			}
		}
		return out, err
	})
}

func (a *app) whoamiCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:     "whoami",
		Short:   help(operation.WhoAmI),
		Example: "  carrel whoami\n  CARREL_TOKEN=… carrel whoami -o json",
		Args:    exactly(),
	}, func(c *cobra.Command, _ []string) (any, printer, error) {
		client, err := a.client()
		if err != nil {
			return nil, nil, err
		}
		m, err := askOf(c.Context(), client, tokens.WhoAmI, &carrelv1.WhoAmIRequest{})
		if err != nil {
			return nil, nil, err
		}
		owner := m.GetOwner()
		if owner == m.GetPrincipal() {
			owner = ""
		}
		return objectOf(m).with("host", client.Host()), pairs([][2]string{
			{"you are", m.GetPrincipal()},
			{"acting for", owner},
			{"roles", strings.Join(m.GetRoles(), ", ")},
			{"may", strings.Join(m.GetPermissions(), ", ")},
			{"in", shellQuote(m.GetToken().GetWorkspaces())},
			{"until", clock(m.GetToken().GetExpiresUnixMs())},
			{"at", client.Host()},
		}...), nil
	})
}

// connection is a client of the daemon of a target. Flags for its token and key go before variables, and
// variables before what its context has.
func (a *app) connection(t target) (*carrel.Client, error) {
	o := carrel.Options{Host: t.host, TokenFile: a.tokenFile}
	if o.TokenFile == "" {
		o.Token, o.TokenFile = os.Getenv(carrel.TokenEnv), os.Getenv(carrel.TokenFileEnv)
	}
	if o.Token == "" && o.TokenFile == "" {
		o.TokenFile = t.context.TokenFile
	}
	o.Fingerprint = cmp.Or(a.fingerprint, os.Getenv(carrel.FingerprintEnv), t.context.Fingerprint)
	o.CAFile = cmp.Or(a.caFile, os.Getenv(carrel.CAFileEnv), t.context.CAFile)
	return carrel.New(o)
}
