package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/watch"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) approvalsWatchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "watch",
		Short: "See what waits as it comes, and answer it",
		Long: `See what waits for a person as it comes, all that decides about it, and answer with a key.
Needs a terminal. With -o json, or where there is none, each approval is a line of JSON as it
comes or changes, until a signal ends it.`,
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
		lines := json.NewEncoder(a.Out)
		lines.SetEscapeHTML(false)
		return s.stream(c.Context(), func(m *carrelv1.Approval) error {
			if m == nil {
				return nil
			}
			return lines.Encode(approvalViewOf(m))
		})
	}
	return c
}

// approvalSource is package watch's way to the daemon.
type approvalSource struct{ client *carrel.Client }

// stream calls f with each approval, and with nil once when the pending ones are through.
func (s *approvalSource) stream(ctx context.Context, f func(*carrelv1.Approval) error) error {
	st, err := s.client.Approvals().WatchApprovals(ctx, connect.NewRequest(&carrelv1.WatchApprovalsRequest{}))
	if err != nil {
		return err
	}
	defer st.Close()
	for st.Receive() {
		if m := st.Msg().GetApproval(); m != nil {
			if err := f(m); err != nil {
				return err
			}
		}
		if st.Msg().GetCaughtUp() {
			if err := f(nil); err != nil {
				return err
			}
		}
	}
	if err := st.Err(); err != nil {
		return err
	}
	return fmt.Errorf("cannot go on watching: the daemon ended it: %w", io.ErrUnexpectedEOF)
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
	res, err := s.client.Approvals().ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{PageSize: 100}))
	if err != nil {
		return nil, err
	}
	var items []watch.Item
	for _, m := range res.Msg.GetApprovals() {
		if m.GetState() != string(approval.Pending) {
			items = append(items, itemOf(m))
		}
	}
	return items, nil
}

// Answer implements watch.Source. The question was on the terminal, all of it.
func (s *approvalSource) Answer(ctx context.Context, id string, kind watch.Kind, reason string) error {
	_, err := s.client.Approvals().AnswerApproval(ctx, connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: id, Kind: string(kind), Reason: reason, Terminal: true}))
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot answer approval %s: it is gone: %w", id, err)
	}
	return err
}

// itemOf is an approval as it is shown: without a character that a terminal interprets.
func itemOf(m *carrelv1.Approval) watch.Item {
	v := approvalViewOf(m)
	i := watch.Item{
		ID: v.ID, State: v.State, Pending: v.State == string(approval.Pending), Risk: v.RiskScore,
		Where: printable(v.Key), By: printable(v.Requester), What: printable(v.what()),
		Asked: v.AskedAt, Until: v.Until, Threads: v.Thread != "" && !v.OnceOnly, Answer: v.State,
	}
	lines := strings.Split(v.text(), "\n")
	for n, l := range lines {
		lines[n] = printable(l)
	}
	i.Details = strings.Join(lines, "\n")
	if w := v.Answer; w != nil {
		i.Answer = w.Kind
	}
	return i
}
