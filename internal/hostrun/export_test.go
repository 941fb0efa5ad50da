package hostrun

import "io"

// Keep returns what keeps max bytes of what is written to it, and what says what was kept.
func Keep(max int) (io.Writer, func() Output) {
	k := &keeper{max: max}
	return k, k.output
}
