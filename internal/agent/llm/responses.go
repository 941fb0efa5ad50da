package llm

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
)

// responsesWire is the wire Responses. Nothing is stored by the provider (store is false), so the whole conversation is sent
// each time. A stream has events by type; each item of the output has an index and ends with response.output_item.done,
// which has all of it again. response.completed, response.incomplete and response.failed are the end.
type responsesWire struct{}

var _ wire = responsesWire{}

func (responsesWire) path() string { return "/responses" }

type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	// Strict is true by default there, and then few schemas are taken.
	Strict bool `json:"strict"`
}

type responsesSaid struct {
	Role    Role   `json:"role"`
	Content string `json:"content"`
}

type responsesCall struct {
	Type      string `json:"type"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type responsesOutput struct {
	Type   string `json:"type"`
	CallID string `json:"call_id"`
	Output string `json:"output"`
}

type responsesFormat struct {
	Type   string          `json:"type"`
	Name   string          `json:"name,omitempty"`
	Strict bool            `json:"strict,omitempty"`
	Schema json.RawMessage `json:"schema,omitempty"`
}

type responsesText struct {
	Format responsesFormat `json:"format"`
}

type responsesRequest struct {
	Model        string          `json:"model"`
	Instructions string          `json:"instructions,omitempty"`
	Input        []any           `json:"input"`
	Tools        []responsesTool `json:"tools,omitempty"`
	Text         *responsesText  `json:"text,omitempty"`
	MaxTokens    int             `json:"max_output_tokens,omitempty"`
	CacheKey     string          `json:"prompt_cache_key,omitempty"`
	Include      []string        `json:"include,omitempty"`
	Store        bool            `json:"store"`
	Stream       bool            `json:"stream"`
}

func (responsesWire) encode(c *Config, r *Request) ([]byte, error) {
	row := &c.Provider
	out := responsesRequest{Model: r.Model, Instructions: r.prompt(row), MaxTokens: r.MaxTokens, Stream: true}
	if row.CacheKey {
		out.CacheKey = r.CacheKey
	}
	if c.Reasoning {
		out.Include = []string{"reasoning.encrypted_content"}
	}
	switch {
	case r.Object, r.Schema != nil && row.Structured == ByObject:
		out.Text = &responsesText{responsesFormat{Type: string(ByObject)}}
	case r.Schema != nil:
		out.Text = &responsesText{responsesFormat{string(BySchema), r.Schema.Name, true, r.Schema.JSON}}
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, responsesTool{Type: "function", Name: t.Name, Description: t.Description, Parameters: t.Schema})
	}
	for i := range r.Messages {
		m := &r.Messages[i]
		if m.Role == User {
			results, texts := m.results()
			for _, result := range results {
				out.Input = append(out.Input, responsesOutput{"function_call_output", result.ID, result.output()})
			}
			if text := strings.Join(texts, "\n\n"); text != "" {
				out.Input = append(out.Input, responsesSaid{User, text})
			}
			continue
		}
		for j := range m.Parts {
			switch p := &m.Parts[j]; {
			case p.Call != nil:
				out.Input = append(out.Input, responsesCall{"function_call", p.Call.ID, p.Call.Name, string(p.Call.arguments())})
			case p.back(Responses) != nil:
				out.Input = append(out.Input, p.back(Responses))
			case p.Text != "":
				out.Input = append(out.Input, responsesSaid{Assistant, p.Text})
			}
		}
	}
	return json.Marshal(out)
}

type responsesContent struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

type responsesItem struct {
	Type      string             `json:"type"`
	Status    string             `json:"status"`
	CallID    string             `json:"call_id"`
	Name      string             `json:"name"`
	Arguments string             `json:"arguments"`
	Content   []responsesContent `json:"content"`
	Encrypted string             `json:"encrypted_content"`
}

type responsesResponse struct {
	Model  string          `json:"model"`
	Output []responsesItem `json:"output"`
	Usage  *struct {
		Input   tokens      `json:"input_tokens"`
		Output  tokens      `json:"output_tokens"`
		Details chatDetails `json:"input_tokens_details"`
	} `json:"usage"`
	Error      *wireError `json:"error"`
	Incomplete *struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
}

type responsesEvent struct {
	Type     string            `json:"type"`
	Index    int               `json:"output_index"`
	Delta    string            `json:"delta"`
	Item     json.RawMessage   `json:"item"`
	Response responsesResponse `json:"response"`
	// An error has its code and message here, or in Error.
	Code    word       `json:"code"`
	Message string     `json:"message"`
	Error   *wireError `json:"error"`
}

// responsesPiece is an item of the output of which something came.
type responsesPiece struct {
	kind      string
	done      bool
	text      strings.Builder
	arguments strings.Builder
	refused   bool
	part      Part
}

type responsesReader struct {
	*builder
	pieces map[int]*responsesPiece
}

func (responsesWire) reader(b *builder) reader {
	return &responsesReader{b, map[int]*responsesPiece{}}
}

// The types of items that are used.
const (
	itemMessage = "message"
	itemCall    = "function_call"
	itemThought = "reasoning"
)

func (r *responsesReader) read(e sseEvent) (done bool, err error) {
	if string(e.data) == "[DONE]" { // of servers that are not OpenAI's; the end came before it
		return false, nil
	}
	var v responsesEvent
	if err := decode(e.data, &v); err != nil {
		return false, err
	}
	switch v.Type {
	case "response.created":
		r.answer.Model = clip(clean(v.Response.Model), MaxName)
	case "response.output_item.added":
		var item responsesItem
		if err := decode(v.Item, &item); err != nil {
			return false, err
		}
		_, err = r.piece(v.Index, item.Type)
	case "response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta":
		err = r.delta(&v)
	case "response.output_item.done":
		err = r.item(v.Index, v.Item)
	case "response.completed", "response.incomplete":
		return true, r.finished(&v)
	case "response.failed":
		if err := r.usage(&v.Response); err != nil {
			return false, err
		}
		return false, v.Response.Error.during()
	case "error":
		if v.Error == nil {
			v.Error = &wireError{Code: v.Code, Message: v.Message}
		}
		return false, v.Error.during()
	}
	return false, err
}

// piece returns the item of an index, which must be of one kind.
func (r *responsesReader) piece(index int, kind string) (*responsesPiece, error) {
	p := r.pieces[index]
	switch {
	case p == nil:
		if err := r.room(len(r.pieces)); err != nil {
			return nil, err
		}
		p = &responsesPiece{kind: kind}
		r.pieces[index] = p
	case p.kind != kind || p.done:
		return nil, errors.New("it sent a piece of another item than it said")
	}
	return p, nil
}

func (r *responsesReader) delta(v *responsesEvent) error {
	kind := itemMessage
	if v.Type == "response.function_call_arguments.delta" {
		kind = itemCall
	}
	p, err := r.piece(v.Index, kind)
	if err != nil {
		return err
	}
	switch v.Type {
	case "response.output_text.delta":
		return r.said(&p.text, v.Delta)
	case "response.refusal.delta":
		p.refused = true
		r.refuse.WriteString(v.Delta)
		r.size += len(v.Delta)
	default:
		p.arguments.WriteString(v.Delta)
		r.size += len(v.Delta)
	}
	return nil
}

var errOther = errors.New("it sent a piece of an item and then the whole, and they differ")

// item takes over an item that is whole.
func (r *responsesReader) item(index int, raw json.RawMessage) error {
	var item responsesItem
	if err := decode(raw, &item); err != nil {
		return err
	}
	p, err := r.piece(index, item.Type)
	if err != nil {
		return err
	}
	p.done = true
	switch item.Type {
	case itemMessage:
		return r.message(p, item.Content)
	case itemCall:
		return r.call(p, &item)
	case itemThought:
		r.size += len(raw)
		if item.Encrypted != "" { // others cannot be sent back, as nothing is stored
			p.part.Opaque = &Opaque{Wire: Responses, JSON: slices.Clone(raw)}
		}
	}
	return nil
}

func (r *responsesReader) message(p *responsesPiece, content []responsesContent) error {
	var whole strings.Builder
	for _, c := range content {
		switch c.Type {
		case "output_text":
			whole.WriteString(c.Text)
		case "refusal":
			if !p.refused {
				r.refuse.WriteString(c.Refusal)
			}
		}
	}
	if p.text.Len() == 0 {
		if err := r.said(&p.text, whole.String()); err != nil {
			return err
		}
	}
	if whole.Len() > 0 && whole.String() != p.text.String() {
		return errOther
	}
	return nil
}

func (r *responsesReader) call(p *responsesPiece, item *responsesItem) (err error) {
	arguments, cut := item.Arguments, ""
	switch pieces := p.arguments.String(); {
	case arguments == "":
		arguments = pieces
	case pieces != "" && pieces != arguments:
		return errOther
	case pieces == "":
		r.size += len(arguments)
	}
	if item.Status == "incomplete" {
		cut = "it is cut: the answer had no room for all of its arguments"
	}
	p.part.Call, err = r.called(item.CallID, item.Name, arguments, cut)
	return err
}

func (r *responsesReader) usage(v *responsesResponse) error {
	if u := v.Usage; u != nil {
		return r.told(u.Input, u.Details.Cached, u.Details.Write, u.Output)
	}
	return nil
}

func (r *responsesReader) finished(v *responsesEvent) error {
	if err := r.usage(&v.Response); err != nil {
		return err
	}
	for _, index := range slices.Sorted(maps.Keys(r.pieces)) {
		p := r.pieces[index]
		if p.kind == itemCall && !p.done {
			return errors.New("it ended its stream in the middle of a tool call")
		}
		if r.addText(p.text.String()); p.part.Call != nil || p.part.Opaque != nil {
			r.add(p.part)
		}
	}
	calls := 0
	for _, item := range v.Response.Output {
		if item.Type == itemCall {
			calls++
		}
	}
	if calls > len(r.answer.Calls) {
		return errors.New("its stream lacks a tool call that its end names")
	}
	if v.Type == "response.completed" {
		return r.end(StopEnd, "completed")
	}
	reason := ""
	if v.Response.Incomplete != nil {
		reason = v.Response.Incomplete.Reason
	}
	switch reason {
	case "max_output_tokens":
		return r.end(StopLength, reason)
	case "content_filter":
		return r.end(StopRefused, reason)
	}
	return r.end(StopOther, reason)
}
