package cli

import (
	"maps"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/agent/settings"
)

// The protocols that an agent's program speaks: carrel's own, and one that others made.
const (
	ownAgent  = "agent"
	seatAgent = "agent-acp"
)

// seatEnvironment are the variables of the program. llm is the model's own name, "" if none was given.
func seatEnvironment(s *settings.Agent, llm string) map[string]string {
	env := map[string]string{}
	if llm != "" {
		env[agentEnv] = llm
	}
	maps.Copy(env, s.Environment)
	return env
}

// sit finds which agent is asked: that of the flag, that of agent.yaml, or carrel's own.
func (x *askFlags) sit(c *cobra.Command, own *settings.Settings) error {
	x.seat = own.Agent
	if c.Flags().Changed("agent-command") {
		words := strings.Fields(x.command)
		switch {
		case len(words) == 0: // carrel's own
			x.seat = nil
			return nil
		case strings.ContainsAny(x.command, "'\"\\$`*?"):
			return usage(c, "cannot use --agent-command %q: it is words with spaces between them, and no shell reads it; write others into "+
				"agent.yaml, as a list", x.command)
		}
		var env map[string]string
		if x.seat != nil {
			env = x.seat.Environment
		}
		x.seat = &settings.Agent{Command: words, Environment: env}
	}
	if x.seat == nil {
		return nil
	}
	for _, name := range []string{"provider", "max-requests", "max-tokens"} {
		if c.Flags().Changed(name) {
			return usage(c, "cannot use --%s with an agent that is not carrel's own: its settings say how it asks its model, and the budget of "+
				"the workspace bounds it (carrel update --model-requests, --model-tokens)", name)
		}
	}
	return nil
}
