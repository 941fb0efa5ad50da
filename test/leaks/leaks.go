// Package leaks holds the tests of a package to ending every goroutine that they started.
//
// It waits longer than goleak does by itself. net/http keeps a connection half open for
// 500 ms after a server has refused the rest of a body, and a loaded host is slow; neither
// is a leak. What is still there after the wait is one.
package leaks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// wait is for how long goroutines may take to end after the last test.
const wait = 10 * time.Second

// Main runs the tests of a package and ends the process. It fails where the tests passed
// but goroutines are left. The functions run before the process ends, failed or not.
func Main(m *testing.M, cleanup ...func()) {
	code := m.Run()
	if code == 0 {
		if err := Find(wait); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: Errors on successful test run: %v\n", err)
			code = 1
		}
	}
	for _, f := range cleanup {
		f()
	}
	os.Exit(code)
}

// Find says which goroutines are left after it has waited that long for them to end, nil for none.
func Find(within time.Duration) error {
	for end := time.Now().Add(within); ; {
		err := goleak.Find()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
