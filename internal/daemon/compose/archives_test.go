package compose_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// last returns the words of the archiver that ran last.
func (d *runtimeDouble) last() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.programs[len(d.programs)-1], " ")
}

// What was packed here is unpacked within the limits of packing. Those of the settings are for what
// others bring.
func TestOwnArchivesAreNotBoundLikeStrangeOnes(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.mustDo(failure(h.archive(ctx, workspace.ArchiveWanted{Live: true, Destroy: true})))
	h.mustDo(failure(h.Restore(ctx, alice, workspace.RestoreWanted{From: "demo"}, nil, nil)))
	if words := h.rt.last(); strings.Contains(words, "--max") || !strings.Contains(words, "unpack") {
		t.Errorf("an archive of our own is unpacked with %q", words)
	}
	h.mustDo(failure(h.Restore(ctx, alice, workspace.RestoreWanted{Key: "copy"}, strings.NewReader("theirs"), nil)))
	for _, want := range []string{"--max-bytes=1073741824", "--max-entries=1000", "--max-ratio=1000"} {
		if words := h.rt.last(); !strings.Contains(words, want) {
			t.Errorf("an archive that came with the request is unpacked with %q, without %s", words, want)
		}
	}
}

// Nothing of a workspace that is to end goes before its archive was read back from the disk and
// decoded. One that does not hold goes instead.
func TestNothingIsDestroyedUnverified(t *testing.T) {
	for name, row := range map[string]struct {
		verdict string
		disk    func(path string) error // what becomes of the file once it is in its place
		want    string
		is      func(error) bool
	}{
		"well": {},
		"refused": {
			verdict: `{"summary":{"entries":1,"bytes":7},"error":"cannot unpack \"a\": the name twice","kind":"invalid_argument"}`,
			want:    "the name twice", is: errdefs.IsInvalidArgument,
		},
		"fewer entries": {
			verdict: `{"summary":{"entries":0,"bytes":7}}`, want: "1 entries and 7 bytes were packed, and 0 and 7", is: errdefs.IsDataLoss,
		},
		"more bytes":   {verdict: `{"summary":{"entries":1,"bytes":8}}`, want: "1 and 8 can be unpacked", is: errdefs.IsDataLoss},
		"nothing said": {verdict: `{}`, want: "0 and 0 can be unpacked", is: errdefs.IsDataLoss},
		"changed on the disk": {
			disk: func(path string) error { return os.WriteFile(path, []byte("A home\n"), 0o600) }, want: "SHA-256", is: errdefs.IsDataLoss,
		},
		"cut on the disk": {disk: func(path string) error { return os.Truncate(path, 3) }, want: "SHA-256", is: errdefs.IsDataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			ctx := t.Context()
			h.create(alice, "demo")
			h.rt.verdict = row.verdict
			files := filepath.Join(h.dir, "archives")
			h.rt.setHook(func(op string, _ id.Workspace) error {
				placed, err := filepath.Glob(files + "/*.tar.zst")
				if op == "spawn" && len(placed) == 1 && row.disk != nil {
					err = errors.Join(err, row.disk(placed[0]))
				}
				return err
			})
			_, err := h.archive(ctx, workspace.ArchiveWanted{Live: true, Destroy: true})
			left, gerr := filepath.Glob(files + "/*")
			h.mustDo(gerr)
			if row.want == "" {
				if err != nil || living(h, "demo").Name != "" || len(left) != 1 || len(h.all()) != 1 {
					t.Errorf("%v; %v is kept", err, left)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "home stay") || !row.is(err) {
				t.Errorf("got %v, want one with %q", err, row.want)
			}
			if living(h, "demo").Phase != workspace.Settled || h.rt.count("destroy") != 0 {
				t.Error("the workspace has gone")
			}
			if len(left) != 0 || len(h.all()) != 0 {
				t.Errorf("the archive is kept: %v", left)
			}
			// And with a disk that is well it goes.
			h.rt.verdict, row.disk = "", nil
			h.mustDo(failure(h.archive(ctx, workspace.ArchiveWanted{Live: true, Destroy: true})))
		})
	}
}

// Only what ends the workspace is worth the time.
func TestOnlyWhatEndsAHomeIsVerified(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	h.mustDo(failure(h.archive(t.Context(), workspace.ArchiveWanted{Live: true})))
	if words := h.rt.last(); !strings.Contains(words, "pack") {
		t.Errorf("the last that ran was %q", words)
	}
	h.mustDo(failure(h.archive(t.Context(), workspace.ArchiveWanted{Live: true, Destroy: true})))
	if words := h.rt.last(); words != "carrel-archive verify" {
		t.Errorf("the last that ran was %q", words)
	}
}

// refusedBy sees that an archive was refused, by a setting that the error names, and left nothing.
func (h *house) refusedBy(setting string, err error) {
	h.t.Helper()
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), setting) || !strings.Contains(err.Error(), "carrel archive rm") {
		h.t.Errorf("got %v, want one with %q", err, setting)
	}
}

// The archives of an owner are counted, also across a restart, and each that goes makes room for
// another. Another owner has places of its own; an administrator, and what is sent away, needs none.
func TestArchivesAreCounted(t *testing.T) {
	h := newHouse(t)
	h.maxArchives = 3
	h.crash()
	h.start()
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(bob, "other")
	keep := workspace.ArchiveWanted{Live: true}
	for range 3 {
		h.mustDo(failure(h.archive(ctx, keep)))
	}
	starts := h.rt.count("spawn")
	_, err := h.archive(ctx, keep)
	h.refusedBy("max_archives_per_owner", err)
	h.crash()
	h.start()
	_, err = h.archive(ctx, workspace.ArchiveWanted{Live: true, Destroy: true})
	h.refusedBy("max_archives_per_owner", err)
	if n := h.rt.count("spawn"); n != starts {
		t.Error("what is refused was packed")
	}
	h.mustDo(failure(h.Archive(ctx, bob, "other", keep, nil, nil)))
	h.mustDo(failure(h.Archive(ctx, alice, "demo", keep, io.Discard, nil)))
	for i := range 2 {
		first := h.all()[0].ID
		var all sync.WaitGroup
		for range 5 { // of which one removes it
			all.Go(func() {
				if err := h.RemoveArchive(ctx, alice, first); err != nil && !errdefs.IsNotFound(err) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		h.mustDo(failure(h.archive(ctx, keep)))
		_, err = h.archive(ctx, keep)
		h.refusedBy("max_archives_per_owner", err)
		if i == 0 { // what fails keeps no place
			h.mustDo(h.RemoveArchive(ctx, alice, h.all()[0].ID))
			h.rt.setHook(func(op string, _ id.Workspace) error {
				if op == "spawn" {
					return errSkeleton
				}
				return nil
			})
			for range 5 {
				if _, err := h.archive(ctx, keep); !errors.Is(err, errSkeleton) {
					t.Error(err)
				}
			}
			h.rt.setHook(nil)
			h.mustDo(failure(h.archive(ctx, keep)))
		}
	}
	h.mustDo(failure(h.Archive(ctx, admin, "demo", keep, nil, nil)))
}

// What is being written counts with what is there: archives at the same time do not pass the sum
// together.
func TestArchivesAtOnceStayWithinTheSum(t *testing.T) {
	h := newHouse(t)
	h.archiveBytes = 5 << 20
	h.crash()
	h.start()
	ctx := t.Context()
	const atOnce = 12
	keep := workspace.ArchiveWanted{Live: true}
	more, done := make(chan []byte), make(chan struct{})
	h.rt.more = more
	var all sync.WaitGroup
	var mu sync.Mutex
	var refused []error
	for i := range atOnce {
		key := fmt.Sprint("demo", i)
		h.create(alice, id.Key(key))
		all.Go(func() {
			_, err := h.Archive(ctx, alice, key, keep, nil, nil)
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, err)
		})
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		defer close(more)
		for range 40 { // those that were refused take no more
			select {
			case more <- make([]byte, 1<<20):
			case <-done:
				return
			}
		}
	}()
	all.Wait()
	close(done)
	<-fed
	failed := 0
	for _, err := range refused {
		if err != nil {
			failed++
			h.refusedBy("archive_bytes_per_owner", err)
		}
	}
	sum := int64(0)
	for _, a := range h.all() {
		sum += a.Size
	}
	if sum > h.archiveBytes || failed == 0 || failed+len(h.all()) != atOnce {
		t.Errorf("%d are kept with %d bytes, %d were refused", len(h.all()), sum, failed)
	}
	// Those that were refused gave back what they had taken.
	for _, a := range h.all() {
		h.mustDo(h.RemoveArchive(ctx, alice, a.ID))
	}
	full := make(chan []byte, 4)
	for range 4 {
		full <- make([]byte, 1<<20)
	}
	close(full)
	h.rt.more = full
	h.mustDo(failure(h.Archive(ctx, alice, "demo0", keep, nil, nil)))
}

// An archive says when it goes, and goes then.
func TestArchivesEnd(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	h.mustDo(failure(h.archive(t.Context(), workspace.ArchiveWanted{Live: true})))
	if a := h.all()[0]; !a.Expires.IsZero() {
		t.Errorf("without a retention it ends at %v", a.Expires)
	}
	h.keepArchives = time.Hour
	h.crash()
	h.start()
	a := h.all()[0]
	if a.Expires.Sub(a.CreatedAt) != time.Hour {
		t.Errorf("made at %v it ends at %v", a.CreatedAt, a.Expires)
	}
	h.ForgetOld(t.Context(), a.Expires)
	if len(h.all()) != 1 {
		t.Error("it went too early")
	}
	h.ForgetOld(t.Context(), a.Expires.Add(1))
	if len(h.all()) != 0 {
		t.Error("it is there still")
	}
}

// smallShelf has the archives of a house on a file system of its own, of so many bytes.
func smallShelf(t *testing.T, size int) (h *house, dir string) {
	t.Helper()
	h = newHouse(t)
	dir = filepath.Join(h.dir, "archives")
	h.crash()
	if err := unix.Mount("carrel-flow-test", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%d", size)); err != nil {
		h.start()
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { h.mustDo(unix.Unmount(dir, unix.MNT_DETACH)) })
	h.start()
	return h, dir
}

// The last twentieth of the file system of the archives is nobody's, however many archives are written
// at once and whatever else is written there meanwhile.
func TestArchivesLeaveSpaceFree(t *testing.T) {
	const size = 200 << 20
	h, dir := smallShelf(t, size)
	ctx := t.Context()
	keep := workspace.ArchiveWanted{Live: true}
	free := func() int64 {
		var st unix.Statfs_t
		h.mustDo(unix.Statfs(dir, &st))
		return int64(st.Bavail) * st.Bsize
	}
	refused := func(err error) {
		t.Helper()
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "one part in 20") {
			t.Errorf("got %v", err)
		}
	}
	// One that goes on when others have filled it.
	h.create(alice, "demo")
	more := make(chan []byte)
	h.rt.more = more
	ended := make(chan error, 1)
	go func() { ended <- failure(h.archive(ctx, keep)) }()
	piece := make([]byte, 1<<20)
	for range 4 {
		more <- piece
	}
	h.mustDo(os.WriteFile(filepath.Join(dir, "others"), make([]byte, 160<<20), 0o600))
	least, open := free(), true
	for n := 0; open; n++ {
		select {
		case more <- piece:
			least = min(least, free())
		case err := <-ended:
			refused(err)
			open = false
		}
		if n == 100 {
			t.Fatal("it takes without an end")
		}
	}
	if least < size/20-int64(len(piece)) {
		t.Errorf("%d bytes were free at the least", least)
	}
	close(more)
	// Several at once, with room for some of them.
	more = make(chan []byte)
	h.rt.more = more
	const atOnce = 8
	results := make(chan error, atOnce)
	for i := range atOnce {
		key := fmt.Sprint("demo", i)
		h.create(alice, id.Key(key))
		go func() { results <- failure(h.Archive(ctx, alice, key, keep, nil, nil)) }()
	}
	least = free()
	for n := 0; n < atOnce; {
		select {
		case more <- piece:
			least = min(least, free())
		case err := <-results:
			refused(err)
			n++
		}
	}
	if least < size/20-atOnce*int64(len(piece)) {
		t.Errorf("%d bytes were free at the least", least)
	}
	close(more)
	// And none begins where there is too little.
	h.mustDo(os.WriteFile(filepath.Join(dir, "more of others"), make([]byte, 31<<20), 0o600))
	_, err := h.archive(ctx, keep)
	refused(err)
	h.mustDo(failure(h.Archive(ctx, alice, "demo", keep, io.Discard, nil))) // which is sent away
	h.mustDo(os.Remove(filepath.Join(dir, "others")))
	h.mustDo(failure(h.archive(ctx, keep)))
}

// A request that broke off before there was a workspace ends none by an archive that another made.
func TestAnothersArchiveEndsNoHome(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	op := operation.PutAway{Ref: "demo", Destroy: true, Live: true}
	canonical, err := operation.Canonical(op, operation.Target{})
	h.mustDo(err)
	_, err = h.store.Begin(ctx, store.RequestID{Principal: alice.String(), ID: "r"}, operation.Digest(canonical), "")
	h.mustDo(err)
	h.create(alice, "demo")
	old, err := h.archive(ctx, workspace.ArchiveWanted{Live: true})
	h.mustDo(err)
	made, err := h.archive(ctx, workspace.ArchiveWanted{Live: true, Destroy: true, Request: "r"})
	h.mustDo(err)
	if words := h.rt.last(); made == old || words != "carrel-archive verify" {
		t.Errorf("it ends with %s, and %s was there; the last that ran was %q", made, old, words)
	}
	if living(h, "demo").Name != "" {
		t.Error("it is there still")
	}
}
