// Package crashpoint names the points at which a test kills a process of carrel, to prove that
// carrel recovers. In a build with the tag crashpoints, a process that reaches a point that a test
// has armed ends there as by SIGKILL. In every other build the calls are empty, are inlined, and
// leave nothing in the binary, not even the names.
//
// The names are literals, PART.OPERATION.POINT, each at one call: test/crash finds them in the
// source and fails for one that it does not exercise. The package must not change what a process
// does in any other way.
package crashpoint
