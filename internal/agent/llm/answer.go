package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// wire is one form of requests and answers.
type wire interface {
	// path is where requests go, below the base URL.
	path() string
	// encode returns the body of a request that was checked.
	encode(c *Config, r *Request) ([]byte, error)
	// reader returns what reads one answer into b.
	reader(b *builder) reader
}

// reader reads the events of one answer. It is done after the end event.
type reader interface {
	read(e sseEvent) (done bool, err error)
}

func wireOf(w Wire) wire {
	switch w {
	case Chat:
		return chatWire{}
	case Responses:
		return responsesWire{}
	case Messages:
		return messagesWire{}
	}
	return nil
}

// builder collects an answer while it comes.
type builder struct {
	emit   func(Event) error
	answer Answer
	text   strings.Builder
	refuse strings.Builder
	size   int // bytes of what the model wrote, thoughts included
	ids    map[string]bool
	// input and output report that the provider reported these tokens.
	input, output bool
}

// said adds a piece of text, which belongs to one part.
func (b *builder) said(part *strings.Builder, text string) error {
	if text == "" {
		return nil
	}
	b.size += len(text)
	part.WriteString(text)
	b.text.WriteString(text)
	return b.emit(Event{Kind: TextDelta, Text: text})
}

// room returns an error if no further part is allowed.
func (b *builder) room(parts int) error {
	if parts >= MaxParts {
		return fmt.Errorf("its answer has more than %d parts", MaxParts)
	}
	return nil
}

func (b *builder) add(p Part) { b.answer.Parts = append(b.answer.Parts, p) }

// addText adds a text as a part.
func (b *builder) addText(text string) {
	if text != "" {
		b.add(Part{Text: text})
	}
}

// addOpaque adds what a provider wants back as a part.
func (b *builder) addOpaque(w Wire, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return errors.New("it sent what cannot be sent back")
	}
	b.add(Part{Opaque: &Opaque{Wire: w, JSON: raw}})
	return nil
}

// called adds a tool call. cut is empty, or says why the call cannot be used.
func (b *builder) called(id, name, arguments, cut string) (*ToolCall, error) {
	if len(b.answer.Calls) >= MaxCalls {
		return nil, fmt.Errorf("it calls more than %d tools at once", MaxCalls)
	}
	if len(id) > maxID {
		return nil, fmt.Errorf("the id of a tool call has more than %d bytes", maxID)
	}
	if b.ids == nil {
		b.ids = map[string]bool{}
	}
	for n := len(b.ids); id == "" || b.ids[id]; n++ { // a result must name one call
		id = "call_" + strconv.Itoa(n)
	}
	b.ids[id] = true
	c := ToolCall{ID: id, Name: name, Bad: cut}
	if !isName(name) {
		c.Name, c.Bad = tame(name), "it has no name that a tool can have"
	}
	if c.Bad == "" {
		c.Arguments, c.Bad = parseArguments(arguments)
	}
	b.answer.Calls = append(b.answer.Calls, c)
	return &c, b.emit(Event{Kind: CallDone, Call: c})
}

// tame turns what a model wrote into a valid name, so that the call can be sent back.
func tame(name string) string {
	name = strings.Map(func(c rune) rune {
		if unnamed(c) {
			return '_'
		}
		return c
	}, name[:min(len(name), MaxToolName)])
	if name == "" {
		return "unnamed"
	}
	return name
}

// parseArguments returns the arguments of a call, or why they cannot be used.
func parseArguments(text string) (arguments json.RawMessage, wrong string) {
	text = strings.TrimSpace(text)
	if text == "" || text == "null" {
		text = "{}"
	}
	arguments = json.RawMessage(text)
	var raw json.RawMessage
	switch {
	case strictjson.Depth(arguments) > MaxDepth:
		return nil, fmt.Sprintf("its arguments are nested more than %d deep", MaxDepth)
	case !utf8.Valid(arguments) || !isObject(arguments):
		return nil, "its arguments are not one JSON object"
	}
	if err := strictjson.Unmarshal(arguments, &raw); err != nil {
		return nil, "its arguments are ambiguous: " + clean(err.Error())
	}
	return arguments, ""
}

// told records the usage that a provider of OpenAI's wires reports. There input includes the cached tokens.
func (b *builder) told(input, cached, write, output tokens) error {
	u := &b.answer.Usage
	if input.told {
		u.Cached = min(cached.n, input.n)
		u.CacheWrite = min(write.n, input.n-u.Cached)
		u.Input, b.input = input.n-u.Cached-u.CacheWrite, true
	}
	if output.told {
		u.Output, b.output = output.n, true
	}
	if !input.told && !output.told {
		return nil
	}
	return b.emit(Event{Kind: UsageTold, Usage: *u})
}

// end closes the answer. reason is the provider's word, and stop what it means.
func (b *builder) end(stop Stop, reason string) error {
	a := &b.answer
	a.Text, a.Refusal, a.Reason = b.text.String(), b.refuse.String(), clip(clean(reason), 64)
	switch {
	case stop == StopTools && len(a.Calls) == 0:
		return errors.New("it says that it calls a tool, and calls none")
	case stop == StopEnd && a.Refusal != "":
		stop = StopRefused
	case stop == StopEnd && len(a.Calls) > 0:
		stop = StopTools
	}
	a.Stop = stop
	return nil
}

// decode reads the JSON of an event.
func decode(data []byte, v any) error {
	if strictjson.Depth(data) > MaxDepth {
		return fmt.Errorf("it sent JSON that is nested more than %d deep", MaxDepth)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("it sent an event that is not in the form of its wire: %s", clean(err.Error()))
	}
	return nil
}
