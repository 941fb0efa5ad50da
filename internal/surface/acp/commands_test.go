package acp_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/surface/acp"
)

// The lines that are for carrel are told once the editor knows the session, in the protocol's form.
func TestCommands(t *testing.T) {
	p := serve(t, &agent{commands: []acp.Command{
		{Name: "remember", Description: "keep a note", Hint: "text"}, {Name: "memory", Description: "list"},
	}})
	session := p.begin()
	m := p.next()
	const want = `"availableCommands":[{"description":"keep a note","input":{"hint":"text"},"name":"remember"},` +
		`{"description":"list","name":"memory"}]`
	if text := string(m.Params); m.Method != "session/update" || !strings.Contains(text, want) || !strings.Contains(text, session) ||
		!strings.Contains(text, `"sessionUpdate":"available_commands_update"`) {
		t.Errorf("%s %s", m.Method, text)
	}
}
