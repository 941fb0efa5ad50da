//go:build race

package executor_test

const raceDetector = true
