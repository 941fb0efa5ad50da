package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// The protocols that an agent's program speaks: carrel's own, and one that others made.
const (
	ownAgent  = "agent"
	seatAgent = "agent-acp"
)

// seatSetting is an agent that others made, in the place of carrel's own.
type seatSetting struct {
	// Command runs it, in the agent's workspace.
	Command []string `yaml:"command"`
	// Environment is laid over the workspace's own.
	Environment map[string]string `yaml:"environment"`
}

// environment are the variables of the program. llm is the model's own name, "" if none was given.
func (s *seatSetting) environment(llm string) map[string]string {
	env := map[string]string{}
	if llm != "" {
		env[agentEnv] = llm
	}
	maps.Copy(env, s.Environment)
	return env
}

// sit finds which agent is asked: that of the flag, that of agent.yaml, or carrel's own.
func (x *askFlags) sit(c *cobra.Command) error {
	name, b, err := settings()
	if err != nil {
		return err
	}
	if x.seat, err = parseSeat(name, b); err != nil {
		return err
	}
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
		x.seat = &seatSetting{Command: words, Environment: env}
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

// parseSeat reads which agent a file of settings names, nil for carrel's own.
func parseSeat(file string, b []byte) (*seatSetting, error) {
	var all struct {
		Thresholds any          `yaml:"thresholds"`
		Agent      *seatSetting `yaml:"agent"`
	}
	err := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(&all)
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		err = errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	case all.Agent == nil:
		return nil, nil
	case len(all.Agent.Command) == 0 || all.Agent.Command[0] == "":
		err = errors.New("agent.command is empty; give the program and its words as a list, or leave agent out")
	default:
		return all.Agent, nil
	}
	return nil, fmt.Errorf("cannot use %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
}
