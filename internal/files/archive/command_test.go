package archive_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive"
)

// run runs the program and returns its lines on standard error.
func run(t *testing.T, stdin []byte, args ...string) (code int, stdout []byte, lines []archive.Report) {
	t.Helper()
	mask := unix.Umask(0o022) // the program sets its own
	defer unix.Umask(mask)
	var out, stderr bytes.Buffer
	code = archive.Run(t.Context(), "v1", args, bytes.NewReader(stdin), &out, &stderr)
	if code == archive.ExitUsage {
		return code, out.Bytes(), nil
	}
	d := json.NewDecoder(&stderr)
	d.DisallowUnknownFields()
	for d.More() {
		var r archive.Report
		must(t, d.Decode(&r))
		lines = append(lines, r)
	}
	return code, out.Bytes(), lines
}

func TestRun(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	grow(t, from, 1)
	code, data, lines := run(t, nil, "pack", from)
	if code != archive.ExitOK || len(lines) == 0 || lines[len(lines)-1].Summary == nil {
		t.Fatalf("%d, %+v", code, lines)
	}
	for _, l := range lines[:len(lines)-1] {
		if l.Progress == nil || l.Summary != nil || l.Error != "" {
			t.Errorf("in between: %+v", l)
		}
	}
	packed := *lines[len(lines)-1].Summary
	for name, row := range map[string]struct {
		data []byte
		args []string
		code int
	}{
		"whole":       {data, []string{"verify", "--sha256", packed.SHA256}, archive.ExitOK},
		"cut":         {data[:len(data)-1], []string{"verify"}, archive.ExitFailed},
		"another sum": {data, []string{"verify", "--sha256", strings.Repeat("0", 64)}, archive.ExitFailed},
		"a limit":     {data, []string{"verify", "--max-bytes=1"}, archive.ExitFailed},
		"a directory": {data, []string{"verify", to}, archive.ExitUsage},
	} {
		code, out, lines := run(t, row.data, row.args...)
		if code != row.code || len(out) != 0 || code == archive.ExitOK && *lines[len(lines)-1].Summary != packed {
			t.Errorf("%s: %d, %q, %+v", name, code, out, lines)
		}
	}
	code, out, lines := run(t, data, "unpack", "--sha256", packed.SHA256, to)
	if code != archive.ExitOK || len(out) != 0 || *lines[len(lines)-1].Summary != packed {
		t.Fatalf("%d, %q, %+v", code, out, lines)
	}
	grownUp(t, to)
	if d := cmp.Diff(tree(t, from), tree(t, to)); d != "" {
		t.Error(d)
	}
}

func TestRunFails(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 100), 0o600))
	must(t, os.Symlink(dir, filepath.Join(dir, "link")))
	for _, row := range []struct {
		args []string
		code int
		kind string
		text string
	}{
		{[]string{"pack", "--max-bytes=99", dir}, archive.ExitFailed, "resource_exhausted", "limit of 99"},
		{[]string{"pack", "--max-depth=1000", dir}, archive.ExitFailed, "invalid_argument", "512 levels"},
		{[]string{"pack", filepath.Join(dir, "file")}, archive.ExitFailed, "invalid_argument", "not a directory"},
		{[]string{"pack", filepath.Join(dir, "link")}, archive.ExitFailed, "invalid_argument", "not a directory"},
		{[]string{"unpack", dir}, archive.ExitFailed, "failed_precondition", "into an empty one"},
		{[]string{"unpack", t.TempDir()}, archive.ExitFailed, "data_loss", "cut short"},
		{nil, archive.ExitUsage, "", ""},
		{[]string{"pack"}, archive.ExitUsage, "", ""},
		{[]string{"pack", dir, dir}, archive.ExitUsage, "", ""},
		{[]string{"list", dir}, archive.ExitUsage, "", ""},
		{[]string{"pack", "--max-bytes=x", dir}, archive.ExitUsage, "", ""},
		{[]string{"-h"}, archive.ExitUsage, "", ""},
	} {
		code, _, lines := run(t, nil, row.args...)
		if code != row.code {
			t.Errorf("%q: status %d, want %d: %+v", row.args, code, row.code, lines)
			continue
		}
		if code == archive.ExitUsage {
			continue
		}
		last := lines[len(lines)-1]
		if last.Kind != row.kind || !strings.Contains(last.Error, row.text) || last.Summary == nil {
			t.Errorf("%q: %+v", row.args, last)
		}
	}
}

// Progress comes from the calling goroutine, and not at every entry.
func TestProgress(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		must(t, os.WriteFile(filepath.Join(dir, strings.Repeat("n", i%200+1)+string(rune('a'+i/200))), []byte("x"), 0o600))
	}
	calls := 0
	var out bytes.Buffer
	o := archive.Options{Progress: func(entries, bytes int64) {
		if calls++; entries < bytes || entries > 301 {
			t.Errorf("%d entries, %d bytes", entries, bytes)
		}
	}}
	_, err := archive.Write(t.Context(), &out, open(t, dir), archive.Limits{}, o)
	must(t, err)
	if calls == 0 || calls > 100 {
		t.Errorf("told %d times when packing", calls)
	}
	calls = 0
	o.Progress = func(int64, int64) { calls++ }
	_, err = archive.Read(t.Context(), &out, open(t, t.TempDir()), archive.Limits{}, o)
	must(t, err)
	if calls == 0 || calls > 100 {
		t.Errorf("told %d times when unpacking", calls)
	}
}
