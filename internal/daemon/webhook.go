package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/daemon/compose"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/wire/webhook"
)

// maxSecretFile bounds the file of a webhook's secret.
const maxSecretFile = 4 << 10

// hookBody is the body of a webhook about an approval, in the form of Standard Webhooks.
type hookBody struct {
	Type string    `json:"type"`
	Time time.Time `json:"timestamp"`
	Data hookData  `json:"data"`
}

// hookData is enough to decide whether to look, and says where to answer. It has no output and
// no values of variables, and secrets are masked as in the question.
type hookData struct {
	ID           string    `json:"id"`
	Requester    string    `json:"requester"`
	Workspace    string    `json:"workspace,omitempty"`
	Key          string    `json:"key,omitempty"`
	Owner        string    `json:"owner,omitempty"`
	Kind         string    `json:"kind"`
	Argv         []string  `json:"argv,omitempty"`
	Cwd          string    `json:"cwd,omitempty"`
	Source       string    `json:"source"`
	Written      bool      `json:"written"`
	OnceOnly     bool      `json:"once_only"`
	Level        string    `json:"level"`
	RiskScore    int       `json:"risk_score"`
	Capabilities []string  `json:"capabilities"`
	Reasons      []string  `json:"reasons"`
	AskedAt      time.Time `json:"asked_at"`
	Until        time.Time `json:"until"`
	Answer       string    `json:"answer_with"`
}

// hook sends webhooks about new approvals.
type hook struct {
	sender *webhook.Sender
	log    *slog.Logger
}

// openHook reads the settings of the webhook; nil if there is none.
func openHook(cfg *config.Config, log *slog.Logger) (*hook, error) {
	if cfg.WebhookURL == "" {
		return nil, nil
	}
	if cfg.WebhookSecretFile == "" {
		return nil, fmt.Errorf(
			"cannot send webhooks without a secret: set approval.webhook_secret_file to a file that only the daemon's user and root can read: %w",
			errdefs.ErrInvalidArgument,
		)
	}
	b, err := config.ReadSecret(cfg.WebhookSecretFile, "webhook's secret", maxSecretFile)
	if err != nil {
		return nil, err
	}
	secret, err := webhook.ParseSecret(string(b))
	if err != nil {
		return nil, err
	}
	s, err := webhook.New(webhook.Config{URL: cfg.WebhookURL, Secret: secret, Log: log})
	if err != nil {
		return nil, err
	}
	return &hook{s, log}, nil
}

// run sends a webhook for each new approval until ctx ends. Approvals that are pending from a
// previous run of the daemon are sent again, with the same id.
func (h *hook) run(ctx context.Context, g *compose.Flow) {
	if h == nil {
		return
	}
	defer h.sender.Close()
	told := map[string]bool{}
	err := g.WatchApprovals(ctx, principal.Self(), func(v *approval.View) error {
		if v == nil {
			return nil
		}
		if v.State != approval.Pending {
			delete(told, string(v.ID))
			return nil
		}
		if told[string(v.ID)] {
			return nil
		}
		told[string(v.ID)] = true
		b, err := json.Marshal(bodyOf(v))
		if err != nil {
			return err
		}
		h.sender.Send(webhook.Message{ID: string(v.ID), Body: b, Until: v.Until})
		return nil
	})
	if err != nil && ctx.Err() == nil {
		h.log.Error("webhooks are no longer sent", "error", err)
	}
}

func bodyOf(v *approval.View) hookBody {
	d := &v.Decision
	return hookBody{Type: "approval.asked", Time: v.AskedAt.UTC(), Data: hookData{
		ID: string(v.ID), Requester: v.Subject.By, Workspace: string(v.Subject.Workspace), Key: string(v.Key), Owner: v.Owner,
		Kind: string(v.Kind),
		Argv: v.Question.Argv, Cwd: v.Cwd, Source: string(v.Source), Written: v.Written, OnceOnly: v.Final,
		Level: d.Level.String(), RiskScore: d.RiskScore, Capabilities: d.Capabilities, Reasons: d.Reasons,
		AskedAt: v.AskedAt.UTC(), Until: v.Until.UTC(), Answer: "carrel approvals show " + string(v.ID),
	}}
}
