// Package ptytest gives tests a terminal: a command runs on it as a person's would, and the
// test types, resizes, hangs up, and waits for what the screen is sent. It must not know what runs.
package ptytest

import (
	"os/exec"
	"testing"

	"github.com/carrel-dev/carrel/test/terminal"
)

// Terminal is a terminal of a test, which fails where it does not do what it should.
type Terminal struct {
	*terminal.Terminal

	t testing.TB
}

// Start runs c with a new terminal of that size as its stdin, stdout, stderr and controlling terminal.
// With answers, the terminal says where its cursor is when it is asked to, as real ones do. It ends with the test.
func Start(t testing.TB, c *exec.Cmd, rows, cols uint16, answers bool) *Terminal {
	t.Helper()
	x, err := terminal.Start(c, rows, cols, answers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.End)
	return &Terminal{x, t}
}

// Expect waits until the screen was sent text.
func (x *Terminal) Expect(text string) {
	x.t.Helper()
	x.ExpectAfter("", text)
}

// ExpectAfter waits until the screen was sent text after what came first.
func (x *Terminal) ExpectAfter(first, text string) {
	x.t.Helper()
	x.must(x.Terminal.ExpectAfter(first, text))
}

// Until waits until f says so of everything that was sent to the screen. what names it for the test's failure.
func (x *Terminal) Until(what string, f func(all string) bool) {
	x.t.Helper()
	x.must(x.Terminal.Until(what, f))
}

// Type sends keys.
func (x *Terminal) Type(keys string) {
	x.t.Helper()
	x.must(x.Terminal.Type(keys))
}

// Resize changes the size of the window.
func (x *Terminal) Resize(rows, cols uint16) {
	x.t.Helper()
	x.must(x.Terminal.Resize(rows, cols))
}

// Wait returns the command's exit code, or 128 and the number of the signal that ended it. The screen has been sent by then what
// the command wrote, unless something else keeps the terminal open.
func (x *Terminal) Wait() int {
	x.t.Helper()
	code, err := x.Terminal.Wait()
	x.must(err)
	return code
}

func (x *Terminal) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}
