package steps

import (
	"bytes"
	"context"
	"errors"
	"os"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

// FailedServices returns what counts the services that have failed, by a command that only reads and is held to it.
func FailedServices(run Run, limit time.Duration) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		if _, err := os.Stat("/run/systemd/system"); err != nil {
			return 0, errors.New("there is no systemd here")
		}
		r, err := run(ctx, runtime.HostCommand{
			Argv:     []string{"systemctl", "list-units", "--state=failed", "--type=service", "--plain", "--no-legend", "--no-pager"},
			ReadOnly: true, Timeout: limit, MaxOutput: 64 << 10,
		})
		switch {
		case err != nil:
			return 0, err
		case r.Status == nil || r.Status.Code != 0:
			return 0, errors.New("systemctl does not say it")
		}
		return bytes.Count(r.Stdout, []byte("\n")), nil
	}
}
