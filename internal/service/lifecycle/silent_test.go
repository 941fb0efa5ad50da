package lifecycle_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/internal/service/lifecycle"
)

// procTree makes files of a /proc.
func procTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A thread in vfork with a stopped child is a reason; each half alone is none.
func TestStuck(t *testing.T) {
	for _, c := range []struct {
		thread, child string
		stuck         bool
	}{{"D", "T", true}, {"D", "t", true}, {"D", "R", false}, {"S", "T", false}, {"D", "", false}} {
		files := map[string]string{
			"7/task/7/stat": "7 (carrel) S 1", "7/task/7/children": "8 ",
			"7/task/9/stat": "9 (a) b) " + c.thread + " 1", "7/task/9/children": "10 11 ", "8/stat": "8 (x) T 7",
		}
		if c.child != "" {
			files["11/stat"] = "11 (T) T) " + c.child + " 7"
		}
		if got := lifecycle.Stuck(procTree(t, files), 7); (got != "") != c.stuck {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if got := lifecycle.Stuck(procTree(t, nil), 7); got != "" {
		t.Errorf("of a process that is gone: %q", got)
	}
}

func TestStarved(t *testing.T) {
	line := func(kind, avg60 string) string { return kind + " avg10=0.00 avg60=" + avg60 + " avg300=0.00 total=1\n" }
	for _, c := range []struct {
		files   map[string]string
		starved bool
	}{
		{map[string]string{"pressure/cpu": line("some", "12.00")}, false},
		{map[string]string{"pressure/cpu": line("some", "99.10")}, true},
		{map[string]string{"pressure/cpu": line("some", "12.00"), "pressure/memory": line("some", "90.00") + line("full", "35.00")}, true},
		{map[string]string{"pressure/memory": line("some", "90.00") + line("full", "3.00")}, false},
		{map[string]string{"loadavg": "0.50 1 1 1/1 1"}, false},
		{map[string]string{"loadavg": "100000.00 1 1 1/1 1"}, true},
		{nil, true}, // nothing is known: it is left alone
	} {
		if got := lifecycle.Starved(procTree(t, c.files)); got != c.starved {
			t.Errorf("%v: %v", c.files, got)
		}
	}
}
