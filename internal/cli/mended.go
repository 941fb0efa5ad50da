package cli

import (
	"context"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

type mendedView struct {
	Kind      string `json:"kind"`
	Workspace string `json:"workspace"`
	Done      string `json:"done"`
}

// mended asks the daemon that has just come up. Without an answer up is none the worse: the
// record has it.
func mended(ctx context.Context, host string) []mendedView {
	views := []mendedView{}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := carrel.Dial(ctx, host)
	if err != nil {
		return views
	}
	defer client.Close()
	res, err := client.System().Mended(ctx, connect.NewRequest(&carrelv1.MendedRequest{}))
	if err != nil {
		return views
	}
	for _, m := range res.Msg.GetMended() {
		views = append(views, mendedView{m.GetKind(), m.GetWorkspace(), m.GetDone()})
	}
	return views
}
