package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// maxSecret is how long the value of a secret may be, in bytes, and maxTyped how long one that a terminal takes as one
// line (termios(3), canonical mode).
const (
	maxSecret = 8 << 10
	maxTyped  = 4095
)

func (a *app) secretCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "secret",
		Short: "Keep secrets for your workspaces, sealed",
		Long: `The daemon keeps secrets for your workspaces. Each is named by the variable that commands
look for, and is for the hosts that you name. Values are stored sealed. Nobody is shown
one: not you, and not an administrator.`,
		Example: `  carrel secret set ANTHROPIC_API_KEY < key
  carrel secret ls
  carrel secret rotate ANTHROPIC_API_KEY < new-key
  carrel secret rm ANTHROPIC_API_KEY`,
	}, a.secretSetCommand(), a.secretRotateCommand(), a.secretLsCommand(), a.secretRmCommand())
}

func (a *app) secretSetCommand() *cobra.Command {
	var hosts, headers, methods, paths, places []string
	var file, inject string
	c := &cobra.Command{
		Use:   "set [flags] NAME",
		Short: help(operation.SetSecret),
		Long: `Store a secret. Its value is read from stdin or from a file, never from an argument; at a
terminal it is not shown while you type. One line end behind it is left out.

The value is sent to the hosts that it is for, in headers of requests over TLS, and to no
others. Of well-known variables (carrel secret set <TAB>) the hosts are known.

Without --inject, commands have a placeholder in the variable NAME, and the value takes its
place on the way to the hosts. With --inject, commands have nothing, and the value is put into
every request to the hosts:

  header:X-Api-Key                  into that header
  header:Authorization: Bearer {}   into one with text around the value, {}
  query:key                         into a parameter of the URL
  basic:USER                        as the password of USER
  basic                             as USER:PASSWORD, if that is the value

What the program sends there is removed. --method and --path limit the secret to some requests;
* stands for one segment of a path, and at its end for all that follows.

--host is about the secret here. The daemon is named by $CARREL_HOST or --context.`,
		Example: `  carrel secret set GITHUB_TOKEN
  pass show deploy | carrel secret set DEPLOY_KEY --host api.example.org
  carrel secret set DEPLOY_KEY --host '*.example.org' --header X-Key --file key
  carrel secret set A_KEY --host api.example.org --inject header:X-Api-Key
  carrel secret set A_KEY --host a.example --inject query:key --path '/v1/*'`,
		Args:              secretName,
		ValidArgsFunction: onlyFirst(cobra.FixedCompletions(rootless.SecretNames(), cobra.ShellCompDirectiveNoFileComp)),
	}
	f := c.Flags()
	f.StringArrayVar(&hosts, "host", nil,
		"a host that gets it, as api.example.org or *.example.org:8443; may be repeated (default those known for NAME)")
	f.StringArrayVar(&headers, "header", nil, "a header in which it is sent, as X-Api-Key; may be repeated (default any)")
	f.StringVar(&inject, "inject", "", "put the value into each request: `PLACE` is header:NAME, 'header:NAME: TEXT {}', "+
		"query:NAME, basic:USER or basic (default: it replaces a placeholder)")
	f.StringSliceVar(&methods, "method", nil, "the requests that get it, as GET,POST; may be repeated (default all)")
	f.StringArrayVar(&paths, "path", nil, "the paths that get it, as '/v1/*'; may be repeated (default all)")
	f.StringArrayVar(&places, "json", nil,
		"a place in JSON bodies where the placeholder is replaced too, as the `POINTER` /auth/token; may be repeated")
	fileFlag(c, &file)
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		for _, h := range hosts {
			if strings.Contains(h, "://") { // before anything is read: the secret is meant for another daemon
				return nil, nil, usage(c, "cannot use --host %q: here it is a host that gets the secret, as api.example.org; name the daemon with "+
					"CARREL_HOST or --context", h)
			}
		}
		value, err := a.secretValue(c.Context(), args[0], file)
		if err != nil {
			return nil, nil, err
		}
		m, err := ask(c.Context(), a, secrets.SetSecret, &carrelv1.SetSecretRequest{
			Name: args[0], Value: value, Hosts: hosts, Headers: headers, Inject: inject, Methods: methods, Paths: paths, Json: places,
		})
		return ofSecret(m.GetSecret(), err)
	})
}

func (a *app) secretRotateCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "rotate [flags] NAME",
		Short: help(operation.RotateSecret),
		Long: `Give a secret another value, for the same hosts, headers and requests. The value is read as by
"carrel secret set".`,
		Example:           "  carrel secret rotate GITHUB_TOKEN\n  carrel secret rotate DEPLOY_KEY --file key",
		Args:              secretName,
		ValidArgsFunction: onlyFirst(a.completeSecret()),
	}
	fileFlag(c, &file)
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		value, err := a.secretValue(c.Context(), args[0], file)
		if err != nil {
			return nil, nil, err
		}
		m, err := ask(c.Context(), a, secrets.RotateSecret, &carrelv1.RotateSecretRequest{Name: args[0], Value: value})
		return ofSecret(m.GetSecret(), err)
	})
}

// secretName takes the name of a secret. What stands behind it is likely to be the value, and is not repeated.
func secretName(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage(c, "cannot take the value of a secret from an argument, which every process of the host can read: write it to stdin, or "+
			"name a file with --file; if that was the value, replace it where it is from")
	}
	return exactly("NAME")(c, args)
}

func fileFlag(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "file", "", "read the value from this file (default stdin)")
	_ = c.MarkFlagFilename("file") // the flag is there
}

// ofSecret is a secret that was stored, as it is printed.
func ofSecret(x *carrelv1.Secret, err error) (any, printer, error) {
	if err != nil {
		return nil, nil, err
	}
	rotated := ""
	if ms := x.GetRotatedUnixMs(); ms != 0 {
		rotated = clock(ms)
	}
	return objectOf(x), pairs([][2]string{
		{"secret", x.GetName()},
		{"hosts", strings.Join(x.GetHosts(), ", ")},
		{"headers", strings.Join(x.GetHeaders(), ", ")},
		{"injected", x.GetInject()},
		{"methods", strings.Join(x.GetMethods(), ", ")},
		{"paths", strings.Join(x.GetPaths(), ", ")},
		{"json", strings.Join(x.GetJson(), ", ")},
		{"stored", clock(x.GetCreatedUnixMs())},
		{"rotated", rotated},
	}...), nil
}

func (a *app) secretLsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls [flags]",
		Short:   help(operation.ListSecrets),
		Example: "  carrel secret ls\n  carrel secret ls -o json",
		Args:    exactly(),
	}
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, secrets.ListSecrets, &carrelv1.ListSecretsRequest{})
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "SECRET", "HOSTS", "HEADERS", "REQUESTS", "OWNER", "STORED", "ROTATED").wideOnly("OWNER", "STORED")
		for _, x := range m.GetSecrets() {
			rotated := "never"
			if ms := x.GetRotatedUnixMs(); ms != 0 {
				rotated = age(at(ms)) + " ago"
			}
			headers := "any"
			if h := x.GetHeaders(); len(h) > 0 {
				headers = strings.Join(h, ",")
			}
			if i := x.GetInject(); i != "" {
				headers = i
			}
			requests := "all"
			if only := append(slices.Clone(x.GetMethods()), x.GetPaths()...); len(only) > 0 {
				requests = strings.Join(only, ",")
			}
			t.add(x.GetName(), cut(strings.Join(x.GetHosts(), ","), 48), cut(headers, 32), cut(requests, 24), x.GetOwner(),
				age(at(x.GetCreatedUnixMs()))+" ago", rotated)
		}
		return objectsOf(m.GetSecrets()), t, nil
	})
}

func (a *app) secretRmCommand() *cobra.Command {
	var owner string
	c := &cobra.Command{
		Use:               "rm [flags] NAME...",
		Short:             help(operation.RemoveSecret),
		Example:           "  carrel secret rm GITHUB_TOKEN\n  sudo carrel secret rm --owner uid:1000 GITHUB_TOKEN",
		Args:              atLeast("NAME"),
		ValidArgsFunction: a.completeSecret(),
	}
	c.Flags().StringVar(&owner, "owner", "", "whose they are, as uid:1000; for administrators (default yours)")
	c.RunE = func(c *cobra.Command, args []string) error {
		var errs []error
		for _, name := range args {
			_, err := ask(c.Context(), a, secrets.RemoveSecret, &carrelv1.RemoveSecretRequest{Name: name, Owner: owner})
			if err == nil {
				err = lines([]string{name}).render(a.Out)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return c
}

func (a *app) completeSecret() cobra.CompletionFunc {
	return a.completion(func(ctx context.Context, client *carrel.Client, args []string) (out []string, err error) {
		m, err := askOf(ctx, client, secrets.ListSecrets, &carrelv1.ListSecretsRequest{})
		for _, x := range m.GetSecrets() {
			out = append(out, cobra.CompletionWithDesc(x.GetName(), strings.Join(x.GetHosts(), ",")))
		}
		return out, err
	})
}

// secretValue reads a value from a file or, without one, from stdin. One line end behind it is left out.
func (a *app) secretValue(ctx context.Context, name, file string) (string, error) {
	in := a.In
	switch {
	case file != "":
		f, err := treefile.Open(file)
		if err != nil {
			return "", fmt.Errorf("cannot read the value of the secret: %w", err)
		}
		defer f.Close()
		in = f
	case isTerminal(a.In):
		return a.typedSecret(ctx, name)
	}
	b, err := io.ReadAll(io.LimitReader(in, maxSecret+2))
	if err != nil {
		return "", fmt.Errorf("cannot read the value of the secret: %w", err)
	}
	value := strings.TrimSuffix(string(b), "\n")
	switch {
	case value == "":
		return "", fmt.Errorf("cannot store an empty secret: nothing was read; write the value to stdin, or name a file with --file: %w",
			errdefs.ErrInvalidArgument)
	case len(value) > maxSecret:
		return "", fmt.Errorf("cannot store a secret that is longer than %d bytes: see that this is the right file: %w", maxSecret,
			errdefs.ErrInvalidArgument)
	}
	return value, nil
}

// typedSecret reads a value from the terminal, which does not show it.
func (a *app) typedSecret(ctx context.Context, name string) (string, error) {
	// A signal must not end the process while the terminal shows nothing.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	a.leaveQuit()
	defer a.endAtQuit()
	a.forgetTyped()
	show, err := unechoed(a.In)
	if err != nil {
		return "", fmt.Errorf("cannot have the terminal hide what you type: %w; write the value to stdin, or name a file with --file", err)
	}
	_ = say(a.Err, "The value of %s, which is not shown: ", name)
	value, err := a.readLine(ctx)
	show()
	fmt.Fprintln(a.Err) // the line end was not shown either
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("cannot go on: a signal ended the input, and nothing was stored: %w", errdefs.ErrAborted)
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("cannot read the value of the secret: %w", err)
	case value == "":
		return "", fmt.Errorf("cannot store an empty secret: nothing was typed; run it again: %w", errdefs.ErrInvalidArgument)
	case len(value) >= maxTyped:
		return "", fmt.Errorf("cannot read a line that is this long from a terminal: write the value to stdin, or name a file with --file: %w",
			errdefs.ErrInvalidArgument)
	}
	return value, nil
}

// unechoed has a terminal show nothing of what is typed, until show is called.
func unechoed(f *os.File) (show func(), err error) {
	var old *unix.Termios
	set := func(t *unix.Termios) error {
		return withFD(f, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, t) })
	}
	err = withFD(f, func(fd int) (err error) {
		old, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err == nil {
		hidden := *old
		hidden.Lflag &^= unix.ECHO | unix.ECHONL
		err = set(&hidden)
	}
	return func() { _ = set(old) }, err // there is nothing left to try if that fails
}
