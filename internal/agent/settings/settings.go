// Package settings reads what a person sets for their agent, agent.yaml: which model it asks, when this machine is over a threshold, the
// language of what they read, whether they are recommended anything, which agent it is, and what holds its steps.
//
// It is pure. Nothing of it gives the agent a right or takes one away.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/agent/vitals"
)

// MaxFile bounds the file, in bytes.
const MaxFile = 64 << 10

// Settings are those of one person.
type Settings struct {
	Thresholds vitals.Thresholds
	// LLM is the model's own name at its provider; "" if the file says nothing of it.
	LLM string
	// Language is one of messages.Names, or "" for that of the environment.
	Language string
	// Profile holds the steps on this machine that may change something; "" if the file says nothing of it. Its reader checks it.
	Profile string
	// Agent is one that others made, in the place of carrel's own; nil for that.
	Agent *Agent
	// Recommendations: what may be worth doing is said after a turn.
	Recommendations bool
}

// Agent is an agent that others made.
type Agent struct {
	// Command runs it, in the agent's workspace.
	Command []string `yaml:"command"`
	// Environment is laid over the workspace's own.
	Environment map[string]string `yaml:"environment"`
}

// Default are the settings without a file.
func Default() Settings { return Settings{Thresholds: vitals.Default(), Recommendations: true} }

// Parse reads settings. What they do not say is as in Default. invalid_argument says where they are wrong.
func Parse(file string, b []byte) (Settings, error) {
	fail := func(format string, args ...any) (Settings, error) {
		return Settings{}, fmt.Errorf("cannot use %s: %w: %w", file, fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
	}
	if len(b) > MaxFile {
		return fail("it has more than %d bytes", MaxFile)
	}
	out := Default()
	t := out.Thresholds
	all := struct {
		Thresholds      *vitals.Thresholds `yaml:"thresholds"`
		Language        string             `yaml:"language"`
		Recommendations *bool              `yaml:"recommendations"`
		Agent           *Agent             `yaml:"agent"`
		Profile         string             `yaml:"profile"`
		LLM             string             `yaml:"llm"`
	}{Thresholds: &t}
	d := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	if err := d.Decode(&all); err != nil && !errors.Is(err, io.EOF) { // an empty file sets nothing
		return fail("%s", strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fail("it has more than one document")
	}
	if all.Thresholds != nil {
		if err := all.Thresholds.Check(); err != nil {
			return fail("%w", err)
		}
		out.Thresholds = *all.Thresholds
	}
	if all.Language != "" && !slices.Contains(messages.Names(), all.Language) {
		return fail("language is %.40q; there are: %s", all.Language, strings.Join(messages.Names(), ", "))
	}
	if all.Agent != nil && (len(all.Agent.Command) == 0 || all.Agent.Command[0] == "") {
		return fail("agent.command is empty; give the program and its words as a list, or leave agent out")
	}
	out.Language, out.Agent, out.Profile, out.LLM = all.Language, all.Agent, all.Profile, all.LLM
	if all.Recommendations != nil {
		out.Recommendations = *all.Recommendations
	}
	return out, nil
}
