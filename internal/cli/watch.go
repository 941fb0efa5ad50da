package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/cli/watch"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) approvalsWatchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "watch",
		Short: "Watch what waits for a person, and answer it",
		Long: `Show what waits for a person as it arrives, with everything that decides about it, and
answer with a key. No key answers before all of a question was on the screen; ? says which
keys there are. Needs a terminal. With -o json, or without a terminal, each approval is a
line of JSON when it arrives or changes, until a signal ends it.`,
		Example: `  carrel approvals watch
  carrel approvals watch -o json | jq -r 'select(.state == "pending") | .id'`,
		Args: exactly(),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		s := &approvalSource{client}
		if *out != asJSON && isTerminal(a.In) && isTerminal(a.Out) {
			return watch.Run(c.Context(), s, a.In, a.Out)
		}
		return s.stream(c.Context(), func(m *carrelv1.Approval) error {
			if m == nil {
				return nil
			}
			return jsonLine(a.Out, objectOf(m))
		})
	}
	return c
}

// approvalSource gives package watch the approvals of the daemon.
type approvalSource struct{ client *carrel.Client }

// stream calls f with each approval, and once with nil after the pending ones.
func (s *approvalSource) stream(ctx context.Context, f func(*carrelv1.Approval) error) error {
	err := receiveOf(ctx, s.client, approvals.WatchApprovals, &carrelv1.WatchApprovalsRequest{},
		func(m *carrelv1.WatchApprovalsResponse) error {
			if m.GetApproval() != nil {
				if err := f(m.GetApproval()); err != nil {
					return err
				}
			}
			if m.GetCaughtUp() {
				return f(nil)
			}
			return nil
		})
	if err != nil {
		return err
	}
	return fmt.Errorf("cannot go on watching: the daemon ended it; see \"carrel doctor\", and watch again: %w", io.ErrUnexpectedEOF)
}

// Watch implements watch.Source.
func (s *approvalSource) Watch(ctx context.Context, f func(*watch.Item)) error {
	return s.stream(ctx, func(m *carrelv1.Approval) error {
		if m == nil {
			f(nil)
			return nil
		}
		i := itemOf(m)
		f(&i)
		return nil
	})
}

// History implements watch.Source.
func (s *approvalSource) History(ctx context.Context) ([]watch.Item, error) {
	res, err := askOf(ctx, s.client, approvals.ListApprovals, &carrelv1.ListApprovalsRequest{PageSize: 100})
	var items []watch.Item
	for _, m := range res.GetApprovals() {
		if !isPending(m) {
			items = append(items, itemOf(m))
		}
	}
	return items, err
}

// Answer implements watch.Source. The terminal showed the whole question, or no key would have answered.
func (s *approvalSource) Answer(ctx context.Context, id string, kind watch.Kind, reason string, files ...string) error {
	_, err := askOf(ctx, s.client, approvals.AnswerApproval,
		&carrelv1.AnswerApprovalRequest{Id: id, Kind: string(kind), Reason: reason, Terminal: true, Files: files})
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot answer approval %s: it is gone; see those that are open with \"carrel approvals list\": %w", id, err)
	}
	return err
}

// itemOf is an approval as it is shown: without a character that a terminal interprets.
func itemOf(m *carrelv1.Approval) watch.Item {
	i := watch.Item{
		ID: printable(m.GetId()), State: printable(m.GetState()), Pending: isPending(m), Risk: m.GetRiskScore(),
		Where: printable(m.GetKey()), By: printable(m.GetRequester()), What: printable(actionOf(m)),
		Digest: m.GetActionDigest(), Until: untilText(m), Threads: threaded(m),
		Answer: printable(m.GetState()), Files: m.GetFiles(),
	}
	lines := strings.Split(approvalText(messages.English, m), "\n")
	for n, l := range lines {
		lines[n] = printable(l)
	}
	i.Details = strings.Join(lines, "\n")
	if w := m.GetAnswer(); w != nil {
		i.Answer = printable(w.GetKind())
	}
	return i
}
