package broker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/test/smalldisk"
)

// While another takes each block that becomes free, workspaces can be ended, also by a broker that was
// started on the full disk, and the ledger is rewritten once there is room.
func TestLedgerOnAFullDisk(t *testing.T) {
	dir := smalldisk.Mount(t, "128m")
	l := openLedger(t, dir)
	const living = 1000
	for n := range living {
		put(t, l, entry(n, workspace.StateStopped))
	}
	filling, err := os.OpenFile(filepath.Join(dir, "filling"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer filling.Close()
	fill := func() {
		for size := 1 << 20; size > 0; {
			if _, err := filling.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
	}
	for n := range living {
		fill()
		if n%250 == 100 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			fill()
			l = openLedger(t, dir)
		}
		put(t, l, entry(n, workspace.StateDestroying), entry(n, workspace.StateDestroyed))
	}
	if err := filling.Truncate(0); err != nil {
		t.Fatal(err)
	}
	put(t, l, entry(living, workspace.StateStopped))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openLedger(t, dir)
	defer l.Close()
	if all := l.All(); len(all) != 1 || all[0].Name != entry(living, workspace.StateStopped).Name {
		t.Errorf("%d workspaces live: %v", len(all), all)
	}
}
