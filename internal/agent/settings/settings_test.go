package settings_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/settings"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"": "{2 10 90 90 0}", "# nothing\n": "{2 10 90 90 0}", "thresholds:\n": "{2 10 90 90 0}",
		"thresholds: {}": "{2 10 90 90 0}",
		"thresholds:\n  disk_used: 80\n  failed_services: 5":         "{2 10 80 90 5}",
		"thresholds: {load_per_processor: 0.5, memory_available: 0}": "{0.5 0 90 90 0}",
	} {
		got, err := settings.Parse("agent.yaml", []byte(text))
		if err != nil || fmt.Sprint(got.Thresholds) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"threshold: {}":                             "[1:1]",
		"thresholds:\n  disk: 80":                   "[2:3]",
		"thresholds:\n  disk_used: many":            "[2:14]",
		"thresholds: {disk_used: 0}":                "thresholds.disk_used is 0; give a number from 1 to 100",
		"thresholds: {disk_used: 101}":              "disk_used is 101",
		"thresholds: {load_per_processor: .nan}":    "load_per_processor is NaN",
		"thresholds: {memory_available: -1}":        "memory_available is -1",
		"thresholds: {failed_services: -1}":         "failed_services is -1",
		"thresholds: {failed_services: 1.5}":        "give a whole number",
		"thresholds: {}\n---\n{}":                   "more than one document",
		strings.Repeat("#", settings.MaxFile+1):     "more than 65536 bytes",
		"thresholds: {disk_used: 80, disk_used: 1}": "already defined",
	} {
		if _, err := settings.Parse("agent.yaml", []byte(text)); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "cannot use agent.yaml: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// An agent of others and a profile are taken as they are written.
func TestAgentAndProfile(t *testing.T) {
	text := "llm: small-1\nprofile: workspace_write\nagent:\n  command: [codex-acp, -v]\n  environment: {A: b}\n"
	got, err := settings.Parse("agent.yaml", []byte(text))
	if err != nil || got.Profile != "workspace_write" || got.LLM != "small-1" || got.Agent == nil ||
		fmt.Sprint(*got.Agent) != "{[codex-acp -v] map[A:b]}" || !got.Recommendations {
		t.Errorf("%+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"agent: {}": "agent.command is empty", "agent: {command: []}": "agent.command is empty",
		"agent: {command: ['']}": "agent.command is empty",
		"agent: {argv: [a]}":     "argv", "profile: [none]": "[1:10]",
	} {
		if _, err := settings.Parse("agent.yaml", []byte(text)); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A language and recommendations stand beside the thresholds, and are what they are without a file where it says nothing.
func TestOthers(t *testing.T) {
	for text, want := range map[string]string{
		"": " true", "thresholds: {disk_used: 5}": " true", "language: zh": "zh true", "language: en\nrecommendations: false": "en false",
		"recommendations: true": " true",
	} {
		got, err := settings.Parse("agent.yaml", []byte(text))
		if err != nil || fmt.Sprint(got.Language, " ", got.Recommendations) != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"language: fr": "language is \"fr\"; there are: en, zh", "recommendations: maybe": "[1:18]", "languages: zh": "[1:1]",
	} {
		if _, err := settings.Parse("agent.yaml", []byte(text)); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
