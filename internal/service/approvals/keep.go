package approvals

import (
	"context"
	"strings"

	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// keepOf is what may be remembered of a plan, without secrets in what people read. What is compared are digests of the words as they are.
func keepOf(x *gate.Question, p operation.Plan) *approval.Keep {
	if p.Keep == nil {
		return nil
	}
	k := &approval.Keep{By: p.Keep.By, Thread: p.Keep.Session}
	for _, s := range p.Keep.Steps {
		text, _ := record.ShownCommand(x.Record.Redactor(), s.Command)
		k.Steps = append(k.Steps, approval.Step{Text: s.Target + ": " + text, Key: s.Key})
	}
	return k
}

// remembered lets a plan pass if people have allowed each of its commands for the session before; false if they have not. A permission
// that was taken back is gone from the store.
func (q *Questions) remembered(ctx context.Context, ask approval.Ask) (pass gate.Pass, ok bool, err error) {
	if ask.Keep == nil || ask.Final {
		return pass, false, nil
	}
	kept, err := q.cfg.Store.Permissions(ctx, ask.Keep.By, ask.Subject.Workspace, ask.Keep.Thread)
	if err != nil {
		return pass, false, err
	}
	list := make([]approval.Permission, len(kept))
	for i, p := range kept {
		list[i] = p.Permission
	}
	used, ok := ask.Covering(list)
	if !ok {
		return pass, false, nil
	}
	var texts []string
	for _, p := range used {
		pass.Remembered = append(pass.Remembered, string(p.From))
		texts = append(texts, string(p.From)+" remembered")
	}
	pass.Text = strings.Join(texts, "; ")
	return pass, true, nil
}
