// Package crashpoint names the places where a process of carrel may be killed and
// everything must still come right. In a build with the tag crashpoints, a process that
// reaches a place that a test has armed ends there as by SIGKILL. In every other build
// the calls are empty, are inlined, and leave nothing in the binary, not even the names.
//
// The names are literals, PART.OPERATION.PLACE, each at one call: test/crash finds them
// in the source and fails for one that it does not exercise. The package must not change
// what a process does in any other way.
package crashpoint
