package patch_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

func fifo(t testing.TB, path string) {
	t.Helper()
	must(t, unix.Mkfifo(path, 0o600))
}
