package llm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Wire is the form of requests and answers.
type Wire string

// The wires, and where they are described.
const (
	// Chat is OpenAI's chat completions, which most others speak too: https://platform.openai.com/docs/api-reference/chat
	Chat Wire = "chat"
	// Responses is https://platform.openai.com/docs/api-reference/responses
	Responses Wire = "responses"
	// Messages is Anthropic's: https://docs.anthropic.com/en/api/messages
	Messages Wire = "messages"
)

// Structured is how a provider is asked to follow Request.Schema.
type Structured string

// The ways.
const (
	// BySchema: the provider holds the model to the schema (response_format and text.format json_schema, output_config).
	BySchema Structured = "json_schema"
	// ByObject: the schema is added to the system prompt, and the provider holds the model to JSON where its wire has a word
	// for that (response_format and text.format json_object).
	ByObject Structured = "json_object"
)

// The names of the parameter that bounds an answer in tokens. On the wire Responses it is always max_output_tokens, on
// Messages max_tokens.
const (
	MaxTokensParameter     = "max_tokens"
	MaxCompletionParameter = "max_completion_tokens"
	MaxOutputParameter     = "max_output_tokens"
)

// Row is what is known of a provider.
type Row struct {
	Name string
	// BaseURL is where its API is, as a program would have it in OPENAI_BASE_URL or ANTHROPIC_BASE_URL; "" if the user says.
	BaseURL string
	Wire    Wire
	// MaxTokens is the name of the parameter for Request.MaxTokens.
	MaxTokens string
	// KeyVariable is the environment variable that usually holds its key; "" for servers on this host, which need none.
	KeyVariable string
	// Structured is "" for BySchema.
	Structured Structured
	// CacheKey: it takes prompt_cache_key. Others may refuse a parameter that they do not know.
	CacheKey bool
}

const (
	openAIKey    = "OPENAI_API_KEY"
	anthropicKey = "ANTHROPIC_API_KEY"
	local        = "http://127.0.0.1:8000/v1"
)

// rows has the sixteen names of LinuxAgent 4.1.0 with the URLs of its configuration and manual, in its order. Names of
// variables are those that the providers' own manuals use. There are two differences: openai uses the wire Responses, which
// keeps a model's reasoning between tool calls (openai_compatible uses Chat), and deepseek has max_tokens as in its reference.
var rows = []Row{
	{
		Name: "openai", BaseURL: "https://api.openai.com/v1", Wire: Responses, MaxTokens: MaxOutputParameter, KeyVariable: openAIKey,
		CacheKey: true,
	},
	{Name: "openai_compatible", Wire: Chat, MaxTokens: MaxCompletionParameter, KeyVariable: openAIKey},
	{Name: "local", BaseURL: local, Wire: Chat, MaxTokens: MaxTokensParameter},
	{Name: "ollama", BaseURL: "http://127.0.0.1:11434/v1", Wire: Chat, MaxTokens: MaxTokensParameter},
	{Name: "vllm", BaseURL: local, Wire: Chat, MaxTokens: MaxTokensParameter},
	{Name: "lmstudio", BaseURL: "http://127.0.0.1:1234/v1", Wire: Chat, MaxTokens: MaxTokensParameter},
	{
		Name: "deepseek", BaseURL: "https://api.deepseek.com/v1", Wire: Chat, MaxTokens: MaxTokensParameter, KeyVariable: "DEEPSEEK_API_KEY",
		Structured: ByObject,
	},
	{
		Name: "glm", BaseURL: "https://open.bigmodel.cn/api/paas/v4", Wire: Chat, MaxTokens: MaxTokensParameter, KeyVariable: "ZHIPUAI_API_KEY",
		Structured: ByObject,
	},
	{
		Name: "qwen", BaseURL: "https://dashscope.aliyuncs.com/compatible-mode/v1", Wire: Chat, MaxTokens: MaxTokensParameter,
		KeyVariable: "DASHSCOPE_API_KEY", Structured: ByObject,
	},
	{
		Name: "kimi", BaseURL: "https://api.moonshot.ai/v1", Wire: Chat, MaxTokens: MaxTokensParameter, KeyVariable: "MOONSHOT_API_KEY",
		Structured: ByObject,
	},
	{Name: "minimax", BaseURL: "https://api.minimax.io/v1", Wire: Chat, MaxTokens: MaxTokensParameter, KeyVariable: "MINIMAX_API_KEY"},
	{
		Name: "gemini", BaseURL: "https://generativelanguage.googleapis.com/v1beta/openai/", Wire: Chat, MaxTokens: MaxTokensParameter,
		KeyVariable: "GEMINI_API_KEY",
	},
	{
		Name: "hunyuan", BaseURL: "https://api.hunyuan.cloud.tencent.com/v1", Wire: Chat, MaxTokens: MaxTokensParameter,
		KeyVariable: "HUNYUAN_API_KEY", Structured: ByObject,
	},
	{Name: "anthropic", BaseURL: "https://api.anthropic.com", Wire: Messages, MaxTokens: MaxTokensParameter, KeyVariable: anthropicKey},
	{Name: "anthropic_compatible", Wire: Messages, MaxTokens: MaxTokensParameter, KeyVariable: anthropicKey, Structured: ByObject},
	{
		Name: "xiaomi_mimo", BaseURL: "https://api.xiaomimimo.com/anthropic", Wire: Messages, MaxTokens: MaxTokensParameter,
		KeyVariable: "MIMO_API_KEY", Structured: ByObject,
	},
}

// aliases are other names that LinuxAgent's configuration takes. "-" and "_" are the same in all of them.
var aliases = map[string]string{
	"local_openai": "local", "lm_studio": "lmstudio", "moonshot": "kimi", "zhipu": "glm", "tongyi": "qwen", "dashscope": "qwen",
	"tencent_hunyuan": "hunyuan", "mimo": "xiaomi_mimo", "xiaomi": "xiaomi_mimo",
}

// Provider returns the row of a provider. Names are in lower case; "-" stands for "_". The error of an unknown name lists
// those there are, and is of kind not found.
func Provider(name string) (Row, error) {
	plain := strings.ReplaceAll(name, "-", "_")
	if other, ok := aliases[plain]; ok {
		plain = other
	}
	if i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == plain }); i >= 0 {
		return rows[i], nil
	}
	return Row{}, fmt.Errorf("cannot find the provider %.40q: there is none of that name; use one of %s; "+
		"openai_compatible with a base URL is for others: %w",
		name, strings.Join(Providers(), ", "), errdefs.ErrNotFound)
}

// Providers returns the names of all providers, sorted.
func Providers() (names []string) {
	for _, r := range rows {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}
