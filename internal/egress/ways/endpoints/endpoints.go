// Package endpoints is what is told of the models that a workspace may use: to its programs, which variables they have;
// to carrel-egress, what it serves; to people and the record, what was used.
//
// It must not keep a key, and must not decide who may use a model or how much.
package endpoints

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// placeholders are what programs have as key. They begin as a key does, because some programs look at that.
var placeholders = map[string]string{
	conf.Anthropic: "sk-ant-api03-the-key-is-put-in-outside-of-this-workspace",
	conf.OpenAI:    "sk-the-key-is-put-in-outside-of-this-workspace",
}

// Variables are those by which programs find models. The first model of each API is theirs. The *_BASE are those of LiteLLM, and
// so of aider, the *_HOST of goose, and CODEX_API_KEY of codex exec.
func Variables(all []conf.Model) (env []string) {
	seen := map[string]bool{}
	for _, one := range all {
		if seen[one.API] {
			continue
		}
		seen[one.API] = true
		base, key := "http://"+one.Name+egress.ModelDomain, placeholders[one.API]
		switch one.API {
		case conf.Anthropic:
			env = append(env, "ANTHROPIC_BASE_URL="+base, "ANTHROPIC_API_BASE="+base, "ANTHROPIC_HOST="+base, "ANTHROPIC_API_KEY="+key)
		case conf.OpenAI:
			env = append(env, "OPENAI_BASE_URL="+base+"/v1", "OPENAI_API_BASE="+base+"/v1", "OPENAI_HOST="+base, "OPENAI_API_KEY="+key,
				"CODEX_API_KEY="+key)
		}
	}
	return env
}

// Sets reports whether the variables of these models are one with that name.
func Sets(all []conf.Model, name string) bool {
	for _, v := range Variables(all) {
		if strings.HasPrefix(v, name+"=") {
			return true
		}
	}
	return false
}

// Check refuses a model whose URL cannot be used. The error says why, without the model.
func Check(m conf.Model) error {
	if _, err := model.ParseUpstream(m.URL); err != nil {
		return fmt.Errorf("its URL is not https://HOST[:PORT][/PATH], nor http:// with an address of the loopback; correct it in "+
			"egress.yaml: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// IsKey reports whether a value can be the key of a model: it is sent in a header.
func IsKey(v redact.Value) bool {
	s := v.Reveal()
	return len(s) >= model.MinKey && len(s) <= model.MaxKey && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// Target is the host and port that requests to a model go to.
func Target(m conf.Model) (netrule.Target, error) {
	u, err := model.ParseUpstream(m.URL)
	if err != nil {
		return netrule.Target{}, err
	}
	return netrule.ParseTarget(model.Authority(u))
}

// Header is the header that has the key.
func Header(m conf.Model) string {
	if m.API == conf.Anthropic {
		return "X-Api-Key"
	}
	return "Authorization"
}

// Served is a model as carrel-egress is told.
func Served(m conf.Model, key redact.Value) egressapi.Model {
	return egressapi.Model{Name: m.Name, API: m.API, Upstream: m.URL, Key: egressapi.Private{Value: key}, KeepStreams: m.KeepStreams}
}

// Prices are those of all models, by Subject.
func Prices(all []conf.Model) budget.Prices {
	prices := budget.Prices{}
	for _, one := range all {
		for name, p := range one.Prices {
			prices[Subject(one.Name, name)] = p
		}
	}
	return prices
}

// Subject is what a model that a program names is counted as, "" for none: names of models are those of an endpoint.
func Subject(endpoint, name string) string {
	if name == "" {
		return ""
	}
	return endpoint + "/" + name
}

// Used is what a record of type usage, and a person, has of a model.
type Used struct {
	Endpoint string `json:"endpoint"`
	URL      string `json:"url"`
	budget.Sum
	// Estimated is how many requests have tokens that are in part estimated, Refused how many were not made.
	Estimated int64                 `json:"estimated,omitempty"`
	Refused   int64                 `json:"refused,omitempty"`
	Models    map[string]budget.Sum `json:"models,omitempty"`
	// Calls are the requests that had a body, in the order in which they ended. NotListed is how many more there were.
	Calls     []Call `json:"calls,omitempty"`
	NotListed int64  `json:"calls_not_listed,omitempty"`
}

// Call is a request to a model as the record has it: digests instead of the prompt and the answer.
type Call struct {
	Model string `json:"model,omitempty"`
	egressapi.Call
}

// Line is what a person is told.
func (x *Used) Line() string {
	text := fmt.Sprintf("%s: %s, %s", x.Endpoint, budget.Count(x.Requests, "request"), budget.Count(x.Tokens, "token"))
	if x.Money > 0 {
		text += ", " + x.Money.String()
	}
	if x.Estimated > 0 {
		text += "; the tokens of " + budget.Count(x.Estimated, "request") + " are estimated"
	}
	if x.Refused > 0 {
		text += "; " + budget.Count(x.Refused, "request") + " refused"
	}
	return text
}
