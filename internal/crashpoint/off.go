//go:build !crashpoints

package crashpoint

// Here is a place that a crash may come at.
func Here(string) {}

// Env is what a child's environment must hold for its own places; nothing in this build.
func Env() []string { return nil }

// Lend is Env for an executor, which sees no file of the host.
func Lend() []string { return nil }
