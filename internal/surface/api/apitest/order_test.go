package apitest_test

import (
	"io"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// As with an executor, who has read output to its end can ask for the status.
func TestStatusIsThereAtTheEndOfOutput(t *testing.T) {
	g, ctx := &apitest.Gate{}, t.Context()
	alice := principal.Principal{Kind: principal.User, UID: 1000}
	if _, _, err := g.Create(ctx, alice, workspace.Wanted{Key: "demo"}); err != nil {
		t.Fatal(err)
	}
	cmd, err := g.Detach(ctx, alice, "demo", execapi.ExecParams{Argv: []string{"sleep", "60"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer apitest.HoldEnd(t, g, alice, "demo", cmd)()
	_, files, err := g.Output(ctx, alice, "demo", execapi.OutputParams{ID: cmd, Follow: true}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer files[0].Close()
	if err := g.Signal(ctx, alice, "demo", execapi.StopTaskParams{ID: cmd, Signal: 9}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, files[0]); err != nil {
		t.Fatal(err)
	}
	list, err := g.ListCommands(ctx, alice, "demo")
	if err != nil || len(list) != 1 || list[0].Status == nil {
		t.Errorf("at the end of the output: %+v, %v", list, err)
	}
}
