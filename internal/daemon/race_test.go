//go:build race

package daemon_test

const raceDetector = true
