package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/rootless/paths"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// contextEnv names the context to use.
const contextEnv = "CARREL_CONTEXT"

// maxContexts bounds the file of contexts, in bytes.
const maxContexts = 1 << 20

// connectTo is one context: a carrel and how it is spoken to. It has the path of a token, never a token.
type connectTo struct {
	Host        string `yaml:"host"`
	Fingerprint string `yaml:"fingerprint,omitempty"`
	CAFile      string `yaml:"ca_file,omitempty"`
	TokenFile   string `yaml:"token_file,omitempty"`
}

// contexts is the file of contexts of the calling user.
type contexts struct {
	// Current is the context that is used if no other and no host is named, "" for none.
	Current  string               `yaml:"current,omitempty"`
	Contexts map[string]connectTo `yaml:"contexts"`

	path string
}

// contextName is compiled when it is needed, because most commands need none.
var contextName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// readContexts reads the caller's file. There need not be one. One that another user could have written
// is refused: it would choose where a token is sent.
func readContexts() (*contexts, error) {
	dir, err := paths.ConfigDir()
	if err != nil {
		return nil, err
	}
	c := &contexts{path: filepath.Join(dir, paths.Contexts), Contexts: map[string]connectTo{}}
	f, err := os.OpenFile(c.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	fail := func(err error) (*contexts, error) {
		return nil, fmt.Errorf("cannot use the contexts in %s: %w", c.path, err)
	}
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := withFD(f, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return fail(err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fail(fmt.Errorf("it is not a regular file: %w", errdefs.ErrFailedPrecondition))
	case int(st.Uid) != os.Geteuid():
		return fail(fmt.Errorf("it belongs to uid %d; remove it or chown it: %w", st.Uid, errdefs.ErrFailedPrecondition))
	case st.Mode&0o077 != 0:
		return fail(fmt.Errorf("others may read or write it (mode %04o); chmod 600 it: %w", st.Mode&0o7777, errdefs.ErrFailedPrecondition))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxContexts+1))
	if err == nil && len(b) > maxContexts {
		err = fmt.Errorf("it is longer than %d bytes: %w", maxContexts, errdefs.ErrInvalidArgument)
	}
	if err == nil {
		err = yaml.UnmarshalWithOptions(b, c, yaml.Strict())
		if syntax, ok := errors.AsType[yaml.Error](err); ok && syntax.GetToken() != nil {
			at := syntax.GetToken().Position
			err = fmt.Errorf("line %d, column %d: %s: %w", at.Line, at.Column, syntax.GetMessage(), errdefs.ErrInvalidArgument)
		}
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return fail(err)
	}
	return c, nil
}

func (c *contexts) check() error {
	for _, name := range c.names() {
		if !contextName().MatchString(name) {
			return fmt.Errorf("%q is no name of a context: %w", name, errdefs.ErrInvalidArgument)
		}
		to := c.Contexts[name]
		if to.Host == "" {
			return fmt.Errorf("the context %s has no host: %w", name, errdefs.ErrInvalidArgument)
		}
		for _, path := range []string{to.CAFile, to.TokenFile} {
			if path != "" && !filepath.IsAbs(path) {
				return fmt.Errorf("the context %s has the path %q, which must be absolute: %w", name, path, errdefs.ErrInvalidArgument)
			}
		}
	}
	if _, ok := c.Contexts[c.Current]; c.Current != "" && !ok {
		return fmt.Errorf("there is no context %q, which is in use; choose one with \"carrel context use\": %w",
			c.Current, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (c *contexts) names() []string { return slices.Sorted(maps.Keys(c.Contexts)) }

func (c *contexts) find(name string) (connectTo, error) {
	to, ok := c.Contexts[name]
	if !ok {
		return to, fmt.Errorf("cannot find the context %q: there is %s; add it with \"carrel context add %s --host HOST\": %w",
			name, cmp.Or(strings.Join(c.names(), ", "), "none"), name, errdefs.ErrNotFound)
	}
	return to, nil
}

// changeContexts changes the file, which nobody else does meanwhile.
func changeContexts(change func(*contexts) error) error {
	dir, err := paths.ConfigDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the directory of the contexts: %w", err)
	}
	lock, err := os.OpenFile(dir, os.O_RDONLY, 0)
	if err == nil {
		defer lock.Close()
		err = tryLock(lock)
	}
	if err != nil {
		return fmt.Errorf("cannot change the contexts in %s: %w; another carrel may be changing them: try again", dir, err)
	}
	c, err := readContexts()
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	text, err := yaml.Marshal(c)
	if err == nil {
		err = replaceFile(c.path, ".contexts-", func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		}, func() {})
	}
	if err != nil {
		return fmt.Errorf("cannot write the contexts to %s: %w", c.path, err)
	}
	return nil
}

// chosenContext is the context that a command uses, and why; "" for none. --host, --rootless and their
// variables name a carrel themselves, and a context has no part in that.
func (a *app) chosenContext() (name, why string, to connectTo, err error) {
	if a.context != "" && (a.host != "" || a.rootless) {
		return "", "", to, fmt.Errorf("cannot use --context together with --host or --rootless: leave one out: %w", errdefs.ErrInvalidArgument)
	}
	name, why = a.context, "--context names it"
	switch {
	case name != "":
	case a.host != "" || a.rootless || os.Getenv(carrel.HostEnv) != "" || os.Getenv(rootlessEnv) == "1":
		return "", "", to, nil
	default:
		name, why = os.Getenv(contextEnv), contextEnv+" names it"
	}
	if _, err := paths.ConfigDir(); err != nil && name == "" {
		return "", "", to, nil // a service without a home has no contexts
	}
	c, err := readContexts()
	if err != nil {
		return "", "", to, err
	}
	if name == "" {
		if name, why = c.Current, "it is in use"; name == "" {
			return "", "", to, nil
		}
	}
	to, err = c.find(name)
	return name, "the context " + name + ": " + why, to, err
}
