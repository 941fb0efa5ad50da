package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// chatWire is the wire Chat. A stream has chunks, each with a delta of choices[0]. A tool call comes in pieces that have the
// same index; its id and name are in the first. finish_reason says why the model stopped. Usage comes in a chunk
// without choices, as include_usage asks for. "[DONE]" is the end.
type chatWire struct{}

var _ wire = chatWire{}

func (chatWire) path() string { return "/chat/completions" }

type chatFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatCalled struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type chatCallSent struct {
	ID       string     `json:"id"`
	Type     string     `json:"type"`
	Function chatCalled `json:"function"`
	// Extra is what Gemini has with a call, and wants back.
	Extra json.RawMessage `json:"extra_content,omitempty"`
}

type chatMessage struct {
	Role    string         `json:"role"`
	Content *string        `json:"content"`
	Thought *string        `json:"reasoning_content,omitempty"`
	Calls   []chatCallSent `json:"tool_calls,omitempty"`
	CallID  string         `json:"tool_call_id,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatSchema struct {
	Name   string          `json:"name"`
	Strict bool            `json:"strict"`
	Schema json.RawMessage `json:"schema"`
}

type chatFormat struct {
	Type   string      `json:"type"`
	Schema *chatSchema `json:"json_schema,omitempty"`
}

type chatRequest struct {
	Model         string         `json:"model"`
	Messages      []chatMessage  `json:"messages"`
	Tools         []chatTool     `json:"tools,omitempty"`
	Format        *chatFormat    `json:"response_format,omitempty"`
	MaxTokens     int            `json:"max_tokens,omitempty"`
	MaxCompletion int            `json:"max_completion_tokens,omitempty"`
	CacheKey      string         `json:"prompt_cache_key,omitempty"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
}

func (chatWire) encode(c *Config, r *Request) ([]byte, error) {
	row := &c.Provider
	out := chatRequest{Model: r.Model, Stream: true}
	if !c.NoStreamOptions {
		out.StreamOptions = &streamOptions{true}
	}
	if row.CacheKey {
		out.CacheKey = r.CacheKey
	}
	if row.MaxTokens == MaxCompletionParameter {
		out.MaxCompletion = r.MaxTokens
	} else {
		out.MaxTokens = r.MaxTokens
	}
	switch {
	case r.Object, r.Schema != nil && row.Structured == ByObject:
		out.Format = &chatFormat{Type: string(ByObject)}
	case r.Schema != nil:
		out.Format = &chatFormat{Type: string(BySchema), Schema: &chatSchema{r.Schema.Name, true, r.Schema.JSON}}
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, chatTool{"function", chatFunction{t.Name, t.Description, t.Schema}})
	}
	if system := r.prompt(row); system != "" {
		out.Messages = append(out.Messages, chatMessage{Role: "system", Content: &system})
	}
	for i := range r.Messages {
		all, err := chatMessages(&r.Messages[i])
		if err != nil {
			return nil, err
		}
		out.Messages = append(out.Messages, all...)
	}
	return json.Marshal(out)
}

// chatMessages are those of one message: each result of a tool is one of its own.
func chatMessages(m *Message) (all []chatMessage, err error) {
	if m.Role == User {
		results, texts := m.results()
		for _, r := range results {
			text := r.output()
			all = append(all, chatMessage{Role: "tool", Content: &text, CallID: r.ID})
		}
		if text := strings.Join(texts, "\n\n"); text != "" {
			all = append(all, chatMessage{Role: "user", Content: &text})
		}
		return all, nil
	}
	out := chatMessage{Role: "assistant"}
	var text strings.Builder
	var thought struct {
		Text *string `json:"reasoning_content"`
	}
	for i := range m.Parts {
		switch p := &m.Parts[i]; {
		case p.Call != nil:
			called := chatCalled{p.Call.Name, string(p.Call.arguments())}
			out.Calls = append(out.Calls, chatCallSent{p.Call.ID, "function", called, p.back(Chat)})
		case p.back(Chat) != nil:
			if err := json.Unmarshal(p.back(Chat), &thought); err != nil {
				return nil, bad("what the provider wants back is not as it was in the answer")
			}
		default:
			text.WriteString(p.Text)
		}
	}
	if s := text.String(); s != "" {
		out.Content = &s
	}
	if len(out.Calls) == 0 {
		if out.Content == nil {
			return nil, nil // there is nothing of it on this wire
		}
		return []chatMessage{out}, nil
	}
	// Thoughts are wanted back with tool calls only, but then also if they are empty.
	out.Thought = thought.Text
	return []chatMessage{out}, nil
}

// chatDetails are the parts of a number of prompt tokens.
type chatDetails struct {
	Cached tokens `json:"cached_tokens"`
	Write  tokens `json:"cache_write_tokens"`
}

type chatUsage struct {
	Prompt     tokens      `json:"prompt_tokens"`
	Completion tokens      `json:"completion_tokens"`
	Details    chatDetails `json:"prompt_tokens_details"`
	// Cached is Kimi's, and Hit DeepSeek's, for Details.Cached.
	Cached tokens `json:"cached_tokens"`
	Hit    tokens `json:"prompt_cache_hit_tokens"`
}

type chatCallDelta struct {
	Index    int             `json:"index"`
	ID       string          `json:"id"`
	Function chatCalled      `json:"function"`
	Extra    json.RawMessage `json:"extra_content"`
}

type chatDelta struct {
	Content string          `json:"content"`
	Refusal string          `json:"refusal"`
	Thought *string         `json:"reasoning_content"`
	Calls   []chatCallDelta `json:"tool_calls"`
}

type chatChoice struct {
	Index  int        `json:"index"`
	Delta  chatDelta  `json:"delta"`
	Finish string     `json:"finish_reason"`
	Usage  *chatUsage `json:"usage"` // where Kimi has it
}

type chatChunk struct {
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *chatUsage   `json:"usage"`
	Error   *wireError   `json:"error"`
}

// chatCall is a tool call of which pieces came.
type chatCall struct {
	id, name  string
	arguments strings.Builder
	extra     json.RawMessage
}

type chatReader struct {
	*builder
	part    strings.Builder
	thought strings.Builder
	thinks  bool // thoughts came, if only empty ones
	calls   []*chatCall
	at      map[int]*chatCall
	finish  string
}

func (chatWire) reader(b *builder) reader { return &chatReader{builder: b, at: map[int]*chatCall{}} }

func (r *chatReader) read(e sseEvent) (done bool, err error) {
	if string(e.data) == "[DONE]" {
		return true, r.finished()
	}
	var chunk chatChunk
	if err := decode(e.data, &chunk); err != nil {
		return false, err
	}
	if chunk.Error != nil || e.name == "error" {
		return false, chunk.Error.during()
	}
	if r.answer.Model == "" {
		r.answer.Model = clip(clean(chunk.Model), MaxName)
	}
	if err := r.usage(chunk.Usage); err != nil {
		return false, err
	}
	for i := range chunk.Choices {
		c := &chunk.Choices[i]
		if c.Index != 0 { // one was asked for
			return false, errors.New("it sent a second answer beside the first")
		}
		if err := r.delta(&c.Delta); err != nil {
			return false, err
		}
		if c.Finish != "" {
			r.finish = c.Finish
		}
		if err := r.usage(c.Usage); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (r *chatReader) usage(u *chatUsage) error {
	if u == nil {
		return nil
	}
	cached := u.Details.Cached
	cached.n = max(cached.n, u.Cached.n, u.Hit.n) // they name one number
	return r.told(u.Prompt, cached, u.Details.Write, u.Completion)
}

func (r *chatReader) delta(d *chatDelta) error {
	if d.Thought != nil {
		r.thinks = true
		r.thought.WriteString(*d.Thought)
		r.size += len(*d.Thought)
	}
	r.refuse.WriteString(d.Refusal)
	r.size += len(d.Refusal)
	if err := r.said(&r.part, d.Content); err != nil {
		return err
	}
	for i := range d.Calls {
		piece := &d.Calls[i]
		call := r.at[piece.Index]
		// Some servers number all calls 0, each with its own id.
		if call == nil || piece.ID != "" && call.id != "" && piece.ID != call.id {
			if len(r.calls) >= MaxCalls {
				return fmt.Errorf("it calls more than %d tools at once", MaxCalls)
			}
			call = &chatCall{}
			r.at[piece.Index], r.calls = call, append(r.calls, call)
		}
		if call.id == "" {
			call.id = piece.ID
		}
		if call.name == "" {
			call.name = piece.Function.Name
		}
		if len(piece.Extra) > 0 && string(piece.Extra) != "null" {
			call.extra = piece.Extra
		}
		call.arguments.WriteString(piece.Function.Arguments)
		r.size += len(piece.Function.Arguments)
	}
	return nil
}

// finished makes an answer of what came, as only now it is known that no call gets another piece.
func (r *chatReader) finished() error {
	if r.finish == "" {
		return errors.New("it ended its stream without saying why the model stopped")
	}
	if r.thinks {
		if err := r.addOpaque(Chat, map[string]string{"reasoning_content": r.thought.String()}); err != nil {
			return err
		}
	}
	r.addText(r.part.String())
	for _, c := range r.calls {
		call, err := r.called(c.id, c.name, c.arguments.String(), "")
		if err != nil {
			return err
		}
		part := Part{Call: call}
		if isObject(c.extra) {
			part.Opaque = &Opaque{Wire: Chat, JSON: c.extra}
		}
		r.add(part)
	}
	stop, ok := chatStops[r.finish]
	if !ok {
		stop = StopOther
	}
	return r.end(stop, r.finish)
}

var chatStops = map[string]Stop{
	"stop": StopEnd, "length": StopLength, "tool_calls": StopTools, "function_call": StopTools, "content_filter": StopRefused,
}
