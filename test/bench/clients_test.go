package main

import "testing"

// The echo of a key is told from that of the one before.
func TestNextKey(t *testing.T) {
	key, last := nextKey(), ""
	for range 10 {
		k := key()
		if len(k) != 1 || k == last {
			t.Fatalf("%q after %q", k, last)
		}
		last = k
	}
}
