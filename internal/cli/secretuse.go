package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// secretFlag adds --secret of what the daemon makes or changes.
func (a *app) secretFlag(c *cobra.Command, names *[]string) {
	c.Flags().StringArrayVar(names, "secret", nil, "give the hosts that your secret `NAME` is for its value, and commands a placeholder; "+
		"NAME@HOST for other hosts, NAME@HOST=INJECT to have it injected; may be repeated")
	_ = c.RegisterFlagCompletionFunc("secret", a.completeSecret()) // the flag is there
}

// secretFileFlags are --secret-file and --secret-template.
type secretFileFlags struct {
	files, templates []string
	// texts are the templates that read found, by the name of their secret.
	texts map[string]string
}

// add adds them, to a command that makes or changes a workspace, or runs in one.
func (x *secretFileFlags) add(c *cobra.Command) {
	c.Flags().StringArrayVar(&x.files, "secret-file", nil, "give your secret as --secret does, and keep its placeholder in a file too: "+
		"`NAME=PATH`, with a path below the home; may be repeated")
	c.Flags().StringArrayVar(&x.templates, "secret-template", nil, "have the file of --secret-file hold what the local file FILE does, with "+
		"the placeholder where FILE says {{NAME}}: `NAME=FILE`; may be repeated")
}

// read returns the files, with what is to be in them.
func (x *secretFileFlags) read() ([]workspace.SecretFile, error) {
	x.texts = map[string]string{}
	for _, t := range x.templates {
		name, path, ok := strings.Cut(t, "=")
		if err := workspace.CheckSecretNames([]string{name}); err != nil || !ok || path == "" {
			return nil, fmt.Errorf("cannot use --secret-template: write NAME=FILE, with the name of a secret and a file of yours that says "+
				"{{NAME}} where the secret stands: %w", errdefs.ErrInvalidArgument)
		}
		if _, twice := x.texts[name]; twice {
			return nil, fmt.Errorf("cannot use two templates for the secret %s: its file has one; leave the other out: %w", name,
				errdefs.ErrInvalidArgument)
		}
		text, err := readTemplate(path)
		if err != nil {
			return nil, err
		}
		x.texts[name] = text
	}
	files, err := workspace.ParseSecretFiles(x.files)
	if err == nil {
		files, err = workspace.WithTemplates(files, x.texts)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range files { // before anything is stored, or leaves this process
		if v := os.Getenv(f.Name); len(v) >= leastSecret {
			if err := f.Holds(f.Name, v); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// leastSecret is how long a variable is, in bytes, that may be a secret.
const leastSecret = 8

// readTemplate reads a local file that is not too long for a template.
func readTemplate(path string) (string, error) {
	f, err := treefile.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the template of a secret's file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, workspace.MaxSecretFile+1)) // one that is too long is refused with the others
	if err != nil {
		return "", fmt.Errorf("cannot read the template of a secret's file: %w", err)
	}
	return string(b), nil
}

// withFiles are the texts of --secret with the names of secrets that only --secret-file has.
func withFiles(texts []string, files []workspace.SecretFile) []string {
	for _, f := range files {
		if !slices.ContainsFunc(texts, func(t string) bool { return t == f.Name || strings.HasPrefix(t, f.Name+"@") }) {
			texts = append(slices.Clip(texts), f.Name)
		}
	}
	return texts
}

// useSecretFiles returns the names of secrets with those that files are asked for, of which one that is not kept yet is stored.
func (a *app) useSecretFiles(ctx context.Context, texts []string, x *secretFileFlags) (names []string, err error) {
	files, err := x.read()
	if err != nil {
		return nil, err
	}
	return a.useSecrets(ctx, withFiles(texts, files))
}

// useSecrets returns the names of secrets that are asked for as NAME, NAME@HOST[,HOST...] or NAME@HOST=INJECT. One that the daemon does
// not keep yet is stored, if the caller has a variable of that name.
func (a *app) useSecrets(ctx context.Context, texts []string) (names []string, err error) {
	if len(texts) == 0 {
		return nil, nil
	}
	me, err := ask(ctx, a, tokens.WhoAmI, &carrelv1.WhoAmIRequest{})
	if err != nil {
		return nil, err
	}
	m, err := ask(ctx, a, secrets.ListSecrets, &carrelv1.ListSecretsRequest{})
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		name, hosts, inject, err := rootless.ParseSecretUse(text)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(m.GetSecrets(), func(s *carrelv1.Secret) bool { return s.GetOwner() == me.GetOwner() && s.GetName() == name })
		switch {
		case i < 0:
			if err := a.storeVariable(ctx, name, hosts, inject); err != nil {
				return nil, err
			}
		case hosts != nil && !sameTexts(hosts, m.GetSecrets()[i].GetHosts()):
			return nil, fmt.Errorf("cannot use the secret %s for %s: it is kept for %s; leave @HOST out, or store it anew: carrel secret rm %[1]s, "+
				"then carrel secret set %[1]s --host HOST: %[4]w",
				name, strings.Join(hosts, ", "), printable(strings.Join(m.GetSecrets()[i].GetHosts(), ", ")), errdefs.ErrFailedPrecondition)
		case inject != "" && inject != m.GetSecrets()[i].GetInject():
			return nil, fmt.Errorf("cannot use the secret %s as %s: it is kept to be sent otherwise; leave =%[2]s out, or store it anew: carrel "+
				"secret rm %[1]s, then carrel secret set %[1]s --inject %[3]q: %[4]w", name, inject, inject, errdefs.ErrFailedPrecondition)
		case os.Getenv(name) != "":
			a.progress("The secret %s that is kept is used, and not your variable; \"carrel secret rotate %[1]s\" gives it another value.", name)
		}
		names = append(names, name)
	}
	return names, nil
}

// storeVariable stores a variable of the caller's as a secret.
func (a *app) storeVariable(ctx context.Context, name string, hosts []string, inject string) error {
	value := os.Getenv(name)
	if value == "" {
		return fmt.Errorf("cannot use the secret %s: there is none, and no variable %[1]s is set here; store it with: carrel secret "+
			"set %[1]s: %[2]w", name, errdefs.ErrNotFound)
	}
	want := &carrelv1.SetSecretRequest{Name: name, Value: value, Hosts: hosts, Inject: inject}
	if _, err := ask(ctx, a, secrets.SetSecret, want); err != nil {
		return err
	}
	a.stored = append(a.stored, name)
	_ = say(a.Err, "carrel: the variable %s is kept as a secret of yours; remove it with: carrel secret rm %[1]s\n", name)
	return nil
}

// unstore removes what useSecrets has stored, if the daemon has refused what that was for and nobody is to be asked about it: a
// command that is refused changes nothing.
func (a *app) unstore(ctx context.Context, err error) {
	refused := slices.ContainsFunc([]func(error) bool{
		errdefs.IsInvalidArgument, errdefs.IsFailedPrecondition, errdefs.IsPermissionDenied, errdefs.IsNotFound,
	}, func(is func(error) bool) bool { return is(err) })
	if _, asks := carrel.ApprovalOf(err); asks || !refused {
		return
	}
	for _, name := range a.stored {
		if _, err := ask(context.WithoutCancel(ctx), a, secrets.RemoveSecret, &carrelv1.RemoveSecretRequest{Name: name}); err == nil {
			_ = say(a.Err, "carrel: the secret %s is not kept after all, because of this:\n", name)
		}
	}
	a.stored = nil
}

func sameTexts(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
