package launch_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// One workspace leaves half of the host's files, and never has fewer than programs count on.
func TestOpenFilesAreShared(t *testing.T) {
	for _, tt := range []struct {
		pids, files int64
		most        uint64
		want        int64
	}{
		{512, 4096, 9223372036854775807, 4096},
		{512, 4096, 2466186, 2408},
		{512, 4096, 800000, 1024},
		{64, 4096, 800000, 4096},
		{512, 512, 100, 512},
		{0, 4096, 8192, 4096},
	} {
		l := workspace.Limits{Pids: tt.pids, OpenFiles: tt.files}
		f := launch.ShareFiles(&l, tt.most)
		if l.OpenFiles != tt.want || (f != nil) != (tt.want != tt.files) {
			t.Errorf("%+v: %d, %v", tt, l.OpenFiles, f)
		}
	}
}
