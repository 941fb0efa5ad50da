// Package userdb runs the tools of the host's user database for tests that share it: while another
// holds its locks, they are tried again.
package userdb

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"
)

// patience is how long locks of others are waited for; a tool holds them for some milliseconds.
const patience = 30 * time.Second

// Run runs a tool, which changes nothing where it finds a lock. The error has what it said.
func Run(ctx context.Context, tool string, args ...string) error {
	for end := time.Now().Add(patience); ; {
		out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput()
		if err == nil {
			return nil
		}
		if !bytes.Contains(out, []byte("lock")) || time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("%s %q: %w: %s", tool, args, err, out)
		}
		<-time.After(100 * time.Millisecond)
	}
}
