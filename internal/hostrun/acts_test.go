package hostrun_test

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// acting has this test's program be an attacker, or a helper of a test, of that name.
const acting = "CARREL_HOSTRUN_ACT"

func act(name string, args []string) int { return 99 }

// signalled is a context that SIGUSR1 ends.
func signalled() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), unix.SIGUSR1)
	return ctx
}

var _ = os.Args
