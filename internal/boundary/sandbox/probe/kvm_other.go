//go:build !amd64

package probe

import (
	"fmt"
	"runtime"
)

var hlt []byte

// runCode says no: an instruction of a guest has been tried on amd64 only.
func runCode(kvm int, _ []byte) error {
	g, err := makeGuest(kvm)
	if err != nil {
		return err
	}
	g.close()
	return fmt.Errorf("a machine can be made, but no instruction was tried on %s", runtime.GOARCH)
}
