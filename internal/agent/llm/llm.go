// Package llm asks language models: it sends messages and tools, and reads the answer as it comes, on three wires.
//
//	Client.Stream        provider
//	  │  POST, JSON ──────►│    429, 503, 529 or no connection: again, up to 3 times
//	  │◄── head, 200 ──────│    from here on nothing is repeated
//	  │◄── events ─────────│──► each Event to the caller, as it comes
//	  │◄── end event ──────│    without it the answer is cut, and that is an error
//	  ▼
//	Answer: text, tool calls, usage, why it stopped
//
// The provider is trusted with what is sent to it. What it answers is hostile input: an answer is bounded in bytes, number,
// depth and time (Max constants and Config), it redirects nobody, and no text of it reaches an error message with control
// characters in it.
//
// The package must not run a tool, keep a conversation, choose a model or hold a key. In a workspace the way out puts the key
// in; elsewhere Config.Key is asked for it at each attempt, and neither it nor any header is part of an error.
package llm

import "encoding/json"

// Bounds. Sizes are in bytes.
const (
	// MaxRequest bounds the body of a request.
	MaxRequest = 32 << 20
	// MaxAnswer bounds all that is read of one answer, its framing included.
	MaxAnswer = 16 << 20
	// MaxEvent bounds one event of a stream.
	MaxEvent = 1 << 20
	// MaxCalls bounds the tool calls of one answer.
	MaxCalls = 256
	// MaxParts bounds the parts of one answer: texts, tool calls and what belongs to the provider.
	MaxParts = 1024
	// MaxDepth bounds how deep JSON is nested: in events, and in the arguments of a tool call.
	MaxDepth = 128
	// MaxMessages and MaxTools bound what a request has of these.
	MaxMessages = 10_000
	MaxTools    = 512
	// MaxName bounds the names of models, and MaxToolName those of tools and schemas.
	MaxName     = 256
	MaxToolName = 64
	// maxID bounds the id of a tool call.
	maxID = 512
)

// Role is who a message is from.
type Role string

// The roles. Results of tools are sent as the user.
const (
	User      Role = "user"
	Assistant Role = "assistant"
)

// Request is what a model is asked for.
type Request struct {
	// Model is its name, as the provider has it. Required.
	Model string
	// System is the system prompt; it may be empty.
	System string
	// Messages are the conversation so far. There is at least one, and the last is from the user.
	Messages []Message
	// Tools may be called by the model.
	Tools []Tool
	// Schema asks for an answer that is JSON of this form. Row.Structured says how a provider is asked for it.
	Schema *Schema
	// Object asks for an answer that is one JSON object, where the wire has a word for that; the prompt says of which form. Most
	// providers take less of JSON Schema than a union of forms needs, and count a schema as tokens.
	Object bool
	// MaxTokens bounds the answer, in tokens. 0 is the provider's own bound, or DefaultMaxTokens on the wire Messages,
	// which has none.
	MaxTokens int
	// CacheKey turns on prompt caching where a request must ask for it. Requests that begin alike have the same key, such
	// as the id of a session. At most MaxToolName bytes.
	CacheKey string
	// Stable is how many of the first messages later requests will repeat; 0 is all of them. It matters with a CacheKey.
	Stable int
}

// DefaultMaxTokens is what Request.MaxTokens is by default on the wire Messages.
const DefaultMaxTokens = 8192

// Message is one turn of a conversation.
type Message struct {
	Role  Role
	Parts []Part
}

// Part is one of Text, Call, Result and Opaque, or a Call with its Opaque.
type Part struct {
	// Text is for people and models. An empty one is left out.
	Text string
	// Call is a tool call, in a message of the assistant.
	Call *ToolCall
	// Result is what a tool answered, in a message of the user.
	Result *ToolResult
	// Opaque is data that the provider wants back unchanged.
	Opaque *Opaque
}

// Opaque is something of an answer that only its provider understands, such as the signed thoughts of a model. It is sent
// back where it stood, and left out on any other wire.
type Opaque struct {
	Wire Wire
	JSON json.RawMessage
}

// Tool is something that a model may ask for.
type Tool struct {
	// Name has 1 to MaxToolName letters, digits, "_" and "-".
	Name        string
	Description string
	// Schema is the JSON schema of the arguments, an object.
	Schema json.RawMessage
}

// ToolCall is what a model asks for.
type ToolCall struct {
	// ID is the provider's, or one made by this package if that is missing or used twice. The result names it.
	ID   string
	Name string
	// Arguments are a JSON object without a name that is there twice, nested at most MaxDepth deep. They are not checked
	// against the schema of the tool. nil if Bad is not empty.
	Arguments json.RawMessage
	// Bad says why the call cannot be used, for the result that the model gets. Such a call must not be run.
	Bad string
}

// ToolResult answers a tool call.
type ToolResult struct {
	// ID is that of the ToolCall.
	ID   string
	Text string
	// Failed tells the model that the tool failed. Wires without a word for it get "error: " before the text.
	Failed bool
}

// Schema is the form of an answer.
type Schema struct {
	// Name has 1 to MaxToolName letters, digits, "_" and "-".
	Name string
	// JSON is the JSON schema, an object. Providers take a subset of JSON Schema; with most each object has
	// additionalProperties false and all its properties required.
	JSON json.RawMessage
}

// EventKind says what an Event tells.
type EventKind string

// The kinds. Events come in the order of the answer; Ended is the last, and comes of a whole answer only.
const (
	TextDelta EventKind = "text"  // Text is the next piece
	CallDone  EventKind = "call"  // Call is a whole tool call
	UsageTold EventKind = "usage" // Usage is what was used so far
	Ended     EventKind = "end"   // Stop says why
)

// Event is one step of an answer.
type Event struct {
	Kind  EventKind
	Text  string
	Call  ToolCall
	Usage Usage
	Stop  Stop
}

// Stop is why an answer ended.
type Stop string

// The reasons.
const (
	// StopEnd: the model has said what it had to say.
	StopEnd Stop = "end"
	// StopTools: it waits for the results of its tool calls.
	StopTools Stop = "tools"
	// StopLength: the limit of tokens was reached. The last tool call may be incomplete.
	StopLength Stop = "length"
	// StopRefused: the model or a filter of the provider declined.
	StopRefused Stop = "refused"
	// StopOther: this package does not know Answer.Reason. Treat the answer as incomplete.
	StopOther Stop = "other"
)

// Answer is what a model answered.
type Answer struct {
	// Parts are the answer in its order. Message returns them as a message for the next request.
	Parts []Part
	// Text is the whole text, Refusal the text with which the model declined, and Calls the tool calls.
	Text    string
	Refusal string
	Calls   []ToolCall
	// JSON is the text as JSON if a Schema was asked for and the answer is whole. It is not checked against the schema.
	JSON  json.RawMessage
	Usage Usage
	// Stop is "" if the answer is not whole.
	Stop Stop
	// Reason is the provider's own word for Stop.
	Reason string
	// Model is the name of the model that answered, as the provider reports it.
	Model string
}

// Message returns the answer as the assistant's message of a next request.
func (a *Answer) Message() Message { return Message{Role: Assistant, Parts: a.Parts} }
