package patch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// item is what is to become of one name, beside its entry.
type item struct {
	content []byte
	// keep has the new file get the owner, attributes, mode and, with time, the times of an old one: its own, or that of
	// another item, or those that are given.
	keep bool
	of   int // whose; its own index, or -1 for meta
	meta *meta
	time bool
	// mode is the mode that it gets in any case, or, masked, without the umask.
	mode   *uint32
	masked bool
	// before is what the file must have beside its content, nil for anything.
	before *meta
}

// txn is a transaction that runs.
type txn struct {
	s     *store
	j     *journal
	items []item
	// parents are the open directories of the entries, -1 for one that is not there.
	parents []int
	bases   []string
}

func (t *txn) add(e entry, it item) {
	n := len(t.j.Entries)
	e.Temp = ".carrel-" + t.j.ID + "-" + strconv.Itoa(n)
	if e.Action != create {
		e.Backup = strconv.Itoa(n)
	}
	if it.keep && it.meta == nil && it.of == 0 && e.Action == replace {
		it.of = n
	}
	t.j.Entries = append(t.j.Entries, e)
	t.items = append(t.items, it)
}

// Apply makes the change: to all files, or to none if it returns an error without an id. Files must be as they were read; for one that
// changed meanwhile the error is of kind failed precondition, and Merge says what can be done. dir is a directory of the
// caller's alone (mode 0700) for journals and backups, outside of what is changed. If the process ends before Apply
// returns, Recover finishes or undoes the change. Owners, permissions, access lists and extended attributes stay. The id
// is for Undo; the backups that it needs stay in dir until Forget.
func (p *Prepared) Apply(ctx context.Context, dir string) (id string, err error) {
	if len(p.files) == 0 {
		return "", bad("cannot apply the patch: no file is chosen")
	}
	return transact(ctx, dir, func(t *txn) error {
		for _, f := range p.files {
			t.plan(f)
		}
		return nil
	})
}

// plan adds the entries of one file.
func (t *txn) plan(f *planned) {
	before, after := digest(f.old.bytes), digest(f.new)
	same := before == after
	switch f.change.op {
	case Create:
		t.add(entry{Name: f.name(), Place: f.to, Action: create, New: after}, item{content: f.new, mode: f.mode, masked: f.masked})
	case Delete:
		t.add(entry{Name: f.name(), Place: f.from, Action: remove, Old: before}, item{})
	case Move:
		n := len(t.items)
		t.add(entry{Name: f.name(), Place: f.to, Action: create, New: after},
			item{content: f.new, keep: true, of: n + 1, time: same, mode: f.mode})
		t.add(entry{Name: f.change.path, Place: f.from, Action: remove, Old: before}, item{})
	default:
		t.add(entry{Name: f.name(), Place: f.from, Action: replace, Old: before, New: after},
			item{content: f.new, keep: true, time: same, mode: f.mode})
	}
}

// transact runs a transaction whose entries a function adds.
func transact(ctx context.Context, dir string, fill func(*txn) error) (id string, err error) {
	s, err := openStore(dir)
	if err != nil {
		return "", err
	}
	defer s.close()
	ids, err := s.ids()
	if err != nil {
		return "", fmt.Errorf("cannot list the journals in %q: %w", dir, err)
	}
	for _, other := range ids {
		if s.has(other, journalFile) {
			return "", fmt.Errorf("cannot change files: %s was not finished; recover it first: %w", other, errdefs.ErrFailedPrecondition)
		}
	}
	t := &txn{s: s, j: &journal{Version: version, ID: newID(), State: preparing}}
	if err := fill(t); err != nil {
		return "", err
	}
	defer t.close()
	return t.run(ctx)
}

func (t *txn) close() {
	for _, fd := range t.parents {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// run does all of it, or takes back what it did.
func (t *txn) run(ctx context.Context) (id string, err error) {
	if err = t.prepare(ctx); err == nil {
		err = t.commit()
	}
	if err != nil {
		left, backErr := t.back()
		for _, l := range left {
			err = fmt.Errorf("%w; %s", err, l)
		}
		if backErr != nil {
			err = fmt.Errorf("%w; it could not be taken back, so recover it before the next change: %w", err, backErr)
		}
		return "", err
	}
	if err := t.finish(); err != nil {
		return t.j.ID, fmt.Errorf("the files are changed, and cleaning up failed, so recover %s before the next change: %w", t.j.ID, err)
	}
	return t.j.ID, nil
}

// prepare makes everything that can be made before a file changes.
func (t *txn) prepare(ctx context.Context) error {
	for _, e := range t.j.Entries {
		if e.Action != create {
			continue
		}
		dirs, err := e.Place.missing()
		if err != nil {
			return fmt.Errorf("cannot make %q: %w", e.Name, err)
		}
		for _, d := range dirs {
			if p := (place{e.Place.Root, d}); !slices.Contains(t.j.Made, p) {
				t.j.Made = append(t.j.Made, p)
			}
		}
	}
	if err := t.s.make(t.j.ID); err != nil {
		return fmt.Errorf("cannot begin a journal: %w", err)
	}
	if err := t.s.save(t.j); err != nil {
		return err
	}
	for _, d := range t.j.Made {
		if err := t.mkdir(d); err != nil {
			return fmt.Errorf("cannot make the directory %q: %w", d, err)
		}
	}
	for i := range t.j.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.check(i); err != nil {
			return fmt.Errorf("cannot change %q: %w", t.j.Entries[i].Name, err)
		}
	}
	for i := range t.j.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if t.j.Entries[i].Action == remove {
			continue
		}
		if err := t.temp(i); err != nil {
			return fmt.Errorf("cannot change %q: %w", t.j.Entries[i].Name, err)
		}
	}
	if err := t.syncParents(); err != nil {
		return err
	}
	t.j.State = committing
	if err := t.s.save(t.j); err != nil {
		// Whichever state is on disk: nothing was exchanged.
		t.j.State = preparing
		return err
	}
	return nil
}

func (t *txn) mkdir(d place) error {
	dir, base, err := d.parent()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if err := step("mkdir"); err != nil {
		return err
	}
	if err := unix.Mkdirat(dir, base, 0o777); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return syncDir(dir)
}

// check opens the directory of an entry and looks whether the file is as it was when the change was planned. It keeps a
// copy.
func (t *txn) check(i int) error {
	e, it := &t.j.Entries[i], &t.items[i]
	dir, base, err := e.Place.parent()
	if err != nil {
		return err
	}
	t.parents, t.bases = append(t.parents, dir), append(t.bases, base)
	if e.Action == create {
		return absent(dir, base)
	}
	c, err := read(dir, base)
	if err != nil {
		return err
	}
	if digest(c.bytes) != e.Old || it.before != nil && !it.before.same(c.meta) {
		return fmt.Errorf("it changed meanwhile; read it again: %w", errdefs.ErrFailedPrecondition)
	}
	e.Before = &c.meta
	return t.s.write(t.j.ID+"/"+e.Backup, c.bytes)
}

// same reports whether two files have the same owner and permissions.
func (m *meta) same(o meta) bool { return m.Mode == o.Mode && m.UID == o.UID && m.GID == o.GID }

// temp writes the new file under a name beside its own.
func (t *txn) temp(i int) error {
	e, it := &t.j.Entries[i], &t.items[i]
	want := it.meta
	if it.keep && want == nil {
		want = t.j.Entries[it.of].Before
	}
	perm := uint32(0o666)
	switch {
	case want != nil:
		perm = 0o600
	case it.mode != nil:
		perm = *it.mode
	}
	mode := it.mode
	if it.masked {
		mode = nil
	}
	if err := step("make " + e.Name); err != nil {
		return err
	}
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(t.parents[i], e.Temp, flags, perm)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), e.Temp)
	defer f.Close()
	if err := step("write " + e.Name); err != nil {
		return err
	}
	if _, err := f.Write(it.content); err != nil {
		return err
	}
	if err := dress(fd, want, mode); err != nil {
		return err
	}
	if it.time && want != nil {
		at := unix.NsecToTimespec(want.MTime[0]*1e9 + want.MTime[1])
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, at}
		if err := unix.UtimesNanoAt(t.parents[i], e.Temp, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("its time cannot be kept: %w", err)
		}
	}
	if err := step("sync " + e.Name); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	m := metaOf(&st)
	e.After = &m
	return nil
}

// dress gives an open file the owner, attributes and permissions of another, or a mode.
func dress(fd int, want *meta, mode *uint32) error {
	if want != nil {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Uid != want.UID || st.Gid != want.GID {
			if err := unix.Fchown(fd, int(want.UID), int(want.GID)); err != nil {
				return fmt.Errorf("its owner %d and group %d cannot be kept; have its owner change it: %w", want.UID, want.GID, err)
			}
		}
		if err := setAttrs(fd, want.Attrs); err != nil {
			return err
		}
		if mode == nil {
			mode = &want.Mode
		}
	}
	if mode == nil {
		return nil
	}
	// After the owner and the access list, which both change it.
	return unix.Fchmod(fd, *mode)
}

// syncParents waits until the names in all directories are on disk.
func (t *txn) syncParents() error {
	for i, fd := range t.parents {
		if fd < 0 {
			continue
		}
		if err := syncDir(fd); err != nil {
			return fmt.Errorf("cannot write the directory of %q to disk: %w", t.j.Entries[i].Name, err)
		}
	}
	return nil
}

func syncDir(dir int) error {
	if err := step("sync a directory"); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fsync(fd)
}
