// Command seatagent is an agent that speaks ACP and does what a script says, without a model. It stands in for an agent that others
// made. It reads script.json, a list of acts, and writes log.jsonl: what it was told, a line each.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// act is one thing that the agent does, in this order.
type act struct {
	// Permission asks for a command, FS for a file of the client's.
	Permission string `json:"permission"`
	FS         string `json:"fs"`
	// Tool is called with Arguments, Times times; each in the place of %d is its number. Together: all at once, in a session each.
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Times     int             `json:"times"`
	Together  bool            `json:"together"`
	// Until: it is called again, as often as its answer has this text.
	Until string `json:"until"`
	// Say is said, a piece of at most Piece bytes after the other. With %s the answer to the last call stands there.
	Say   string `json:"say"`
	Piece int    `json:"piece"`
	// Update is told as an update of the session.
	Update json.RawMessage `json:"update"`
	// End ends the turn, after which the acts go on. Exit ends the program.
	End  bool `json:"end"`
	Exit bool `json:"exit"`
}

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

var (
	mu      sync.Mutex
	out     = json.NewEncoder(os.Stdout)
	logged  *json.Encoder
	answers = make(chan message, 16)
)

func send(m message) {
	mu.Lock()
	defer mu.Unlock()
	m.JSONRPC = "2.0"
	out.SetEscapeHTML(false)
	if err := out.Encode(m); err != nil {
		os.Exit(3)
	}
}

func note(kind string, body any) {
	mu.Lock()
	defer mu.Unlock()
	logged.SetEscapeHTML(false)
	_ = logged.Encode(map[string]any{"kind": kind, "body": body})
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// tools is one session of the server that session/new names.
type tools struct {
	in   *json.Encoder
	out  *bufio.Reader
	err  *strings.Builder
	c    *exec.Cmd
	next int
}

type server struct {
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

func start(s server) *tools {
	c := exec.Command(s.Command, s.Args...)
	in, err := c.StdinPipe()
	if err != nil {
		panic(err)
	}
	o, err := c.StdoutPipe()
	if err != nil {
		panic(err)
	}
	t := &tools{in: json.NewEncoder(in), out: bufio.NewReader(o), err: &strings.Builder{}, c: c}
	c.Stderr = t.err
	if err := c.Start(); err != nil {
		panic(err)
	}
	hello := t.call("initialize", map[string]any{
		"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]string{"name": "seatagent", "version": "1"},
	})
	note("hello", hello)
	_ = t.in.Encode(message{JSONRPC: "2.0", Method: "notifications/initialized"})
	return t
}

// call returns the answer to a call, or why there is none.
func (t *tools) call(method string, params any) string {
	t.next++
	id := fmt.Sprint(t.next)
	if err := t.in.Encode(message{JSONRPC: "2.0", ID: json.RawMessage(id), Method: method, Params: raw(params)}); err != nil {
		_ = t.c.Wait()
		return "closed: " + t.err.String()
	}
	for {
		line, err := t.out.ReadBytes('\n')
		if err != nil {
			_ = t.c.Wait()
			return "closed: " + t.err.String()
		}
		var m message
		if json.Unmarshal(line, &m) != nil || m.Method != "" || string(m.ID) != id {
			continue
		}
		if m.Error != nil {
			return "error: " + string(m.Error)
		}
		var r struct {
			Content []struct{ Text string }
		}
		if method == "tools/call" && json.Unmarshal(m.Result, &r) == nil && len(r.Content) > 0 {
			return r.Content[0].Text
		}
		return string(m.Result)
	}
}

func main() {
	f, err := os.Create("log.jsonl")
	if err != nil {
		panic(err)
	}
	logged = json.NewEncoder(f)
	var servers []server
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			<-ended
			return
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			panic(err)
		}
		switch {
		case m.Method == "":
			answers <- m
		case m.Method == "initialize":
			note("initialize", m.Params)
			send(message{ID: m.ID, Result: raw(map[string]any{"protocolVersion": 1, "agentCapabilities": map[string]any{}})})
		case m.Method == "session/new":
			note("new", m.Params)
			var p struct {
				Servers []server `json:"mcpServers"`
			}
			if err := json.Unmarshal(m.Params, &p); err != nil {
				panic(err)
			}
			servers = p.Servers
			send(message{ID: m.ID, Result: raw(map[string]string{"sessionId": "s1"})})
		case m.Method == "session/prompt":
			note("prompt", m.Params)
			note("model", os.Getenv("CARREL_LLM"))
			go run(m.ID, servers[0])
		}
	}
}

// ended is closed once the script is over: the end of the input may come before.
var ended = make(chan struct{})

func run(prompt json.RawMessage, s server) {
	defer close(ended)
	var acts []act
	b, err := os.ReadFile("script.json")
	if err == nil {
		err = json.Unmarshal(b, &acts)
	}
	if err != nil {
		panic(err)
	}
	t := start(s)
	note("tools", json.RawMessage(t.call("tools/list", map[string]any{})))
	last, over := "", false
	end := func() {
		if !over {
			over = true
			send(message{ID: prompt, Result: raw(map[string]string{"stopReason": "end_turn"})})
		}
	}
	for _, a := range acts {
		if a.Permission != "" {
			send(message{ID: json.RawMessage("71"), Method: "session/request_permission", Params: raw(map[string]any{
				"sessionId": "s1",
				"toolCall":  map[string]any{"toolCallId": "t", "title": "Run it", "rawInput": map[string]string{"command": a.Permission}},
				"options": []any{
					map[string]string{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
					map[string]string{"optionId": "no", "name": "No", "kind": "reject_once"},
				},
			})})
			m := <-answers
			last = string(m.Result) + string(m.Error)
			note("permission", last)
		}
		if a.FS != "" {
			send(message{ID: json.RawMessage("72"), Method: "fs/read_text_file", Params: raw(map[string]string{"sessionId": "s1", "path": a.FS})})
			m := <-answers
			note("fs", string(m.Result)+string(m.Error))
		}
		if a.Tool != "" {
			last = use(t, s, a)
		}
		if a.Say != "" {
			say(strings.ReplaceAll(a.Say, "%s", last), a.Piece)
		}
		if a.Update != nil {
			send(message{Method: "session/update", Params: raw(map[string]any{"sessionId": "s1", "update": a.Update})})
		}
		if a.End {
			end()
		}
		if a.Exit {
			os.Exit(4)
		}
	}
	end()
}

// use calls a tool, and returns the last answer.
func use(t *tools, s server, a act) (last string) {
	params := func(i int) any {
		return map[string]any{"name": a.Tool, "arguments": json.RawMessage(strings.ReplaceAll(string(a.Arguments), "%d", fmt.Sprint(i)))}
	}
	n := max(a.Times, 1)
	if a.Together {
		got := make(chan string, n)
		for i := range n {
			go func() { got <- start(s).call("tools/call", params(i)) }()
		}
		for range n {
			last = <-got
			note(a.Tool, last)
		}
		return last
	}
	counts := map[string]int{}
	for i := 0; i < n; i++ {
		last = t.call("tools/call", params(i))
		if counts[last]++; counts[last] == 1 {
			note(a.Tool, last)
		}
		if a.Until != "" && strings.Contains(last, a.Until) {
			i--
		}
		if strings.HasPrefix(last, "closed") {
			break
		}
	}
	return last
}

func say(text string, piece int) {
	if piece == 0 {
		piece = len(text)
	}
	for len(text) > 0 {
		n := min(piece, len(text))
		send(message{Method: "session/update", Params: raw(map[string]any{"sessionId": "s1", "update": map[string]any{
			"sessionUpdate": "agent_message_chunk", "content": map[string]string{"type": "text", "text": text[:n]},
		}})})
		text = text[n:]
	}
}
