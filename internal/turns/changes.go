package turns

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy"
)

// changing are capabilities of commands that do more than read, beside those that end with ".mutate". A step that has one
// of them and says that it only reads is refused: on a host it would run under a profile that makes it fail.
var changing = []policy.Capability{
	policy.FilesystemWrite, policy.FilesystemDelete, policy.FilesystemPermission, policy.FilesystemSystemWrite, policy.FilesystemMount,
	policy.FilesystemDestroy, policy.NetworkConfigure, policy.Persistence, policy.ProcessSignal, policy.ProcessTrace, policy.ProcessPriority,
	policy.SystemPower, policy.SystemConfigure, policy.LogTamper, policy.CarrelTamper, policy.SecurityDisable, policy.ResourceExhaust,
	policy.MessageSend,
}

// changes reports whether one of the capabilities is of a command that changes something.
func changes(capabilities []string) bool {
	return slices.ContainsFunc(capabilities, func(name string) bool {
		c, ok := policy.CapabilityByName(name)
		return !ok || strings.HasSuffix(name, ".mutate") || slices.Contains(changing, c)
	})
}
