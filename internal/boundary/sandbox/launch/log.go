package launch

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// maxSaid is how much of what one executor writes to stderr goes into the log.
const maxSaid = 16 << 10

// LogOf returns a pipe for Config.Log. What the executor writes to it is logged, up to a bound. A full
// pipe, or the end of this process, does not block the executor.
func LogOf(name id.Workspace, log *slog.Logger) (*os.File, error) {
	r, w, err := os.Pipe() // non-blocking on both ends
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for the log of %s: %w", name, err)
	}
	go func() {
		defer r.Close()
		var b [512]byte
		for said := 0; ; {
			n, err := r.Read(b[:])
			if n > 0 && said < maxSaid {
				said += n
				log.Warn("an executor says", "workspace", name, "text", strings.TrimSpace(string(b[:n])))
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					log.Warn("cannot read what an executor says", "workspace", name, "error", err)
				}
				return
			}
		}
	}()
	return w, nil
}
