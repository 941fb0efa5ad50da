package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/agent/linuxagent"
)

func (a *app) agentImportCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "import",
		Short:   "Take over the configuration of another agent",
		Long:    `Write what another operator's agent is configured with as files in carrel's forms.`,
		Example: "  carrel agent import linuxagent",
	}, a.importLinuxAgentCommand())
}

func (a *app) importLinuxAgentCommand() *cobra.Command {
	var config, dir, to string
	c := &cobra.Command{
		Use:   "linuxagent [flags]",
		Short: "Take over the hosts, rules, runbooks and model of LinuxAgent",
		Long: `Read the configuration of LinuxAgent 4.1, and write what there is a place for into a new
directory: hosts.yaml for --hosts, policy.yaml, runbooks, and the model for an administrator's
egress.yaml. A line for each setting says where it is, or why it was left and what there is
instead. Keys are not copied. Nothing of carrel is changed, and no daemon is needed.

Without --config it is $LINUXAGENT_CONFIG, config.yaml here, or
~/.config/linuxagent/config.yaml, the first that there is.`,
		Example: `  carrel agent import linuxagent
  carrel agent import linuxagent --config ~/la.yaml --runbooks ~/books --to la`,
		Args: exactly(),
	}
	f := c.Flags()
	f.StringVar(&config, "config", "", "LinuxAgent's config.yaml")
	f.StringVar(&dir, "runbooks", "", "a directory of LinuxAgent's runbooks; its own ones are not worth taking, as carrel brings such")
	f.StringVar(&to, "to", "carrel-import", "the directory to make")
	_ = c.MarkFlagFilename("config", "yaml") // the flags are there
	_ = c.MarkFlagDirname("runbooks")
	_ = c.MarkFlagDirname("to")
	return a.prints(c, func(*cobra.Command, []string) (any, printer, error) {
		source, err := linuxAgentSource(config, dir)
		if err != nil {
			return nil, nil, err
		}
		r, err := linuxagent.Convert(source)
		if err != nil {
			return nil, nil, err
		}
		if err := writeNew(to, r.Files); err != nil {
			return nil, nil, err
		}
		return object{{"directory", to}, {"notes", r.Notes}}, importText(to, r), nil
	})
}

// linuxAgentSource reads the files of a LinuxAgent.
func linuxAgentSource(config, dir string) (s linuxagent.Source, err error) {
	if config == "" {
		config = foundConfig()
	}
	if config == "" && dir == "" {
		return s, fmt.Errorf("cannot find a configuration of LinuxAgent: there is no $LINUXAGENT_CONFIG, no config.yaml here and none in "+
			"~/.config/linuxagent; name it with --config: %w", errdefs.ErrNotFound)
	}
	if config != "" {
		if s.Config, err = fileOf(config); err != nil {
			return s, err
		}
		path, err := linuxagent.PolicyPath(*s.Config)
		if err != nil {
			return s, err
		}
		if path != "" {
			if s.Policy, err = fileOf(expandHome(path)); err != nil {
				return s, err
			}
		}
	}
	if dir == "" {
		return s, nil
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return s, fmt.Errorf("cannot read the runbooks: %w", err)
	}
	for _, e := range files {
		if !strings.HasSuffix(e.Name(), ".yaml") && !strings.HasSuffix(e.Name(), ".yml") {
			continue
		}
		f, err := fileOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return s, err
		}
		f.Name = e.Name()
		s.Runbooks = append(s.Runbooks, *f)
	}
	return s, nil
}

// foundConfig is where LinuxAgent looks for its configuration, "" if there is none.
func foundConfig() string {
	if path := os.Getenv("LINUXAGENT_CONFIG"); path != "" {
		return expandHome(path)
	}
	for _, path := range []string{"config.yaml", expandHome("~/.config/linuxagent/config.yaml")} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// expandHome is a path with the caller's home for its first ~.
func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	home, err := os.UserHomeDir()
	if !ok || err != nil {
		return path
	}
	return filepath.Join(home, rest)
}

// fileOf reads a file, no further than it may be long.
func fileOf(path string) (*linuxagent.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read LinuxAgent's configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, linuxagent.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read LinuxAgent's configuration: %w", err)
	}
	return &linuxagent.File{Name: path, Data: b}, nil
}

// writeNew writes files into a directory that is made for them.
func writeNew(dir string, files []linuxagent.File) error {
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot write into %s: it is there; name a new directory with --to: %w", dir, errdefs.ErrAlreadyExists)
	} else if err != nil {
		return fmt.Errorf("cannot make a directory for what is taken over: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, f.Data, 0o600)
		}
		if err != nil {
			return fmt.Errorf("cannot write what is taken over: %w", err)
		}
	}
	return nil
}

// importText is what became of a configuration.
func importText(dir string, r *linuxagent.Result) printer {
	var out []string
	for _, taken := range []bool{true, false} {
		head := map[bool]string{true: "taken over:", false: "left:"}[taken]
		for _, n := range r.Notes {
			if n.Taken != taken {
				continue
			}
			if head != "" {
				out, head = append(out, head), ""
			}
			out = append(out, "  "+printable(n.Setting)+": "+printable(n.What))
		}
	}
	out = append(out, fmt.Sprintf("%s written into %s", counted(int64(len(r.Files)), "file"), dir))
	if r.Endpoint != "" {
		hosts := ""
		if slices.ContainsFunc(r.Files, func(f linuxagent.File) bool { return f.Name == "hosts.yaml" }) {
			hosts = " --hosts " + dir + "/hosts.yaml"
		}
		out = append(out, "", "next, once an administrator has put the model into /etc/carrel/egress.yaml:",
			fmt.Sprintf("  carrel secret set %s --host %s <FILE", r.Key, r.Host),
			fmt.Sprintf("  carrel ask --model %s --llm %s%s \"how is it?\"", r.Endpoint, cmp.Or(r.Model, "NAME"), hosts))
	}
	return lines(out)
}
