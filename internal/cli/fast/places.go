package fast

import (
	"fmt"
	"os"
	"path/filepath"
)

// Libexec is where packages install the programs that users do not run.
const Libexec = "/usr/libexec/carrel"

// Places are where the programs of carrel that users do not run are looked for: beside this one in a checkout, in libexec of the same
// prefix when installed, and where packages install them.
func Places() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find out where this program is: %w", err)
	}
	beside := filepath.Dir(self)
	return []string{beside, filepath.Join(filepath.Dir(beside), "libexec", "carrel"), Libexec}, nil
}
