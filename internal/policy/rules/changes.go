package rules

import (
	"slices"
	"strings"
)

// mutating are capabilities of commands that do more than read, beside those that end with ".mutate".
var mutating = []Capability{
	FilesystemWrite, FilesystemDelete, FilesystemPermission, FilesystemSystemWrite, FilesystemMount, FilesystemDestroy, NetworkConfigure,
	Persistence, ProcessSignal, ProcessTrace, ProcessPriority, SystemPower, SystemConfigure, LogTamper, CarrelTamper, SecurityDisable,
	ResourceExhaust, MessageSend,
}

// Changes reports whether one of the capabilities is of a command that changes something. A name that is not known is.
func Changes(capabilities []string) bool {
	return slices.ContainsFunc(capabilities, func(name string) bool {
		c, ok := CapabilityByName(name)
		return !ok || strings.HasSuffix(name, ".mutate") || slices.Contains(mutating, c)
	})
}
