package mcp

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// agents are the clients that Setup knows, in the order of the help.
var agents = []struct {
	name string
	text func(argv []string) (string, error)
}{
	{"claude", func(argv []string) (string, error) { return "claude mcp add carrel -- " + quoted(argv), nil }},
	{"codex", func(argv []string) (string, error) { return "codex mcp add carrel -- " + quoted(argv), nil }},
	{"opencode", func(argv []string) (string, error) {
		return asJSON(map[string]any{"mcp": map[string]any{"carrel": map[string]any{"type": "local", "command": argv, "enabled": true}}})
	}},
	{"cursor", func(argv []string) (string, error) {
		return asJSON(map[string]any{"mcpServers": map[string]any{"carrel": map[string]any{"command": argv[0], "args": argv[1:]}}})
	}},
}

// Agents are the names that Setup takes.
func Agents() (names []string) {
	for _, a := range agents {
		names = append(names, a.name)
	}
	return names
}

// Setup is the line with which an agent is told of the server that argv starts: a command for claude and codex, an entry
// of its configuration for opencode (opencode.json) and cursor (~/.cursor/mcp.json). argv has no secrets.
func Setup(agent string, argv []string) (string, error) {
	for _, a := range agents {
		if a.name == agent {
			return a.text(argv)
		}
	}
	return "", fmt.Errorf("cannot print the set-up for %q: it is one of %s: %w", agent, strings.Join(Agents(), ", "),
		errdefs.ErrInvalidArgument)
}

func asJSON(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}
