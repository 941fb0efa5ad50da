package staged

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// Discard removes a staged copy: what dir has under a name, an upper directory with whatever the run left in it. dir is one that
// only the caller writes. It can be called again after an error, and does the rest.
func Discard(ctx context.Context, dir *os.File, name string) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return bad("cannot discard %q: it must be one name in the directory", name)
	}
	if err := removal.Remove(ctx, dir, name); err != nil {
		return fmt.Errorf("cannot discard all of the copy: %w", err)
	}
	return nil
}
