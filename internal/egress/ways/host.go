package ways

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// ReadHost reads the file with the rules of the host, which hold for every workspace of the daemon. One that is not there
// is conf.Default. A file that others than root and the daemon's user may change, or that cannot be read, is an
// error. The sets of package clients are not known: the daemon runs no programs.
func ReadHost(path string) (*conf.Config, error) {
	// A link to nothing is not taken for a missing file: what it would deny is not known.
	switch _, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return conf.Default(), nil
	case err != nil:
		return nil, fmt.Errorf("cannot read the network rules of the host: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	b, err := config.ReadTrusted(path, "network rules", conf.MaxFile)
	if err != nil {
		return nil, err
	}
	return conf.Parse(path, b)
}
