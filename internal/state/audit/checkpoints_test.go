package audit_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// fixture is a log with its checkpoints, and the broker's state of it in another directory.
type fixture struct {
	path, brokerDir, anchor string
	// down: the broker does not answer.
	down bool
	// lost: the broker's answers are lost after it signed.
	lost bool
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	dir := t.TempDir()
	d := &fixture{path: filepath.Join(
		dir, "audit", "audit.jsonl",
	), brokerDir: filepath.Join(dir, "broker"), anchor: filepath.Join(dir, "anchor")}
	if err := os.Mkdir(d.brokerDir, 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *fixture) file(name string) string { return filepath.Join(filepath.Dir(d.path), name) }

var errLost = errors.Join(errors.New("lost"), errdefs.ErrUnavailable)

func (d *fixture) sign(_ context.Context, next checkpoint.Checkpoint, old int64, proof tlog.TreeProof) (checkpoint.Countersigned, error) {
	if d.down {
		return checkpoint.Countersigned{}, errLost
	}
	dir, err := os.Open(d.brokerDir)
	if err != nil {
		return checkpoint.Countersigned{}, err
	}
	defer dir.Close()
	c, err := broker.OpenCountersigner(dir)
	if err != nil {
		return checkpoint.Countersigned{}, err
	}
	signed, last, _, err := c.Sign(next, old, proof)
	if d.lost {
		return checkpoint.Countersigned{}, errLost
	}
	return checkpoint.Countersigned{Note: signed, Key: c.Public(), Size: last.Size, Root: last.Root}, err
}

func (d *fixture) options() audit.CheckpointOptions {
	return audit.CheckpointOptions{Countersign: d.sign}
}

func (d *fixture) checkpoints(t testing.TB, l *audit.Log, o audit.CheckpointOptions) *audit.Checkpoints {
	t.Helper()
	c, err := audit.OpenCheckpoints(t.Context(), l, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustMake(t testing.TB, c *audit.Checkpoints, size int64) checkpoint.Signed {
	t.Helper()
	s, err := c.Make(t.Context())
	if err != nil || s.Size != size || !s.Log || !s.Broker {
		t.Fatalf("a checkpoint of record %d: %+v %v", size, s, err)
	}
	return s
}

// fill writes records until the log has n, with a checkpoint after every ten and the last.
func (d *fixture) fill(t testing.TB, n int, o audit.CheckpointOptions) {
	t.Helper()
	l := open(t, audit.Options{Path: d.path})
	c := d.checkpoints(t, l, o)
	for i := int(l.Head().Seq); i < n; i++ {
		mustAppend(t, l, intent(i))
		if (i+1)%10 == 0 || i+1 == n {
			mustMake(t, c, int64(i+1))
		}
	}
	if err := errors.Join(c.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
}

func (d *fixture) keys(t testing.TB) checkpoint.Keys {
	t.Helper()
	log, err := os.ReadFile(d.file("checkpoint.pub"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(filepath.Join(d.brokerDir, "audit.pub"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	keys, err := checkpoint.ParseKeys(string(log), string(public))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// trust returns what root knows: the keys and the broker's last checkpoint.
func (d *fixture) trust(t testing.TB) audit.Trust {
	t.Helper()
	dir := openDirectory(t, d.brokerDir)
	c, err := broker.OpenCountersigner(dir)
	if err != nil {
		t.Fatal(err)
	}
	return audit.Trust{Keys: d.keys(t), Countersigned: c.Last()}
}

func openDirectory(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestCheckpointsAreMadeOnceAndLast(t *testing.T) {
	d := newFixture(t)
	o := d.options()
	o.Anchor = d.anchor
	d.fill(t, 25, o)
	l := open(t, audit.Options{Path: d.path})
	c := d.checkpoints(t, l, o)
	mustMake(t, c, 25) // nothing new
	b, err := os.ReadFile(d.file("checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	notes, whole := checkpoint.Split(b)
	if len(notes) != 3 || whole != len(b) {
		t.Fatalf("%d checkpoints:\n%s", len(notes), b)
	}
	if a, err := os.ReadFile(d.anchor); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the anchor has\n%s\n%v", a, err)
	}
	// Roots are computed over the exact lines.
	all := lines(t, d.path)
	for i, size := range []int64{10, 20, 25} {
		s, err := checkpoint.Open(notes[i], d.keys(t))
		if err != nil || s.Size != size || !s.Log || !s.Broker || s.Root != rootOf(t, all[:size]) {
			t.Errorf("checkpoint %d: %+v %v", i, s, err)
		}
	}
	f, err := c.Verify(t.Context())
	if err != nil || !f.OK || f.Signed != 25 || f.Countersigned != 25 ||
		f.Anchored != 25 || f.Checkpoints != 3 || f.Note != "" || f.BrokerKey == "" {
		t.Errorf("%+v %v", f, err)
	}
	for _, name := range []string{"checkpoint.key", "checkpoints", "audit.tree"} {
		if fi, err := os.Stat(d.file(name)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, fi, err)
		}
	}
}

// rootOf computes the tree of lines by package tlog alone.
func rootOf(t testing.TB, lines [][]byte) tlog.Hash {
	t.Helper()
	var stored []tlog.Hash
	read := tlog.HashReaderFunc(func(at []int64) (out []tlog.Hash, err error) {
		for _, i := range at {
			out = append(out, stored[i])
		}
		return out, nil
	})
	for i, l := range lines {
		h, err := tlog.StoredHashes(int64(i), bytes.TrimSuffix(l, []byte("\n")), read)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, h...)
	}
	root, err := tlog.TreeHash(int64(len(lines)), read)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// The stored hashes are only a cache: if they are lost, cut or changed anywhere, they are made
// anew, and there is no other effect.
func TestStoredHashesAreNotTrusted(t *testing.T) {
	d := newFixture(t)
	d.fill(t, 37, d.options())
	n := 37
	for what, spoil := range map[string]func([]byte) []byte{
		"lost":          func([]byte) []byte { return nil },
		"cut":           func(b []byte) []byte { return b[:len(b)/2] },
		"torn":          func(b []byte) []byte { return b[:len(b)-5] },
		"zeros":         func(b []byte) []byte { return make([]byte, len(b)) },
		"first changed": func(b []byte) []byte { b[0] ^= 1; return b },
		"each changed": func(b []byte) []byte {
			for i := 0; i < len(b); i += 32 {
				b[i] ^= 1
			}
			return b
		},
		"longer": func(b []byte) []byte { return append(b, make([]byte, 320)...) },
	} {
		b, err := os.ReadFile(d.file("audit.tree"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.file("audit.tree"), spoil(b), 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, audit.Options{Path: d.path})
		c := d.checkpoints(t, l, d.options())
		mustAppend(t, l, intent(n))
		n++
		if s := mustMake(t, c, int64(n)); s.Root != rootOf(t, lines(t, d.path)) {
			t.Errorf("%s: another root was signed", what)
		}
		if f, err := c.Verify(t.Context()); err != nil || !f.OK {
			t.Errorf("%s: %+v %v", what, f, err)
		}
		c.Close()
		l.Close()
	}
}

// A broker that does not answer, or whose answer was lost, is asked again.
func TestCountersignLater(t *testing.T) {
	d := newFixture(t)
	l := open(t, audit.Options{Path: d.path})
	c := d.checkpoints(t, l, d.options())
	mustAppend(t, l, intent(0))
	d.down = true
	if s, err := c.Make(t.Context()); !errdefs.IsUnavailable(err) || s.Size != 1 || s.Broker {
		t.Errorf("without the broker: %+v %v", s, err)
	}
	if _, err := c.Make(t.Context()); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	d.down = false
	mustMake(t, c, 1)
	d.lost = true
	mustAppend(t, l, intent(1))
	if _, err := c.Make(t.Context()); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	d.lost = false
	mustAppend(t, l, intent(2))
	mustMake(t, c, 3)
	// The same after a restart, when the broker's last checkpoint is not known.
	d.lost = true
	mustAppend(t, l, intent(3))
	if _, err := c.Make(t.Context()); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	d.lost = false
	c.Close()
	c = d.checkpoints(t, l, d.options())
	mustMake(t, c, 4)
	if f, err := c.Verify(t.Context()); err != nil || !f.OK || f.Countersigned != 4 {
		t.Errorf("%+v %v", f, err)
	}
}

func TestAnchor(t *testing.T) {
	d := newFixture(t)
	o := d.options()
	o.Anchor, o.AnchorRequired = d.anchor, true
	d.fill(t, 20, o)
	old := map[string][]byte{}
	for _, name := range []string{"audit.jsonl", "checkpoints", "audit.tree"} {
		old[name], _ = os.ReadFile(d.file(name))
	}
	d.fill(t, 30, o)

	t.Run("out of reach", func(t *testing.T) {
		bad := o
		bad.Anchor = filepath.Join(d.brokerDir, "none", "anchor")
		l := open(t, audit.Options{Path: d.path})
		defer l.Close()
		c := d.checkpoints(t, l, bad)
		mustAppend(t, l, intent(30))
		if s, err := c.Make(t.Context()); !errdefs.IsUnavailable(err) || s.Size != 31 || !s.Broker || c.Blocked() == nil {
			t.Errorf("%+v %v, blocked: %v", s, err, c.Blocked())
		}
		if err := os.Mkdir(filepath.Dir(bad.Anchor), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Make(t.Context()); err != nil || c.Blocked() != nil {
			t.Errorf("once it is back: %v, blocked: %v", err, c.Blocked())
		}
		if b, err := os.ReadFile(bad.Anchor); err != nil || !bytes.Contains(b, []byte("\n31\n")) {
			t.Errorf("%s %v", b, err)
		}
		c.Close()
	})
	t.Run("not required", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("skipped: needs root to mount a small tmpfs")
		}
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4k,mode=700"); err != nil {
			t.Skipf("skipped: cannot mount a tmpfs here: %v", err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		small := o
		small.Anchor, small.AnchorRequired = filepath.Join(dir, "anchor"), false
		l := open(t, audit.Options{Path: d.path})
		defer l.Close()
		c := d.checkpoints(t, l, small)
		defer c.Close()
		n := l.Head().Seq
		var err error
		for range 40 {
			mustAppend(t, l, intent(1))
			n++
			if _, err = c.Make(t.Context()); err != nil {
				break
			}
		}
		if !errors.Is(err, unix.ENOSPC) || c.Blocked() != nil || c.State().AnchorErr == nil {
			t.Fatalf("a full anchor: %v, %v", err, c.State())
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=700"); err != nil {
			t.Fatal(err)
		}
		mustMake(t, c, n)
		if f, err := c.Verify(t.Context()); err != nil || !f.OK || f.Anchored != n {
			t.Errorf("with half a note in the anchor: %+v %v", f, err)
		}
	})
	t.Run("an older copy, the broker's too", func(t *testing.T) {
		for name, b := range old {
			os.WriteFile(d.file(name), b, 0o600)
		}
		os.Remove(filepath.Join(d.brokerDir, "audit.json"))
		l := open(t, audit.Options{Path: d.path})
		if _, err := audit.OpenCheckpoints(t.Context(), l, o); !errors.Is(err, audit.ErrDamaged) || !strings.Contains(err.Error(), "older copy") {
			t.Errorf("%v", err)
		}
		trust := audit.Trust{Keys: d.keys(t), Anchor: d.anchor}
		if v, err := audit.VerifyLog(t.Context(), d.path, trust); err != nil || v.Bad == nil || v.Bad.Harm != audit.Replayed {
			t.Errorf("%+v %v", v, err)
		}
	})
}

// Without a broker only the log's key signs. A torn end of the file is cut off.
func TestCheckpointsWithoutBroker(t *testing.T) {
	d := newFixture(t)
	l := open(t, audit.Options{Path: d.path})
	c := d.checkpoints(t, l, audit.CheckpointOptions{})
	mustAppend(t, l, intent(0))
	if s, err := c.Make(t.Context()); err != nil || s.Size != 1 || s.Broker {
		t.Fatalf("%+v %v", s, err)
	}
	whole, _ := os.ReadFile(d.file("checkpoints"))
	mustAppend(t, l, intent(1))
	if _, err := c.Make(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(d.file("checkpoints"))
	c.Close()
	for n := len(whole); n < len(b); n += 7 {
		if err := os.WriteFile(d.file("checkpoints"), b[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		c := d.checkpoints(t, l, audit.CheckpointOptions{})
		if s, err := c.Make(t.Context()); err != nil || s.Size != 2 {
			t.Fatalf("cut at %d of %d: %+v %v", n, len(b), s, err)
		}
		if f, err := c.Verify(t.Context()); err != nil || !f.OK || f.Checkpoints != 2 || !strings.Contains(f.Note, "no broker") {
			t.Fatalf("cut at %d of %d: %+v %v", n, len(b), f, err)
		}
		c.Close()
	}
}
