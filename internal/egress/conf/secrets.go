package conf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// variable is what is known of a variable that holds a secret.
type variable struct {
	// hosts are those that it is meant for.
	hosts []string
	// prefixes are public beginnings of its values, by which some programs tell what they were given. The first
	// that fits counts.
	prefixes []string
}

// variables are those whose hosts are known, as the services document them.
var variables = map[string]variable{
	"ANTHROPIC_API_KEY":    {[]string{"api.anthropic.com"}, []string{"sk-ant-api03-", "sk-ant-"}},
	"ANTHROPIC_AUTH_TOKEN": {[]string{"api.anthropic.com"}, []string{"sk-ant-oat01-", "sk-ant-"}},
	"COHERE_API_KEY":       {[]string{"api.cohere.com"}, nil},
	"DEEPSEEK_API_KEY":     {[]string{"api.deepseek.com"}, []string{"sk-"}},
	"GEMINI_API_KEY":       {[]string{"generativelanguage.googleapis.com"}, []string{"AIza"}},
	"GH_TOKEN":             {[]string{"api.github.com", "github.com", "uploads.github.com"}, []string{"github_pat_", "ghp_", "gho_", "ghs_"}},
	"GITHUB_TOKEN":         {[]string{"api.github.com", "github.com", "uploads.github.com"}, []string{"github_pat_", "ghp_", "gho_", "ghs_"}},
	"GITLAB_TOKEN":         {[]string{"gitlab.com"}, []string{"glpat-"}},
	"GOOGLE_API_KEY":       {[]string{"generativelanguage.googleapis.com"}, []string{"AIza"}},
	"GROQ_API_KEY":         {[]string{"api.groq.com"}, []string{"gsk_"}},
	"HF_TOKEN":             {[]string{"huggingface.co"}, []string{"hf_"}},
	"MISTRAL_API_KEY":      {[]string{"api.mistral.ai"}, nil},
	"OPENAI_API_KEY":       {[]string{"api.openai.com"}, []string{"sk-proj-", "sk-"}},
	"OPENROUTER_API_KEY":   {[]string{"openrouter.ai"}, []string{"sk-or-v1-", "sk-"}},
	"TOGETHER_API_KEY":     {[]string{"api.together.xyz"}, nil},
	"XAI_API_KEY":          {[]string{"api.x.ai"}, []string{"xai-"}},
}

// Variables are the names of variables whose hosts are known.
func Variables() []string { return slices.Sorted(maps.Keys(variables)) }

// Secret is what --secret asks for.
type Secret struct {
	// Name is that of the variable which holds it.
	Name string
	// Hosts are those that get it.
	Hosts []netrule.Rule
	// Inject is where it is put into each request, as httprule.ParseInject reads it; "" if a placeholder is replaced.
	Inject string
}

// ParseSecret reads NAME, for a variable whose hosts are known, or NAME@HOST[,HOST...], or NAME@HOST[,HOST...]=INJECT.
func (c *Config) ParseSecret(text string) (s Secret, err error) {
	name, hosts, given := strings.Cut(text, "@")
	bad := func(format string, a ...any) (Secret, error) {
		return Secret{}, fmt.Errorf("cannot use --secret %s: "+format+": %w", append(append([]any{name}, a...), errdefs.ErrInvalidArgument)...)
	}
	if !isVariable(name) { // it may be the secret itself, and is not shown
		return s, fmt.Errorf("cannot use --secret: its value is not the name of a variable; write NAME or NAME@HOST, "+
			"and never the secret itself: %w", errdefs.ErrInvalidArgument)
	}
	hosts, inject, injected := strings.Cut(hosts, "=")
	if injected { // it may be the secret itself, and is not shown
		i, err := httprule.ParseInject(inject)
		if err != nil {
			return s, fmt.Errorf("cannot use --secret %s: what stands behind = is not where the secret is put; write header:NAME, "+
				"'header:NAME: TEXT {}', query:NAME, basic:USER or basic, and never the secret itself: %w", name, errdefs.ErrInvalidArgument)
		}
		s.Inject = i.Text()
	}
	all := strings.Split(hosts, ",")
	if !given {
		v, known := variables[name]
		if !known {
			return bad("it is not known which host it is for; write %s@HOST", name)
		}
		all = v.hosts
	}
	s.Name = name
	for _, h := range all {
		r, err := secretHost(h)
		if err != nil {
			return bad("%v", err)
		}
		s.Hosts = append(s.Hosts, r)
	}
	return s, nil
}

// NewSecret returns the secret in a variable for hosts, each once; without any for those that are known for the
// variable.
func NewSecret(name string, hosts []string) (s Secret, err error) {
	if err := CheckSecretName(name); err != nil {
		return s, err
	}
	if len(hosts) == 0 {
		if hosts = variables[name].hosts; len(hosts) == 0 {
			return s, fmt.Errorf("cannot keep secret %s: it is not known which host it is for; name it with --host: %w", name,
				errdefs.ErrInvalidArgument)
		}
	}
	if len(hosts) > MaxSecretHosts {
		return s, fmt.Errorf("cannot keep secret %s: it is for %d hosts, and at most %d are taken; name fewer, as *.example.org for all below "+
			"one: %w", name, len(hosts), MaxSecretHosts, errdefs.ErrInvalidArgument)
	}
	s.Name = name
	for _, h := range hosts {
		r, err := secretHost(h)
		if err != nil {
			return s, fmt.Errorf("cannot keep secret %s: %w: %w", name, err, errdefs.ErrInvalidArgument)
		}
		if !slices.ContainsFunc(s.Hosts, func(o netrule.Rule) bool { return o.Text == r.Text }) {
			s.Hosts = append(s.Hosts, r)
		}
	}
	return s, nil
}

// Bounds of secrets that are kept.
const (
	MaxSecretName  = 64 // bytes
	MaxSecretHosts = 32
)

// CheckSecretName refuses what cannot be the name of a secret that is kept.
func CheckSecretName(name string) error {
	if isVariable(name) && len(name) <= MaxSecretName {
		return nil
	}
	// It may be the secret itself, and is not shown.
	return fmt.Errorf("cannot use the name of the secret: it is not that of a variable, of at most %d letters, digits and _; "+
		"give the variable that commands look for, as API_KEY, and never the secret itself: %w", MaxSecretName, errdefs.ErrInvalidArgument)
}

// secretHost reads the rule of a host that gets a secret.
func secretHost(text string) (netrule.Rule, error) {
	r, err := netrule.ParseRule(netrule.Allow, text)
	if err == nil && (r.Any || r.Net.IsValid() && !r.Net.IsSingleIP()) {
		err = fmt.Errorf("a secret is for hosts that are named, not for %s", text)
	}
	if err == nil && r.Narrow() {
		err = fmt.Errorf("a secret is for hosts, and %s has more; which requests get it is said with --method and --path", r.Text)
	}
	return r, err
}

func isVariable(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
	return name != "" && strings.Trim(name, letters+"0123456789") == "" && strings.Contains(letters, name[:1])
}

// Prefix is the part of a value that is public, "" for none.
func (s *Secret) Prefix(value string) string {
	for _, p := range variables[s.Name].prefixes {
		if strings.HasPrefix(value, p) {
			return p
		}
	}
	return ""
}
