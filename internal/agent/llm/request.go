package llm

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// check refuses a request that no provider would take, or that would be read in another way than it is meant.
func (r *Request) check() error {
	switch {
	case r.Model == "" || len(r.Model) > MaxName || !utf8.ValidString(r.Model):
		return bad("the name of the model has 1 to %d bytes of text; name one that the provider has", MaxName)
	case len(r.Messages) == 0:
		return bad("there is no message; begin with one of the user")
	case len(r.Messages) > MaxMessages:
		return bad("there are %d messages, at most %d; shorten the conversation", len(r.Messages), MaxMessages)
	case len(r.Tools) > MaxTools:
		return bad("there are %d tools, at most %d", len(r.Tools), MaxTools)
	case r.Messages[len(r.Messages)-1].Role != User:
		return bad("the last message is not from the user")
	case r.MaxTokens < 0 || r.Stable < 0 || r.Stable > len(r.Messages):
		return bad("MaxTokens is negative, or Stable is not a number of messages")
	case len(r.CacheKey) > MaxToolName:
		return bad("the cache key has more than %d bytes", MaxToolName)
	}
	seen := map[string]bool{}
	for _, t := range r.Tools {
		switch {
		case !isName(t.Name):
			return bad("%.80q is not the name of a tool: it has 1 to %d letters, digits, _ and -", t.Name, MaxToolName)
		case seen[t.Name]:
			return bad("the tool %s is there twice", t.Name)
		case !isObject(t.Schema):
			return bad("the schema of the tool %s is not a JSON object", t.Name)
		}
		seen[t.Name] = true
	}
	if r.Schema != nil && r.Object {
		return bad("it asks for a schema, and for an object of no form; ask for one of them")
	}
	if s := r.Schema; s != nil && (!isName(s.Name) || !isObject(s.JSON)) {
		return bad("the schema of the answer has no name of 1 to %d letters, digits, _ and -, or is not a JSON object", MaxToolName)
	}
	for i, m := range r.Messages {
		if err := m.check(); err != nil {
			return fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	return nil
}

func (m *Message) check() error {
	if m.Role != User && m.Role != Assistant {
		return bad("%.20q is no role; use %s or %s", m.Role, User, Assistant)
	}
	some := false
	for _, p := range m.Parts {
		some = some || p.Text != "" || p.Call != nil || p.Result != nil || p.Opaque != nil
		switch {
		case m.Role == User && (p.Call != nil || p.Opaque != nil), m.Role == Assistant && p.Result != nil:
			return bad("tool calls are the assistant's, and their results the user's")
		case p.Text != "" && (p.Call != nil || p.Opaque != nil || p.Result != nil):
			return bad("a part is text and something else")
		case p.Call != nil && (p.Call.ID == "" || !isName(p.Call.Name) || len(p.Call.Arguments) > 0 && !isObject(p.Call.Arguments)):
			return bad("a tool call has no id, no name of a tool, or arguments that are not a JSON object")
		case p.Result != nil && p.Result.ID == "":
			return bad("the result of a tool names no call")
		case p.Opaque != nil && !isObject(p.Opaque.JSON):
			return bad("what the provider wants back is not a JSON object; leave it as it was in the answer")
		}
	}
	if !some && m.Role == User {
		return bad("it is empty")
	}
	return nil
}

// arguments are those of a call as they are sent.
func (c *ToolCall) arguments() json.RawMessage {
	if len(c.Arguments) == 0 {
		return json.RawMessage("{}")
	}
	return c.Arguments
}

// output is the text of a result for a wire that has no word for failure.
func (r *ToolResult) output() string {
	if r.Failed {
		return "error: " + r.Text
	}
	return r.Text
}

// back returns what the provider of a wire wants back with a part, nil if there is nothing.
func (p *Part) back(w Wire) json.RawMessage {
	if p.Opaque == nil || p.Opaque.Wire != w {
		return nil
	}
	return p.Opaque.JSON
}

// results returns the results of tools in a message, and its text. Providers want the results first.
func (m *Message) results() (results []*ToolResult, texts []string) {
	for i := range m.Parts {
		switch p := &m.Parts[i]; {
		case p.Result != nil:
			results = append(results, p.Result)
		case p.Text != "":
			texts = append(texts, p.Text)
		}
	}
	return results, texts
}

// marked is the index of the message up to which the provider is to cache, -1 for none.
func (r *Request) marked() int {
	switch {
	case r.CacheKey == "":
		return -1
	case r.Stable > 0:
		return r.Stable - 1
	}
	return len(r.Messages) - 1
}

// prompt is the system prompt, with the schema in it for a provider that takes none.
func (r *Request) prompt(row *Row) string {
	if r.Schema == nil || row.Structured != ByObject {
		return r.System
	}
	const ask = "Answer with one JSON object and nothing else. It matches this JSON schema:\n"
	return strings.TrimSpace(r.System + "\n\n" + ask + string(r.Schema.JSON))
}

// isName reports whether a text is a name of a tool that every provider takes.
func isName(s string) bool {
	return s != "" && len(s) <= MaxToolName && !strings.ContainsFunc(s, unnamed)
}

func unnamed(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-'
}

func bad(why string, args ...any) error {
	return fmt.Errorf(why+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
