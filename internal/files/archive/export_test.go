package archive

import "testing"

// SetMaxExtents has sparse files packed in so many pieces at most, for the rest of a test.
func SetMaxExtents(t testing.TB, n int64) {
	was := maxExtents
	maxExtents = n
	t.Cleanup(func() { maxExtents = was })
}
