package crash_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// removalPoints are those that TestRemovalPoints arms.
var removalPoints = []string{
	"daemon.remove.planned", "daemon.remove.recorded", "daemon.remove.signed", "daemon.remove.file-gone", "daemon.remove.done",
}

// A running daemon removes the files of the record that were kept for their time, and is killed
// at every step. After each start the record verifies, what is half removed is removed, and
// every file that is to be kept is there as it was.
func TestRemovalPoints(t *testing.T) {
	h := newHost(t)
	config := filepath.Join(h.dir, "carreld.yaml")
	// Homes that are kept for a second have the daemon look every second.
	must(t, os.WriteFile(config, []byte("audit:\n  max_size: 256KiB\n  retention: 2h\n  checkpoint_every: 1s\nhome_retention: 1s\n"), 0o644))
	tryUp := func() result {
		return h.try(append([]string{"up", "--detach", "--prefix", h.prefix, "--config", config}, h.flags()...)...)
	}
	if r := tryUp(); r.code != 0 {
		t.Fatalf("cannot bring carrel up: %v", r)
	}
	h.carrel(t, "create", "crk removal")
	dir := h.data + "/daemon/audit"
	owner := ownerOf(t, dir+"/audit.jsonl")
	points := append(slices.Clone(removalPoints), "daemon.remove.file-gone#3")
	for i, point := range points {
		t.Run(point, func(t *testing.T) {
			word := rand.Text()
			h.carrel(t, "exec", "crk removal", "--", "echo", word)
			h.settled(t)
			daemon, err := h.part("daemon")
			must(t, err)
			must(t, kill(daemon))
			young := 0
			if i == len(points)-1 { // none that is younger lets an older one go
				young = 20
			}
			age(t, dir, owner, young)
			goes, kept := h.record(t)
			if len(goes) < 4 || !strings.Contains(kept, `"pad"`) {
				t.Fatalf("%d files are to go, and %d bytes to stay", len(goes), len(kept))
			}
			there := func() (n int) {
				for _, file := range goes {
					if _, err := os.Stat(dir + "/" + file); err == nil {
						n++
					}
				}
				return n
			}
			name, count, _ := strings.Cut(point, "#")
			n := 1
			if count != "" {
				_, err := fmt.Sscan(count, &n)
				must(t, err)
			}
			mark := h.logEnd()
			h.arm(t, name, n)
			_ = tryUp() // it may be killed before it has said that it is up
			until(t, "the end of the daemon at "+point, func() bool { return h.fired(name, mark) })
			want := len(goes)
			switch name {
			case "daemon.remove.file-gone":
				want -= n
			case "daemon.remove.done":
				want = 0
			}
			// "carrel up" that meets the end of the daemon starts it again, and that one goes on.
			if n := there(); n != want && h.try("ls").code != 0 {
				t.Errorf("%d of %d files are left where %d are to be", n, len(goes), want)
			}
			dead, err := exec.CommandContext(t.Context(), bin+"/carreld", "--verify-audit", "--config", config,
				"--data-dir", h.data).CombinedOutput()
			if err != nil || !strings.Contains(string(dead), "holds: ") {
				t.Errorf("as it was left: %v\n%s", err, dead)
			}
			if r := tryUp(); r.code != 0 {
				t.Fatalf("carrel does not come up: %v", r)
			}
			verify := func() {
				t.Helper()
				if out := h.carrel(t, "audit", "verify"); !strings.Contains(out, "countersigned") {
					t.Errorf("%s", out)
				}
			}
			verify()
			until(t, "the end of the removal", func() bool { return there() == 0 })
			verify()
			_, now := h.record(t)
			if !strings.HasPrefix(now, kept) {
				t.Error("not all that is to be kept is there as it was")
			}
			if !strings.Contains(now, `"event":"audit.removed"`) || !strings.Contains(now, `"`+goes[len(goes)-1]+`"`) {
				t.Error("no record says what was removed")
			}
		})
	}
	h.carrel(t, "destroy", "--purge", "crk removal")
	h.gone(t)
}

// age writes records of three hours ago that fill files of the log, and behind them some of now.
func age(t *testing.T, dir string, owner *syscall.Stat_t, young int) {
	t.Helper()
	l, err := audit.Open(t.Context(), audit.Options{Path: dir + "/audit.jsonl", MaxSize: 256 << 10})
	must(t, err)
	pad, err := json.Marshal(map[string]string{"pad": strings.Repeat("x", 30_000)})
	must(t, err)
	const old = 45 // five files, and a sixth that is begun
	for i := range old + 1 + young {
		r := audit.Record{Type: audit.Lifecycle, Principal: "system", Status: audit.StatusOK, Data: pad, Time: time.Now()}
		if i < old {
			r.Time = r.Time.Add(-3 * time.Hour)
		}
		_, err := l.Append(t.Context(), r) // at each a file may be full
		must(t, err)
	}
	must(t, l.Close())
	names, err := filepath.Glob(dir + "/audit*.jsonl")
	must(t, err)
	for _, n := range names {
		must(t, os.Chown(n, int(owner.Uid), int(owner.Gid)))
	}
}

func ownerOf(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	fi, err := os.Stat(path)
	must(t, err)
	return fi.Sys().(*syscall.Stat_t)
}

// record returns the files that are to go, the oldest first: those that are full and whose last
// record is older than they are kept for, before the first that is not; and all that stands
// behind them.
func (h *host) record(t *testing.T) (goes []string, kept string) {
	t.Helper()
	dir := h.data + "/daemon/audit/"
	names, err := filepath.Glob(dir + "audit-*.jsonl")
	must(t, err)
	slices.Sort(names)
	for _, n := range append(names, dir+"audit.jsonl") {
		b, err := os.ReadFile(n)
		must(t, err)
		b = bytes.TrimRight(b, "\x00") // zeros follow the lines
		lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
		last, err := audit.Decode(lines[len(lines)-1])
		must(t, err)
		if filepath.Base(n) != "audit.jsonl" && kept == "" && time.Since(last.Time) > 2*time.Hour {
			goes = append(goes, filepath.Base(n))
			continue
		}
		kept += string(b)
	}
	return goes, kept
}
