package loop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

// Main is the program carrel-agent: it reads flags and variables, and runs the agent. Where the model's API is, carrel says
// by ANTHROPIC_BASE_URL or OPENAI_BASE_URL.
func Main(ctx context.Context, args []string, env func(string) string, in io.Reader, out, errs io.Writer) error {
	f := flag.NewFlagSet("carrel-agent", flag.ContinueOnError)
	f.SetOutput(errs)
	var cfg Config
	provider := f.String("provider", "", "the provider, for the form of its API (default by the variables that are set)")
	f.StringVar(&cfg.Name, "model", "", "the model's name, as the provider has it (required)")
	f.IntVar(&cfg.MaxTokens, "max-tokens", 0, "the most tokens of one answer (default the provider's)")
	f.Int64Var(&cfg.Requests, "requests", 0, "the most requests of a turn (default 32)")
	f.Int64Var(&cfg.Tokens, "tokens", 0, "the most tokens of a turn (default no bound)")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if cfg.Name == "" {
		return fmt.Errorf("cannot ask a model: --model is missing: %w", errdefs.ErrInvalidArgument)
	}
	client, err := clientOf(*provider, env)
	if err != nil {
		return err
	}
	defer client.Close()
	cfg.Model = client
	return Run(ctx, cfg, in, out)
}

// inside is what the names of models end with in a workspace: see package egress/model.
const inside = ".carrel.internal"

// clientOf is the client of a provider, at the address that the variables say.
func clientOf(provider string, env func(string) string) (*llm.Client, error) {
	anthropic, openai := env("ANTHROPIC_BASE_URL"), env("OPENAI_BASE_URL")
	if provider == "" {
		switch {
		case anthropic != "":
			provider = "anthropic_compatible"
		case openai != "":
			provider = "openai_compatible"
		default:
			return nil, fmt.Errorf("cannot find the model: neither ANTHROPIC_BASE_URL nor OPENAI_BASE_URL is set; make the workspace with "+
				"--model NAME: %w", errdefs.ErrFailedPrecondition)
		}
	}
	row, err := llm.Provider(provider)
	if err != nil {
		return nil, err
	}
	base, key := openai, env("OPENAI_API_KEY")
	if row.Wire == llm.Messages {
		base, key = anthropic, env("ANTHROPIC_API_KEY")
	}
	if base == "" {
		return nil, fmt.Errorf("cannot reach the provider %s: the workspace has no model that speaks %s; make it with --model NAME: %w", provider,
			row.Wire, errdefs.ErrFailedPrecondition)
	}
	cfg := llm.Config{Provider: row, BaseURL: base, Key: func() string { return key }}
	if u, err := url.Parse(base); err == nil && strings.HasSuffix(u.Hostname(), inside) {
		cfg.Key = nil // the way out puts it in, and errors shall not send anybody to the placeholder
	}
	return llm.New(cfg)
}
