package llm_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

func TestCost(t *testing.T) {
	const unit = llm.Money(1_000_000_000)
	p := llm.Prices{Input: 3 * unit, Output: 15 * unit, Cached: 3 * unit / 10, CacheWrite: 15 * unit / 4}
	for _, c := range []struct {
		u    llm.Usage
		want llm.Money
	}{
		{llm.Usage{}, 0},
		{llm.Usage{Input: 1_000_000}, 3 * unit},
		{llm.Usage{Input: 1000, Output: 1000, Cached: 1000, CacheWrite: 1000}, 22_050_000},
		{llm.Usage{Input: 1}, 3000},
		{llm.Usage{Input: -5, Output: -5}, 0},
		{llm.Usage{Output: math.MaxInt64}, math.MaxInt64},
		{llm.Usage{Input: math.MaxInt64 / 3000, Output: math.MaxInt64 / 15_000}, math.MaxInt64},
	} {
		if got := p.Cost(c.u); got != c.want {
			t.Errorf("%+v: %d, want %d", c.u, got, c.want)
		}
	}
	if got := (llm.Prices{Input: 1}).Cost(llm.Usage{Input: 1}); got != 1 {
		t.Errorf("a part of a billionth is %d", got)
	}
	if got := (llm.Prices{Input: -unit}).Cost(llm.Usage{Input: 1_000_000}); got != 0 {
		t.Errorf("a negative price gives %d", got)
	}
}

// The cost is what exact arithmetic says, each kind rounded up, and never wraps around.
func TestCostExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64)
		u := llm.Usage{Input: n.Draw(t, "input"), Output: n.Draw(t, "output")}
		p := llm.Prices{Input: llm.Money(n.Draw(t, "price in")), Output: llm.Money(n.Draw(t, "price out"))}
		want, million := new(big.Int), big.NewInt(1_000_000)
		for _, x := range [][2]int64{{u.Input, int64(p.Input)}, {u.Output, int64(p.Output)}} {
			y := new(big.Int).Mul(big.NewInt(x[0]), big.NewInt(x[1]))
			want.Add(want, y.Add(y, big.NewInt(999_999)).Div(y, million))
		}
		if most := big.NewInt(math.MaxInt64); want.Cmp(most) > 0 {
			want = most
		}
		if got := p.Cost(u); got != llm.Money(want.Int64()) {
			t.Fatalf("%d, want %s", got, want)
		}
	})
}

// Tokens are counted once, however a provider divides them, and numbers that cannot be are not believed.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		wire  llm.Wire
		usage string
		want  llm.Usage
	}{
		{
			llm.Chat, `{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30}}`,
			llm.Usage{Input: 10, Output: 7, Cached: 60, CacheWrite: 30},
		},
		{
			llm.Chat, `{"prompt_tokens":100,"completion_tokens":7,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":36}`,
			llm.Usage{Input: 36, Output: 7, Cached: 64},
		},
		{llm.Chat, `{"prompt_tokens":100,"completion_tokens":7,"cached_tokens":64}`, llm.Usage{Input: 36, Output: 7, Cached: 64}},
		{llm.Chat, `{"prompt_tokens":10.0,"completion_tokens":7,"prompt_tokens_details":null}`, llm.Usage{Input: 10, Output: 7}},
		{
			llm.Chat, `{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":99,"cache_write_tokens":99}}`,
			llm.Usage{Cached: 10, Output: 7},
		},
		{llm.Chat, `{"prompt_tokens":-1,"completion_tokens":1e300}`, llm.Usage{Estimated: true}},
		{llm.Chat, `{"prompt_tokens":10,"completion_tokens":null}`, llm.Usage{Input: 10, Estimated: true}},
		{llm.Chat, `null`, llm.Usage{Estimated: true}},
		{llm.Chat, `{"prompt_tokens":0,"completion_tokens":7}`, llm.Usage{Estimated: true}},
		{llm.Chat, `{"prompt_tokens":7,"completion_tokens":0}`, llm.Usage{Input: 7, Estimated: true}},
		{
			llm.Responses, `{"input_tokens":100,"output_tokens":7,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":0}}`,
			llm.Usage{Input: 40, Output: 7, Cached: 60},
		},
		{llm.Messages, `{"output_tokens":7}`, llm.Usage{Input: 3, Output: 7, Cached: 4, CacheWrite: 5}},
		{
			llm.Messages, `{"input_tokens":30,"cache_read_input_tokens":null,"output_tokens":7}`,
			llm.Usage{Input: 30, Output: 7, Cached: 4, CacheWrite: 5},
		},
		{llm.Messages, `{}`, llm.Usage{Input: 3, Cached: 4, CacheWrite: 5, Estimated: true}},
	} {
		text := map[llm.Wire]string{
			llm.Chat: data(yes, `{"choices":[],"usage":`+c.usage+`}`, "[DONE]"),
			llm.Responses: data(`{"type":"response.output_text.delta","output_index":0,"delta":"yes"}`,
				`{"type":"response.completed","response":{"usage":`+c.usage+`}}`),
			llm.Messages: data(
				`{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,`+
					`"cache_creation_input_tokens":5,"output_tokens":1}}}`,
				`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":`+c.usage+`}`, `{"type":"message_stop"}`),
		}[c.wire]
		one := client(t, llm.Config{Provider: llm.Row{Wire: c.wire}, Transport: tripper(func(*http.Request) (*reply, error) {
			return answered(strings.NewReader(text)), nil
		})})
		a, err := one.Stream(t.Context(), hello(), nil)
		if err != nil {
			t.Errorf("%s: %v", c.usage, err)
		}
		got := a.Usage
		if c.want.Estimated { // rather too high
			if got.Input < c.want.Input || got.Input == 0 || got.Output == 0 || !got.Estimated {
				t.Errorf("%s %s: %+v", c.wire, c.usage, got)
			}
			continue
		}
		if got != c.want || got.Tokens() != c.want.Input+c.want.Output+c.want.Cached+c.want.CacheWrite {
			t.Errorf("%s %s: %+v, want %+v", c.wire, c.usage, got, c.want)
		}
	}
}

func TestBudget(t *testing.T) {
	failed := errors.New("it failed")
	spend := func(b *llm.Budget, tokens int64, result error) (made bool, err error) {
		err = b.Spend(func() (llm.Usage, error) {
			made = true
			return llm.Usage{Input: tokens - 1, Output: 1}, result
		})
		return made, err
	}
	b := &llm.Budget{Tokens: 100, Requests: 3}
	for i, c := range []struct {
		tokens int64
		fails  error
		made   bool
		says   string
	}{
		{40, nil, true, ""}, {50, failed, true, "it failed"}, {500, nil, true, ""}, {1, nil, false, "3 of 3 requests"},
	} {
		made, err := spend(b, c.tokens, c.fails)
		if made != c.made || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) ||
			!made && !errdefs.IsResourceExhausted(err) {
			t.Errorf("request %d: %t, %v", i+1, made, err)
		}
	}
	if tokens, requests := b.Used(); tokens != 590 || requests != 3 {
		t.Errorf("%d tokens, %d requests", tokens, requests)
	}
	b = &llm.Budget{Tokens: 100}
	if made, err := spend(b, 100, nil); !made || err != nil {
		t.Errorf("%t, %v", made, err)
	}
	if made, err := spend(b, 1, nil); made || !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "100 of 100 tokens") {
		t.Errorf("%t, %v", made, err)
	}
	for range 100 {
		if made, err := spend(&llm.Budget{}, math.MaxInt64, nil); !made || err != nil {
			t.Fatalf("without limits: %t, %v", made, err)
		}
	}
	if made, err := spend(&llm.Budget{Tokens: -1}, 1, nil); made || !errdefs.IsInvalidArgument(err) {
		t.Errorf("a negative budget: %t, %v", made, err)
	}
}

// However many ask at once, no more requests are made than there may be.
func TestBudgetAtOnce(t *testing.T) {
	b := &llm.Budget{Requests: 7}
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 50 {
		all.Go(func() {
			_ = b.Spend(func() (llm.Usage, error) {
				mu.Lock()
				defer mu.Unlock()
				made++
				return llm.Usage{Output: 1}, nil
			})
		})
	}
	all.Wait()
	if tokens, requests := b.Used(); made != 7 || tokens != 7 || requests != 7 {
		t.Errorf("%d made, %d tokens, %d requests", made, tokens, requests)
	}
}

func TestProviders(t *testing.T) {
	names := llm.Providers()
	if len(names) != 16 || !slices.IsSorted(names) {
		t.Errorf("%d: %q", len(names), names)
	}
	withoutURL := map[string]bool{"openai_compatible": true, "anthropic_compatible": true}
	for _, name := range names {
		row, err := llm.Provider(name)
		if err != nil || row.Name != name {
			t.Errorf("%s: %+v, %v", name, row, err)
		}
		_, err = llm.New(llm.Config{Provider: row})
		if withoutURL[name] != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		_, err = llm.New(llm.Config{Provider: row, BaseURL: "http://127.0.0.1:1/x"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		local := strings.HasPrefix(row.BaseURL, "http://127.0.0.1:")
		if local != (row.KeyVariable == "") || !local && row.BaseURL != "" && !strings.HasPrefix(row.BaseURL, "https://") {
			t.Errorf("%s: %+v", name, row)
		}
		sent, err := llm.Encode(llm.Config{Provider: row}, llm.Request{Model: "m", Messages: hello().Messages, MaxTokens: 77})
		if err != nil || strings.Count(sent, ":77") != 1 || !strings.Contains(sent, fmt.Sprintf(`"%s":77`, row.MaxTokens)) {
			t.Errorf("%s: %s, %v", name, sent, err)
		}
	}
	for other, name := range map[string]string{
		"moonshot": "kimi", "zhipu": "glm", "lm-studio": "lmstudio", "openai-compatible": "openai_compatible", "xiaomi-mimo": "xiaomi_mimo",
		"local-openai": "local", "tencent-hunyuan": "hunyuan", "dashscope": "qwen", "tongyi": "qwen", "mimo": "xiaomi_mimo",
	} {
		if row, err := llm.Provider(other); err != nil || row.Name != name {
			t.Errorf("%s: %s, %v", other, row.Name, err)
		}
	}
	for _, name := range []string{"", "openia", "OpenAI ", "\x1b[2J"} {
		_, err := llm.Provider(name)
		if !errdefs.IsNotFound(err) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", name, err)
			continue
		}
		for _, one := range names {
			if !strings.Contains(err.Error(), one) {
				t.Errorf("%q: %v does not name %s", name, err, one)
			}
		}
	}
}
