package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
)

// However long a program makes its log, the end of it is what is read.
func TestTailIsBounded(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("of before\n" + strings.Repeat("a", 10_000) + "\nthe end\n"); err != nil {
		t.Fatal(err)
	}
	if got := cli.Tail(f, 10); len(got) > 4200 || !strings.HasSuffix(got, "the end") || strings.Contains(got, "of before") {
		t.Errorf("%d bytes, ...%q", len(got), got[max(0, len(got)-20):])
	}
	if got := cli.Tail(f, 1<<20); got != "" {
		t.Errorf("of a log that was cut off: %q", got)
	}
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	if got := cli.Tail(f, 10); len(got) > 4200 {
		t.Errorf("%d bytes of a terabyte", len(got))
	}
}
