package crash_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// hostScenarios are those of up and down, and of what only a start of the broker does.
var hostScenarios = []scenario{
	{name: "up", points: []string{
		"cli.up.locked", "cli.up.dir-made#1", "cli.up.dir-made#2", "cli.up.data-made", "cli.file.written#1", "cli.up.noted#1",
		"cli.up.account-made", "cli.up.dir-made#3", "cli.up.dir-made#4", "cli.up.noted#2",
		"cli.file.written#3", "cli.up.settings-written", "cli.start.launched#1", "cli.file.written#4", "cli.start.noted#1", "cli.start.ready#1",
		"cli.up.socket-made", "cli.start.launched#2", "cli.file.written#5", "cli.start.noted#2", "cli.start.ready#2", "cli.up.daemon-started",
		"cli.up.answers",
	}},
	{name: "down", points: []string{
		"cli.down.workspaces-stopped", "cli.down.part-ended#1", "cli.down.part-ended#2", "cli.down.runtime-removed", "cli.down.cgroups-removed",
		"cli.down.account-removed", "cli.down.data-removed", "cli.file.written",
	}},
	{name: "purge", points: []string{
		"cli.down.account-removed", "cli.down.data-removed", "cli.down.note-removed#1", "cli.down.note-removed#2", "cli.down.dir-removed#1",
		"cli.down.dir-removed#2",
	}},
	{name: "account", points: []string{"cli.up.group-made#1", "cli.up.group-made#2", "cli.up.account-made", "cli.down.user-removed"}},
	{name: "retention", points: []string{"broker.forget.removed", "daemon.forget.removed"}},
	{name: "compaction", points: []string{"broker.ledger.compacted", "broker.ledger.replaced"}},
}

// armed arms one point, given with its count.
func (h *host) armed(t *testing.T, point string) (name string) {
	t.Helper()
	name, count, _ := strings.Cut(point, "#")
	n := 1
	if count != "" {
		_, err := fmt.Sscan(count, &n)
		must(t, err)
	}
	h.arm(t, name, n)
	return name
}

// instance is where to look, also where no settings have been written yet.
func (h *host) instance() check.Instance {
	if in, err := check.Read(h.data, h.prefix); err == nil {
		return in
	}
	sum := sha256.Sum256([]byte(h.data))
	return check.Instance{Data: h.data, Runtime: h.run, Cgroup: "carrel-" + hex.EncodeToString(sum[:4]), Prefixes: []string{h.prefix}}
}

// Killed at every point of up: the next up succeeds, and so does a purge instead of it.
func TestUpPoints(t *testing.T) {
	for _, p := range hostScenarios[0].points {
		t.Run(p, func(t *testing.T) {
			for _, then := range []string{"up", "purge"} {
				h := newHost(t)
				name := h.armed(t, p)
				if r := h.tryUp(); r.code != -1 || !h.fired(name, 0) {
					t.Fatalf("up was not killed at %s: %v", p, r)
				}
				if then == "up" {
					h.up(t)
					h.works(t)
					h.gone(t)
					continue
				}
				in := h.instance()
				if r := h.tryDown("--purge"); r.code != 0 {
					t.Errorf("purge: %v", r)
				}
				h.isGone(t, in)
			}
		})
	}
}

// works sees that a workspace can be made and used.
func (h *host) works(t *testing.T) {
	t.Helper()
	h.carrel(t, "create", "crk works")
	h.carrel(t, "exec", "crk works", "--", "true")
	h.settled(t)
	h.look(t, check.Expect{Any: true})
	h.carrel(t, "destroy", "--purge", "crk works")
	h.settled(t)
	h.look(t, check.Expect{})
}

// Killed at every point of down: down again, or up.
func TestDownPoints(t *testing.T) {
	for _, p := range hostScenarios[1].points {
		t.Run(p, func(t *testing.T) {
			h := newHostUp(t)
			h.carrel(t, "create", "crk stays")
			h.carrel(t, "exec", "crk stays", "--", "/bin/sh", "-c", "echo kept > file; sleep 1000 > /dev/null 2>&1 &")
			for _, then := range []string{"down", "up"} {
				name := h.armed(t, p)
				if r := h.tryDown(); r.code != -1 || !h.fired(name, 0) {
					t.Fatalf("down was not killed at %s: %v", p, r)
				}
				if r := (result{}); then == "down" {
					if r = h.tryDown(); r.code != 0 {
						t.Errorf("down again: %v", r)
					}
				}
				h.up(t)
				if out := h.carrel(t, "exec", "crk stays", "--", "cat", "file"); out != "kept\n" {
					t.Errorf("the file holds %q", out)
				}
				h.settled(t)
				h.look(t, check.Expect{Any: true})
			}
			h.gone(t)
		})
	}
}

// Killed at every point of down --purge: the next one comes to the end.
func TestPurgePoints(t *testing.T) {
	for _, p := range hostScenarios[2].points {
		t.Run(p, func(t *testing.T) {
			h := newHostUp(t)
			in := h.instance()
			name := h.armed(t, p)
			if r := h.tryDown("--purge"); r.code != -1 || !h.fired(name, 0) {
				t.Fatalf("down was not killed at %s: %v", p, r)
			}
			if r := h.tryDown("--purge"); r.code != 0 {
				t.Errorf("purge again: %v", r)
			}
			h.isGone(t, in)
		})
	}
}

// asAlone runs its arguments on what looks like a host of their own: in a mount namespace
// whose /etc has no user of carrel's and whose /run is empty. All instances of a host
// share the daemon's account, and only the first makes it and the last removes it.
const asAlone = `set -e
mkdir "$1/upper" "$1/work"
mount -t overlay carrel-crash -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mount -t tmpfs carrel-crash /run
for f in passwd group shadow gshadow; do
  # Ids that are in use stay taken: no user may be removed whose id has processes.
  sed 's/^carrel/elsewhere/' /etc/$f | grep -v ':carrel workspace:' > "$1/kept"
  cat "$1/kept" > /etc/$f
done
shift
for command; do
  code=0
  /bin/sh -c "$command" || code=$?
  echo "code $code"
done
cut -d: -f1 /etc/passwd /etc/group /etc/shadow /etc/gshadow | grep carrel || true
ls /run
`

// Killed at every point at which the account is made or removed: the next up or down
// knows what is its own.
func TestAccountPoints(t *testing.T) {
	for _, p := range hostScenarios[3].points {
		t.Run(p, func(t *testing.T) {
			for _, second := range []string{"up --detach", "down --purge"} {
				h := newHost(t)
				h.armed(t, p)
				flags := " " + strings.Join(h.flags(), " ")
				up, down := bin+"/carrel up --detach"+flags+" >/dev/null", bin+"/carrel down --purge"+flags+" >/dev/null"
				commands := []string{up, bin + "/carrel " + second + flags + " >/dev/null", down}
				want := "code 137\ncode 0\ncode 0\n"
				if strings.HasPrefix(p, "cli.down") {
					commands = append([]string{up}, down, bin+"/carrel "+second+flags+" >/dev/null", down)
					want = "code 0\n" + want
				}
				dir := h.dir + "/alone"
				must(t, os.Mkdir(dir, 0o755))
				c := exec.CommandContext(
					t.Context(), "unshare", append([]string{"--mount", "--propagation", "private", "/bin/sh", "-c", asAlone, "sh", dir}, commands...)...,
				)
				c.Env = h.command(t.Context()).Env
				var said bytes.Buffer
				c.Stderr = &said
				out, err := c.Output()
				if err != nil || string(out) != want {
					t.Errorf("then %s: %q, want %q: %v\n%s", second, out, want, err, said.String())
				}
			}
		})
	}
}

// Killed while the broker's ledger is rewritten, at a start and while it serves.
func TestCompactionPoints(t *testing.T) {
	for _, p := range hostScenarios[5].points {
		for _, serving := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/serving=%v", p, serving), func(t *testing.T) { compacted(t, p, serving) })
		}
	}
}

func compacted(t *testing.T, point string, serving bool) {
	h := newHostUp(t)
	h.carrel(t, "create", "crk stays")
	broker, err := h.part("broker")
	must(t, err)
	must(t, kill(broker))
	path := h.data + "/broker/ledger.jsonl"
	b, err := os.ReadFile(path)
	must(t, err)
	last := b[bytes.LastIndexByte(b[:len(b)-1], '\n')+1:]
	if !json.Valid(last) {
		t.Fatalf("the ledger ends with %q", last)
	}
	lines := (1<<20)/len(last) + 2
	if serving { // the next line makes it too long
		lines = (1<<20 - len(b)) / len(last)
	}
	must(t, os.WriteFile(path, append(b, bytes.Repeat(last, lines)...), 0o600))
	if serving {
		h.up(t)
		broker, err := h.part("broker")
		must(t, err)
		name := h.armed(t, point)
		h.try("pause", "crk stays") // it may be answered before the broker ends
		until(t, "the broker to be killed at "+point, func() bool { return h.fired(name, 0) })
		until(t, "the broker to be gone", func() bool { return errors.Is(unix.Kill(broker, 0), unix.ESRCH) }) // it says so before
	} else {
		name := h.armed(t, point)
		if r := h.tryUp(); r.code == 0 || !h.fired(name, 0) {
			t.Fatalf("the broker was not killed at %s: %v", point, r)
		}
	}
	h.up(t)
	if serving {
		h.try("pause", "crk stays")
		h.carrel(t, "resume", "crk stays")
	}
	until(t, "the ledger to be rewritten", func() bool {
		st, err := os.Stat(path)
		return err == nil && st.Size() < 1<<20
	})
	h.carrel(t, "exec", "crk stays", "--", "true")
	h.settled(t)
	h.look(t, check.Expect{Any: true})
	h.gone(t)
}
