//go:build !amd64

package machine

// tscKHz has no answer: only amd64 has the counter, and Ready refuses other hosts.
func tscKHz() uint64 { return 0 }
