package root_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
)

// A workspace with a limit on disk space, from the command line: what it shows, what a bomb
// comes to, and its way into an archive and back.
func TestDiskLimit(t *testing.T) {
	needRoot(t)
	if err := image.Ready(); err != nil {
		t.Skipf("skipped: %v", err)
	}
	d, neighbour := shared.desk(t, "--disk", "64MiB"), shared.desk(t)
	out := shared.carrel(t, "inspect", "-o", "json", d.Key)
	var w struct {
		Limits struct {
			DiskBytes int64 `json:"disk_bytes"`
		} `json:"limits"`
		Controls []struct{ ID, State string }
	}
	if err := json.Unmarshal([]byte(out), &w); err != nil || w.Limits.DiskBytes != 64<<20 {
		t.Fatalf("%+v, %v", w, err)
	}
	for _, c := range w.Controls {
		if c.ID == "disk" && c.State != "verified" {
			t.Errorf("%+v", c)
		}
	}
	d.sh(t, "echo kept > file; mkdir -p a/b; head -c 1M /dev/urandom > a/b/c; sha256sum a/b/c > sum")
	if r := d.try("/bin/sh", "-c", "head -c 100M /dev/zero > /tmp/bomb"); r.code == 0 || !strings.Contains(r.err, "No space left on device") {
		t.Errorf("%+v", r)
	}
	neighbour.sh(t, "head -c 80M /dev/zero > file; rm file")
	var usage []struct {
		Key       string `json:"key"`
		DiskBytes int64  `json:"disk_bytes"`
	}
	if err := json.Unmarshal([]byte(shared.carrel(t, "top", "--once", "-o", "json", d.Key, neighbour.Key)), &usage); err != nil ||
		len(usage) != 2 {
		t.Errorf("%+v, %v", usage, err)
	}
	for _, u := range usage {
		if ok := u.DiskBytes == -1; u.Key == neighbour.Key && !ok {
			t.Errorf("without a limit: %+v", u)
		}
		if u.Key == d.Key && (u.DiskBytes < 32<<20 || u.DiskBytes > 64<<20) {
			t.Errorf("with a limit: %+v", u)
		}
	}
	d.sh(t, "rm /tmp/bomb")
	if r := shared.try(nil, "", "update", "--disk", "32MiB", d.Key); r.code == 0 || !strings.Contains(r.err, "can grow and not shrink") {
		t.Errorf("shrunk: %+v", r)
	}
	if r := shared.try(nil, "", "update", "--disk", "64MiB", neighbour.Key); r.code == 0 || !strings.Contains(r.err, "created without one") {
		t.Errorf("limited afterwards: %+v", r)
	}
	d.sh(t, "cat file")
	shared.carrel(t, "archive", "create", d.Key)
	t.Cleanup(func() { shared.try(nil, "", "archive", "rm", d.Key) })
	shared.carrel(t, "destroy", "--purge", d.Key)
	shared.carrel(t, "restore", "--disk", "48MiB", d.Key)
	if out := d.sh(t, "sha256sum -c --quiet sum && cat file && df -B1 --output=size ~ | tail -1"); !strings.HasPrefix(out, "kept") {
		t.Errorf("restored: %q", out)
	} else {
		t.Log(out)
	}
}
