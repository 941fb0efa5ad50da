package conf_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/spec/budget"
)

func TestModels(t *testing.T) {
	c, err := conf.Parse("f", []byte(`
models:
  anthropic:
    budget: {requests: 10, tokens: 5_000, money: 2.50}
    prices:
      claude-*: {input: 3, output: "15", cached_input: 0.30}
  local:
    api: openai
    url: https://llm.example:8443/v1
    key: LOCAL_KEY
    keep_streams: true
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]conf.Model{
		"anthropic": {
			Name: "anthropic", API: conf.Anthropic, URL: "https://api.anthropic.com", Key: "ANTHROPIC_API_KEY",
			Limits: budget.Limits{Period: budget.Day, Requests: 10, Tokens: 5000, Money: 2_500_000_000},
			// What is written to a cache has no price of its own.
			Prices: budget.Prices{"claude-*": {Input: 3e9, Output: 15e9, CachedInput: 3e8, CacheWrite: 3e9}},
		},
		"openai": {Name: "openai", API: conf.OpenAI, URL: "https://api.openai.com/v1", Key: "OPENAI_API_KEY"},
		"local": {
			Name: "local", API: conf.OpenAI, URL: "https://llm.example:8443/v1", Key: "LOCAL_KEY", KeepStreams: true,
			Limits: budget.Limits{Period: budget.Day}, Prices: budget.Prices{},
		},
	} {
		got, err := c.Model(name)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
	if _, err := c.Model("gpt"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "use anthropic, local, openai") {
		t.Errorf("%v", err)
	}
	if _, err := conf.Default().Model("openai"); err != nil {
		t.Error(err)
	}
	if !slices.Equal(conf.BuiltInModels(), []string{"anthropic", "openai"}) {
		t.Error(conf.BuiltInModels())
	}
}

// What is wrong is told with the model's name, and without what may be a key.
func TestModelsThatAreWrong(t *testing.T) {
	const key = "sk-ant-api03-real"
	for text, want := range map[string]string{
		"a.b: {api: openai, url: https://x.example, key: K}":                          "not a name",
		"A: {api: openai, url: https://x.example, key: K}":                            "not a name",
		"x: {api: gemini, url: https://x.example, key: K}":                            "no API",
		"x: {url: https://x.example, key: K}":                                         "no API",
		"x: {api: openai, key: K}":                                                    "write url",
		"x: {api: openai, url: https://x.example}":                                    "not the name of a variable",
		"openai: {key: " + key + "}":                                                  "not the name of a variable",
		"openai: {budget: {tokens: -1}}":                                              "negative",
		"openai: {budget: {tokens: 0}}":                                               "a limit of 0",
		"openai: {budget: {requests: 0, tokens: 5}}":                                  "a limit of 0",
		"openai: {}\nmodel_budgets: {everybody: {requests: 0}}":                       "a limit of 0",
		"openai: {prices: {\"*\": {input: 1, output: 1}}, budget: {money: \"0.00\"}}": "a limit of 0",
		"openai: {budget: {money: -1}}":                                               "amount of money",
		"openai: {budget: {money: 1.5}}":                                              "add prices",
		"openai: {budget: {days: 1}}":                                                 "unknown field",
		"openai: {prices: {x: {input: 1}}}":                                           "write input and output",
		"openai: {prices: {x: {input: 1, output: 1e3}}}":                              "amount of money",
		"openai: {prices: {x: {in: 1}}}":                                              "use input, output",
		"openai: {keys: X}":                                                           "unknown field",
		"openai: {secret: " + key + "}":                                               "not the name of one",
		"openai: {for: [\"uid:1\"]}":                                                  "add secret: NAME",
		"openai: {secret: S, for: [root]}":                                            "no owner",
		"openai: {secret: S, for: [\"uid:01\"]}":                                      "no owner",
		"openai: {budget: {per: week}}":                                               "use day or whole",
		"openai: {}\nmodel_budgets: {root: {}}":                                       "write uid:1000 or everybody",
		"openai: {}\nmodel_budgets: {everybody: {per: x}}":                            "use day or whole",
		"x: {api: openai, url: \"https://x.example\", key: K}\nmodel_budgets: {everybody: {money: 1}}": "add prices",
	} {
		_, err := conf.Parse("f", []byte("models:\n  "+text+"\n"))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A host's file says who may use its keys, and how much each user may use.
func TestModelsOfAHost(t *testing.T) {
	c, err := conf.Parse("f", []byte(`models:
  openai: {secret: S, for: ["uid:1000"], budget: {tokens: 7, per: whole}}
  anthropic: {secret: S}
model_budgets: {everybody: {requests: 5}, "uid:1000": {tokens: 9, per: whole}, "uid:0": {}}
`))
	if err != nil {
		t.Fatal(err)
	}
	narrow, wide := c.Models["openai"], c.Models["anthropic"]
	for owner, want := range map[string][2]bool{"uid:1000": {true, true}, "uid:1001": {false, true}, "uid:0": {true, true}} {
		if got := [2]bool{narrow.SharedWith(owner), wide.SharedWith(owner)}; got != want {
			t.Errorf("%s: %v", owner, got)
		}
	}
	if narrow.Limits != (budget.Limits{Period: budget.Whole, Tokens: 7}) {
		t.Errorf("%+v", narrow.Limits)
	}
	for owner, want := range map[string]budget.Limits{
		"uid:1000": {Period: budget.Whole, Tokens: 9}, "uid:1001": {Period: budget.Day, Requests: 5}, "uid:0": {Period: budget.Day},
	} {
		if got := c.BudgetOf(owner); got != want {
			t.Errorf("%s: %+v", owner, got)
		}
	}
	own := conf.Default()
	if l := own.BudgetOf("uid:1000"); l != (budget.Limits{Period: budget.Day}) {
		t.Errorf("%+v", l)
	}
	if m, err := own.Model("openai"); err != nil || m.SharedWith("uid:0") {
		t.Errorf("%+v, %v", m, err)
	}
}
