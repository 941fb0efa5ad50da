package llm

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
)

// messagesWire is the wire Messages. A stream begins with message_start, has blocks (start, deltas, stop) by index, says in
// message_delta why the model stopped and what was used in all, and ends with message_stop. Pings and events of other types
// may come anywhere.
type messagesWire struct{}

var _ wire = messagesWire{}

func (messagesWire) path() string { return "/v1/messages" }

// cacheMark ends what the provider is to cache.
type cacheMark struct {
	Type string `json:"type"`
}

var ephemeral = &cacheMark{"ephemeral"}

type messagesText struct {
	Type  string     `json:"type"`
	Text  string     `json:"text"`
	Cache *cacheMark `json:"cache_control,omitempty"`
}

type messagesUse struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	Cache *cacheMark      `json:"cache_control,omitempty"`
}

type messagesResult struct {
	Type    string     `json:"type"`
	UseID   string     `json:"tool_use_id"`
	Content string     `json:"content,omitempty"`
	IsError bool       `json:"is_error,omitempty"`
	Cache   *cacheMark `json:"cache_control,omitempty"`
}

type messagesTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema"`
	Cache       *cacheMark      `json:"cache_control,omitempty"`
}

type messagesTurn struct {
	Role    Role  `json:"role"`
	Content []any `json:"content"`
}

type messagesFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

type messagesOutput struct {
	Format messagesFormat `json:"format"`
}

type messagesRequest struct {
	Model     string          `json:"model"`
	MaxTokens int             `json:"max_tokens"`
	System    []messagesText  `json:"system,omitempty"`
	Messages  []messagesTurn  `json:"messages"`
	Tools     []messagesTool  `json:"tools,omitempty"`
	Output    *messagesOutput `json:"output_config,omitempty"`
	Stream    bool            `json:"stream"`
}

func (messagesWire) encode(c *Config, r *Request) ([]byte, error) {
	row := &c.Provider
	out := messagesRequest{Model: r.Model, MaxTokens: r.MaxTokens, Stream: true}
	if out.MaxTokens == 0 {
		out.MaxTokens = DefaultMaxTokens
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, messagesTool{Name: t.Name, Description: t.Description, Schema: t.Schema})
	}
	if system := r.prompt(row); system != "" {
		out.System = []messagesText{{Type: "text", Text: system}}
	}
	if r.Schema != nil && row.Structured != ByObject {
		out.Output = &messagesOutput{messagesFormat{string(BySchema), r.Schema.JSON}}
	}
	// Tools come before the system prompt in what is cached.
	switch marked := r.marked(); {
	case marked < 0:
	case len(out.System) > 0:
		out.System[0].Cache = ephemeral
	case len(out.Tools) > 0:
		out.Tools[len(out.Tools)-1].Cache = ephemeral
	}
	for i := range r.Messages {
		m := &r.Messages[i]
		content := messagesBlocks(m)
		if i == r.marked() {
			mark(content)
		}
		if len(content) > 0 {
			out.Messages = append(out.Messages, messagesTurn{m.Role, content})
		}
	}
	return json.Marshal(out)
}

// messagesBlocks are the blocks of a message. Results of tools come first, as the provider wants them.
func messagesBlocks(m *Message) (content []any) {
	results, texts := m.results()
	for _, r := range results {
		content = append(content, &messagesResult{Type: "tool_result", UseID: r.ID, Content: r.Text, IsError: r.Failed})
	}
	if m.Role == User {
		for _, text := range texts {
			content = append(content, &messagesText{Type: "text", Text: text})
		}
		return content
	}
	for i := range m.Parts {
		switch p := &m.Parts[i]; {
		case p.Call != nil:
			content = append(content, &messagesUse{Type: "tool_use", ID: p.Call.ID, Name: p.Call.Name, Input: p.Call.arguments()})
		case p.back(Messages) != nil:
			content = append(content, p.back(Messages))
		case p.Text != "":
			content = append(content, &messagesText{Type: "text", Text: p.Text})
		}
	}
	return content
}

// mark marks the last block that can be. Thoughts cannot.
func mark(content []any) {
	for _, block := range slices.Backward(content) {
		switch b := block.(type) {
		case *messagesText:
			b.Cache = ephemeral
		case *messagesUse:
			b.Cache = ephemeral
		case *messagesResult:
			b.Cache = ephemeral
		default:
			continue
		}
		return
	}
}

type messagesUsage struct {
	Input  tokens `json:"input_tokens"`
	Output tokens `json:"output_tokens"`
	Cached tokens `json:"cache_read_input_tokens"`
	Write  tokens `json:"cache_creation_input_tokens"`
}

type messagesBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
}

type messagesEvent struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message struct {
		Model string        `json:"model"`
		Usage messagesUsage `json:"usage"`
	} `json:"message"`
	Block messagesBlock `json:"content_block"`
	Delta struct {
		Type      string `json:"type"`
		Text      string `json:"text"`
		JSON      string `json:"partial_json"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
		Stop      string `json:"stop_reason"`
	} `json:"delta"`
	Usage messagesUsage `json:"usage"`
	Error *wireError    `json:"error"`
}

// messagesPiece is a block of which something came.
type messagesPiece struct {
	messagesBlock
	done      bool
	text      strings.Builder
	arguments strings.Builder
	thinking  strings.Builder
	signature strings.Builder
	part      Part
}

// thought is a block of thoughts as it is sent back.
type thought struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
}

type hiddenThought struct {
	Type string `json:"type"`
	Data string `json:"data"`
}

type messagesReader struct {
	*builder
	began  bool
	pieces map[int]*messagesPiece
	stop   string
}

func (messagesWire) reader(b *builder) reader {
	return &messagesReader{builder: b, pieces: map[int]*messagesPiece{}}
}

func (r *messagesReader) read(e sseEvent) (done bool, err error) {
	var v messagesEvent
	if err := decode(e.data, &v); err != nil {
		return false, err
	}
	switch v.Type {
	case "error":
		return false, v.Error.during()
	case "message_start":
		if r.began {
			return false, errors.New("it began a second answer in the first")
		}
		r.began = true
		r.answer.Model = clip(clean(v.Message.Model), MaxName)
		return false, r.usage(&v.Message.Usage, false)
	case "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop":
	default: // a ping, or an event of another type, which may be added at any time
		return false, nil
	}
	if !r.began {
		return false, errors.New("it sent a part of an answer that it had not begun")
	}
	switch v.Type {
	case "content_block_start":
		return false, r.start(&v)
	case "content_block_delta":
		return false, r.delta(&v)
	case "content_block_stop":
		return false, r.stopped(v.Index)
	case "message_delta":
		if v.Delta.Stop != "" {
			r.stop = v.Delta.Stop
		}
		return false, r.usage(&v.Usage, true)
	}
	return true, r.finished()
}

// usage takes over numbers, which are those of the whole request so far. At its start the output is not known.
func (r *messagesReader) usage(u *messagesUsage, last bool) error {
	a := &r.answer.Usage
	for _, n := range []struct {
		from tokens
		to   *int64
	}{{u.Input, &a.Input}, {u.Cached, &a.Cached}, {u.Write, &a.CacheWrite}, {u.Output, &a.Output}} {
		if n.from.told {
			*n.to = n.from.n
		}
	}
	r.input = r.input || u.Input.told
	if r.output = r.output || last && u.Output.told; !last {
		return nil
	}
	return r.emit(Event{Kind: UsageTold, Usage: *a})
}

func (r *messagesReader) start(v *messagesEvent) error {
	if r.pieces[v.Index] != nil {
		return errors.New("it began a block twice")
	}
	if err := r.room(len(r.pieces)); err != nil {
		return err
	}
	p := &messagesPiece{messagesBlock: v.Block}
	p.Input = slices.Clone(v.Block.Input)
	r.pieces[v.Index] = p
	p.thinking.WriteString(v.Block.Thinking)
	p.signature.WriteString(v.Block.Signature)
	r.size += len(v.Block.Thinking) + len(v.Block.Data)
	if p.Type == "text" {
		return r.said(&p.text, v.Block.Text)
	}
	return nil
}

// deltaOf is the type of block that a delta is for.
var deltaOf = map[string]string{
	"text_delta": "text", "input_json_delta": "tool_use", "thinking_delta": "thinking", "signature_delta": "thinking",
}

func (r *messagesReader) delta(v *messagesEvent) error {
	p := r.pieces[v.Index]
	if p == nil || p.done {
		return errors.New("it sent a piece of a block that is not open")
	}
	of, known := deltaOf[v.Delta.Type]
	if !known { // citations, and what is added
		return nil
	}
	if of != p.Type {
		if _, used := map[string]bool{"text": true, "tool_use": true, "thinking": true}[p.Type]; used {
			return errors.New("it sent a piece of another block than it said")
		}
		return nil // of a block that was not asked for and is not used
	}
	d := &v.Delta
	r.size += len(d.JSON) + len(d.Thinking)
	p.arguments.WriteString(d.JSON)
	p.thinking.WriteString(d.Thinking)
	p.signature.WriteString(d.Signature)
	if of == "text" {
		return r.said(&p.text, d.Text)
	}
	return nil
}

func (r *messagesReader) stopped(index int) (err error) {
	p := r.pieces[index]
	if p == nil || p.done {
		return errors.New("it ended a block that is not open")
	}
	p.done = true
	if p.Type != "tool_use" {
		return nil
	}
	arguments := p.arguments.String()
	if arguments == "" { // some servers send them at once
		arguments = string(p.Input)
		r.size += len(arguments)
	}
	p.part.Call, err = r.called(p.ID, p.Name, arguments, "")
	return err
}

func (r *messagesReader) finished() error {
	for _, index := range slices.Sorted(maps.Keys(r.pieces)) {
		p := r.pieces[index]
		if !p.done {
			return errors.New("it ended its stream in the middle of a block")
		}
		var err error
		switch p.Type {
		case "text":
			r.addText(p.text.String())
		case "tool_use":
			r.add(p.part)
		case "thinking":
			err = r.addOpaque(Messages, thought{p.Type, p.thinking.String(), p.signature.String()})
		case "redacted_thinking":
			err = r.addOpaque(Messages, hiddenThought{p.Type, p.Data})
		}
		if err != nil {
			return err
		}
	}
	if r.stop == "" {
		return errors.New("it ended its stream without saying why the model stopped")
	}
	stop, ok := messagesStops[r.stop]
	if !ok {
		stop = StopOther
	}
	return r.end(stop, r.stop)
}

var messagesStops = map[string]Stop{
	"end_turn": StopEnd, "stop_sequence": StopEnd, "tool_use": StopTools, "max_tokens": StopLength,
	"model_context_window_exceeded": StopLength, "refusal": StopRefused,
}
