// Package linuxagent reads what LinuxAgent 4.1 is configured with, and writes it in carrel's forms: hosts, rules, runbooks and the model.
// For each setting it says what became of it.
//
// It must not write a file, reach a network or show a key: it gets and returns texts.
package linuxagent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/llm"
	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// MaxFile bounds each file that is read, in bytes.
const MaxFile = 4 << 20

// File is a text with a name.
type File struct {
	Name string
	Data []byte
}

// Source is what LinuxAgent was configured with.
type Source struct {
	// Config is its config.yaml, and Policy the rules that this names; nil if there are none.
	Config, Policy *File
	Runbooks       []File
}

// Note is what became of a setting.
type Note struct {
	// Setting is its name, as "cluster.hosts[0] web-1".
	Setting string `json:"setting"`
	// Taken: it is in one of the files.
	Taken bool `json:"taken"`
	// What says where it is, or why it was left and what there is instead.
	What string `json:"what"`
}

// Result is what was made of a Source.
type Result struct {
	// Files are hosts.yaml, policy.yaml, egress.yaml and runbooks/NAME.yaml, as far as there was anything for them.
	Files []File
	Notes []Note
	// Model and Endpoint are what "carrel ask" takes as --llm and --model; Key is the name of the secret, and Host where it goes, with its
	// port. They are "" without a model.
	Model, Endpoint, Key, Host string
}

func (r *Result) taken(setting, format string, args ...any) {
	r.Notes = append(r.Notes, Note{setting, true, fmt.Sprintf(format, args...)})
}

func (r *Result) left(setting, format string, args ...any) {
	r.Notes = append(r.Notes, Note{setting, false, fmt.Sprintf(format, args...)})
}

// add adds a file of a value.
func (r *Result) add(name, head string, value any) error {
	b, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	r.Files = append(r.Files, File{name, append([]byte("# "+head+"\n"), b...)})
	return nil
}

// config is the part of config.yaml that has a place in carrel.
type config struct {
	API struct {
		Provider string `yaml:"provider"`
		BaseURL  string `yaml:"base_url"`
		Model    string `yaml:"model"`
	} `yaml:"api"`
	Cluster struct {
		Hosts []host `yaml:"hosts"`
	} `yaml:"cluster"`
}

// PolicyPath is the path of the rules that a config.yaml names, "" if it names none.
func PolicyPath(c File) (string, error) {
	var x struct {
		Policy struct {
			Path string `yaml:"path"`
		} `yaml:"policy"`
	}
	return x.Policy.Path, read(c, &x)
}

func read(f File, v any) error {
	if len(f.Data) > MaxFile {
		return fmt.Errorf("cannot read %s: it has more than %d bytes: %w", f.Name, MaxFile, errdefs.ErrInvalidArgument)
	}
	if err := yaml.Unmarshal(f.Data, v); err != nil {
		return fmt.Errorf("cannot read %s: %s: %w", f.Name, strings.TrimSpace(yaml.FormatError(err, false, false)), errdefs.ErrInvalidArgument)
	}
	return nil
}

// Convert makes what it can of a source. Errors are of kind invalid argument: a file is of another form.
func Convert(s Source) (*Result, error) {
	r := &Result{}
	if s.Config != nil {
		var c config
		if err := read(*s.Config, &c); err != nil {
			return nil, err
		}
		var all map[string]any
		if err := read(*s.Config, &all); err != nil {
			return nil, err
		}
		if err := errors.Join(r.model(&c, all), r.hosts(c.Cluster.Hosts)); err != nil {
			return nil, err
		}
		r.others(all)
	}
	if s.Policy != nil {
		r.policy(*s.Policy)
	}
	return r, r.runbooks(s.Runbooks)
}

// model makes a model of egress.yaml.
func (r *Result) model(c *config, all map[string]any) error {
	if _, ok := all["api"]; !ok {
		return nil
	}
	provider := cmp.Or(c.API.Provider, "deepseek")
	row, err := llm.Provider(provider)
	if err != nil {
		r.left("api.provider", "there is no provider %.40q; name the model in egress.yaml yourself, see docs/egress.md", provider)
		return nil
	}
	at, err := url.Parse(cmp.Or(c.API.BaseURL, row.BaseURL))
	if err != nil || at.Host == "" {
		r.left("api.base_url", "%s needs one, as https://llm.example.org/v1", provider)
		return nil
	}
	r.Host = at.Host
	if at.Port() == "" && at.Scheme == "https" {
		r.Host += ":443"
	}
	api := "openai"
	if row.Wire == llm.Messages {
		api = "anthropic"
	}
	r.Endpoint = strings.ReplaceAll(row.Name, "_", "-")
	r.Key, r.Model = cmp.Or(row.KeyVariable, "LOCAL_LLM_KEY"), c.API.Model
	r.taken("api", "model %s in egress.yaml, for an administrator; ask it with --model %s --llm %s", r.Endpoint, r.Endpoint,
		cmp.Or(r.Model, "NAME"))
	if row.KeyVariable == "" {
		r.taken("api.base_url", "it is this machine's, so egress.yaml has a rule that allows it; any text of 8 bytes is a key")
	}
	egress := yaml.MapSlice{{Key: "models", Value: yaml.MapSlice{
		{Key: r.Endpoint, Value: yaml.MapSlice{{Key: "api", Value: api}, {Key: "url", Value: at.String()}, {Key: "key", Value: r.Key}}},
	}}}
	if at.Hostname() == "127.0.0.1" {
		egress = append(egress, yaml.MapItem{Key: "allow", Value: []string{r.Host}})
	}
	return r.add("egress.yaml", "For /etc/carrel/egress.yaml.", egress)
}

// host is one of cluster.hosts.
type host struct {
	Name     string `yaml:"name"`
	Hostname string `yaml:"hostname"`
	Port     int    `yaml:"port"`
	Username string `yaml:"username"`
	Key      string `yaml:"key_filename"`
	Profile  struct {
		Name        string   `yaml:"name"`
		Cwd         string   `yaml:"remote_cwd"`
		Environment string   `yaml:"environment"`
		Sudo        []string `yaml:"sudo_allowlist"`
	} `yaml:"remote_profile"`
}

// hosts makes hosts.yaml.
func (r *Result) hosts(all []host) error {
	var out yaml.MapSlice
	for i, h := range all {
		setting := fmt.Sprintf("cluster.hosts[%d] %s", i, h.Name)
		one := yaml.MapSlice{{Key: "address", Value: h.Hostname}}
		put := func(key string, v any) { one = append(one, yaml.MapItem{Key: key, Value: v}) }
		if h.Port != 0 {
			put("port", h.Port)
		}
		if h.Username != "" {
			put("user", h.Username)
		}
		if h.Key != "" {
			put("identity_files", []string{h.Key})
		}
		switch cwd := h.Profile.Cwd; {
		case strings.HasPrefix(cwd, "/"):
			put("remote_cwd", cwd)
		case cwd != "" && cwd != ".":
			r.left(setting+" remote_cwd", "%.200q is not absolute, which it has to be here; steps begin in the user's home", cwd)
		}
		base := "inherit"
		if h.Profile.Environment == "clean" {
			base = "clean"
		}
		put("env", yaml.MapSlice{{Key: "base", Value: base}})
		var sudo [][]string
		for _, s := range h.Profile.Sudo {
			if words := strings.Fields(s); len(words) > 0 && !strings.ContainsAny(s, `"'\*?[`) {
				sudo = append(sudo, words)
				continue
			}
			r.left(setting+" sudo_allowlist", "%.200q has quotes or patterns; write its words into hosts.yaml, as [[systemctl, restart]]", s)
		}
		if len(sudo) > 0 {
			put("sudo", sudo)
		}
		with := append(slices.Clone(out), yaml.MapItem{Key: h.Name, Value: one})
		b, err := yaml.Marshal(yaml.MapSlice{{Key: "hosts", Value: with}})
		if err == nil {
			_, err = fleet.ParseInventory("hosts.yaml", b)
		}
		if err != nil {
			r.left(setting, "%v", err)
			continue
		}
		out = with
		r.taken(setting, "hosts.yaml")
	}
	if len(out) == 0 {
		return nil
	}
	return r.add("hosts.yaml", "For hosts.yaml in carrel's configuration directory, or --hosts.", yaml.MapSlice{{Key: "hosts", Value: out}})
}

// policy takes rules as they are, if they can be read: the form is the same.
func (r *Result) policy(f File) {
	if len(f.Data) > MaxFile {
		r.left("policy.path", "it has more than %d bytes", MaxFile)
		return
	}
	if _, err := rules.New(rules.Config{Rules: &rules.Source{Name: f.Name, Data: f.Data}}); err != nil {
		r.left("policy.path", "%v", err)
		return
	}
	r.Files = append(r.Files, File{"policy.yaml", f.Data})
	r.taken("policy.path", "policy.yaml, as it is; see what it judges otherwise with \"carrel policy eval --policy policy.yaml\"")
}

// others says what became of the settings that are in no file.
func (r *Result) others(all map[string]any) {
	for _, section := range slices.Sorted(maps.Keys(all)) {
		members, ok := all[section].(map[string]any)
		if !ok {
			if _, known := instead[section]; !known || all[section] != nil {
				r.left(section, "%s", cmp.Or(instead[section], unknown))
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			setting := section + "." + name
			switch what, ok := instead[setting]; {
			case ok && what == "":
			case ok:
				r.left(setting, "%s", what)
			default:
				r.left(setting, "%s", cmp.Or(instead[section], unknown))
			}
		}
	}
}

const unknown = "LinuxAgent 4.1 has no such setting"

// instead says of settings that are in no file what there is instead. "" are those of which something else is said.
var instead = map[string]string{
	"api.provider": "", "api.base_url": "", "api.model": "", "cluster.hosts": "", "policy.path": "",
	"api.api_key": "a key is a secret and was not copied; store it with \"carrel secret set\", where no program of a workspace has it",
	"api":         "carrel has bounds of its own for time, tries and answers of models (docs/agent.md)",

	"policy.include_builtin": "carrel's own rules always hold, beside yours",
	"policy":                 unknown,

	"security.command_timeout":           "a step says its own time, and has 5 minutes otherwise",
	"security.session_whitelist_enabled": "an answer can be for a thread, for exactly the same command (docs/policy/approvals.md)",
	"security":                           "carrel has bounds of its own (docs/agent.md#limits)",

	"command_plan": "failed plans are repaired twice at most",

	"file_patch.allow_roots": "give --files DIR to carrel ask and chat, once for each; without it files below the current directory change",
	"file_patch":             "what says who may log in and what runs is always marked, and patches are repaired twice at most",

	"sandbox": "commands that only read run on this machine without the right to change anything, whatever is set; others run as you",

	"cluster.batch_confirm_threshold": "from two hosts on a person is always asked",
	"cluster.known_hosts_path":        "set UserKnownHostsFile in ~/.ssh/config, which is honoured",
	"cluster":                         "a step says its own time",

	"audit": "carrel has a record of its own, with a chain and checkpoints; audit.anchor is what a sink was for (docs/operations.md)",

	"ui":           "the terminal says what it can, and NO_COLOR is honoured; conversations are tasks of the agent's workspace",
	"logging":      "the daemon's log is set in carreld.yaml",
	"telemetry":    "metrics are Prometheus counters of the daemon",
	"analytics":    "there is nothing of it",
	"monitoring":   "thresholds of this machine are set in ~/.config/carrel/agent.yaml (docs/agent.md#thresholds)",
	"log_analysis": "the tools search_logs and journal read logs, within their bounds",
	"intelligence": "there are no embeddings and no recommendations",
}
