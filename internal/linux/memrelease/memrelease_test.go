package memrelease_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/linux/memrelease"
)

func TestOwn(t *testing.T) {
	const maps = `00400000-0056f000 r--p 00000000 00:01 1025       /memfd:carrel-executor (deleted)
0056f000-00700000 r-xp 0016f000 00:01 1025       /memfd:carrel-executor (deleted)
00700000-00720000 rw-p 00300000 00:01 1025       /memfd:carrel-executor (deleted)
00720000-00760000 rw-p 00000000 00:00 0
c000000000-c000400000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r--p 00000000 00:01 77 /usr/lib/other
7f0000001000-7f0000002000 r--s 00000000 00:01 1025 /memfd:carrel-executor (deleted)
7ffff0000000-7ffff0001000 r-xp 00000000 00:00 0  [vdso]
`
	want := []memrelease.Span{{From: 0x400000, To: 0x56f000}, {From: 0x56f000, To: 0x700000}}
	if got := memrelease.Own(maps, 0x570000); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if got := memrelease.Own(maps, 0x800000); got != nil {
		t.Errorf("code of no file: %x", got)
	}
}

// Pages are dropped and the program goes on.
func TestGiveBack(t *testing.T) {
	if resident(t) == 0 {
		t.Fatal("nothing of the test's own file is resident")
	}
	before := resident(t)
	memrelease.GiveBack()
	after := resident(t)
	t.Logf("%d KiB of files before, %d after", before, after)
	if after >= before {
		t.Errorf("%d KiB of files before, %d after", before, after)
	}
}

// resident returns the mapped and resident pages of files of this process, in KiB.
func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
