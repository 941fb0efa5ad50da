package rootless

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// explainTimeout bounds the look at the host after a failed start.
const explainTimeout = 2 * time.Second

// explain says what of this host a workspace without root lacks, why it is needed, and
// the command that allows it.
func explain() string {
	ctx, cancel := context.WithTimeout(context.Background(), explainTimeout)
	defer cancel()
	var b strings.Builder
	for _, r := range probe.UnmetRootless(probe.Run(ctx, probe.Config{})) {
		b.WriteString("; missing: " + r.ID + " (" + r.Found + "), for " + r.Needed + "; to allow it: " + r.Remedy)
	}
	if filtered() {
		b.WriteString("; this process runs under a system call filter, as in a container: if that refuses it, start the container with " +
			"--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined")
	}
	return b.String()
}

// filtered reports whether a seccomp filter holds this process.
func filtered() bool {
	b, err := os.ReadFile("/proc/self/status")
	return err == nil && strings.Contains(string(b), "\nSeccomp:\t2\n")
}
