package cli_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
)

// A daemon that answers nothing holds nobody up for ever, and work that takes long has its time.
func TestAnswersAreNotWaitedForForEver(t *testing.T) {
	for name, c := range map[string]struct {
		req   any
		takes time.Duration
	}{
		"ls":                  {&carrelv1.ListRequest{}, 2 * time.Minute},
		"create, with --wait": {&carrelv1.CreateRequest{ApprovalWaitMs: 300_000}, 7 * time.Minute},
		"detach, with --wait": {
			&carrelv1.DetachRequest{Command: &carrelv1.Command{ApprovalWaitMs: 300_000}}, 7 * time.Minute,
		},
		"destroy": {&carrelv1.DestroyRequest{}, 12 * time.Hour},
		"verify":  {&carrelv1.VerifyRequest{}, 12 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				err := cli.Bounded(t.Context(), c.req, silent)
				if time.Since(began) != c.takes || !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "carrel doctor") {
					t.Errorf("%v: %v", time.Since(began), err)
				}
				// Whoever gave up is not told that carrel is silent.
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := cli.Bounded(ctx, c.req, silent); !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}
