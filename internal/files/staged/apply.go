package staged

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// Options say what Apply does.
type Options struct {
	Choice
	// Since is the time at which the run began, as Clock had it. Required: a file of the lower directory that is newer was
	// changed by the host, and is a conflict unless the two changes can be merged.
	Since time.Time
	// Base returns what a file was when the run began, if that is known; nil is for not at all.
	Base func(path string) ([]byte, bool)
}

// Result is what Apply or Undo did.
type Result struct {
	// ID is the transaction in keepDir, "" if there was nothing to do.
	ID string
	// Applied are the paths of the changes that were made, and Merged those of them that were merged with what the host did.
	Applied, Merged []string
	// Refused are the changes that were chosen and not made.
	Refused []Refusal
}

// Apply makes the chosen changes in the lower directory: all of them, or none if it returns an error without an id. Files that
// other processes changed since the run began are a *ConflictError. keepDir is a directory of the caller's alone (mode 0700)
// for journals and old contents. If the process ends before Apply returns, Recover finishes or undoes the changes. An error
// that comes with an id says that the changes are made and Recover has something left to do.
func Apply(ctx context.Context, c Copy, o Options, keepDir string) (r Result, err error) {
	if o.Since.IsZero() {
		return r, bad("cannot apply the changes: it is not said when the run began")
	}
	if !o.All && len(o.Paths) == 0 {
		return r, bad("cannot apply the changes: none is chosen")
	}
	t, err := begin(ctx, c.Lower, keepDir)
	if err != nil {
		return r, err
	}
	defer t.close()
	if t.upper, err = hold(c.Upper); err != nil {
		return r, err
	}
	if r, err = t.plan(c, o); err != nil || len(t.j.Ops) == 0 {
		return r, err
	}
	r.ID, err = t.run("apply the changes")
	return r, err
}

// plan fills the journal.
func (t *txn) plan(c Copy, o Options) (r Result, err error) {
	all, err := Changes(t.ctx, c)
	if err != nil {
		return r, err
	}
	chosen, refused, err := choose(all, o.Choice)
	if err != nil {
		return r, err
	}
	r.Refused = refused
	p := &planner{ctx: t.ctx, lower: t.lower, upper: t.upper, since: o.Since, base: o.Base, parents: map[string]*parent{}, j: t.j}
	if p.own, err = t.s.own(); err != nil {
		return r, err
	}
	if err := p.plan(all, chosen); err != nil {
		return r, err
	}
	if len(p.conflicts) > 0 {
		return r, &ConflictError{"apply the changes", p.conflicts}
	}
	r.Merged = p.merged
	for i, c := range all {
		if chosen[i] {
			r.Applied = append(r.Applied, c.Path)
		}
	}
	return r, nil
}

// txn is a transaction that runs.
type txn struct {
	ctx          context.Context
	s            *store
	j            *journal
	lower, upper folder
	b            builder // in lower
	kept         builder // in the store
	made, marked bool    // the journal has these marks
}

// begin opens the store and the lower directory, for a new transaction. One that was not finished is an error.
func begin(ctx context.Context, lower *os.File, keepDir string) (*txn, error) {
	t, err := open(ctx, lower, keepDir)
	if err != nil {
		return nil, err
	}
	ids, next, err := t.s.ids(ctx)
	for _, id := range ids {
		if err == nil && !t.s.has(id, doneFile) && !t.s.has(id, conflictFile) {
			err = stale("cannot change files: %s was not finished; recover it first", id)
		}
	}
	if err != nil {
		t.close()
		return nil, err
	}
	t.j.ID = next
	return t, nil
}

// open opens the store and the lower directory.
func open(ctx context.Context, lower *os.File, keepDir string) (t *txn, err error) {
	t = &txn{ctx: ctx, lower: folder{-1}, upper: folder{-1}}
	if t.s, err = openStore(keepDir, lockWait); err != nil {
		return nil, err
	}
	if t.lower, err = hold(lower); err != nil {
		t.close()
		return nil, err
	}
	t.b.in, t.kept.in = t.lower, t.s.dir
	st, err := t.lower.self()
	if err != nil {
		t.close()
		return nil, err
	}
	t.j = &journal{Dev: st.Dev, Ino: st.Ino}
	return t, nil
}

func (t *txn) close() {
	t.b.close()
	t.kept.close()
	t.lower.close()
	t.upper.close()
	t.s.close()
}

// run does all of it, or takes back what it did. what is what it does.
func (t *txn) run(what string) (id string, err error) {
	err = t.prepare(what)
	for i := 0; err == nil && i < len(t.j.Ops); i++ {
		if err = t.ctx.Err(); err == nil {
			err = t.exchange(t.j.Ops[i], what)
		}
	}
	if err == nil {
		err = t.commit()
	}
	if err != nil {
		if _, ok := errors.AsType[*ConflictError](err); !ok {
			err = fmt.Errorf("cannot %s: %w", what, err)
		}
		return "", t.failed(err)
	}
	if err := t.finish(); err != nil {
		return t.j.ID, fmt.Errorf("the files are changed, and cleaning up failed, so recover %s before the next change: %w", t.j.ID, err)
	}
	return t.j.ID, nil
}

// failed takes back everything after an error, also when the time is up.
func (t *txn) failed(err error) error {
	t.ctx = context.WithoutCancel(t.ctx)
	left, backErr := t.back()
	for _, l := range left {
		err = fmt.Errorf("%w; %s: %s", err, quote(l.Path), l.Why)
	}
	if backErr != nil {
		err = fmt.Errorf("%w; it could not be taken back, so recover it before the next change: %w", err, backErr)
	}
	return err
}

// prepare makes everything that can be made before a name is exchanged.
func (t *txn) prepare(what string) error {
	moves, err := t.moves()
	if err != nil {
		return err
	}
	t.j.Copied = !moves
	if err := t.s.make(t.j.ID); err != nil {
		return err
	}
	if err := t.s.put(t.j.ID, planFile, t.j); err != nil {
		return err
	}
	if err := t.openDirs(); err != nil {
		return err
	}
	for i, o := range t.j.Ops {
		if err := t.ctx.Err(); err != nil {
			return context.Cause(t.ctx)
		}
		if err := t.still(o, what); err != nil {
			return err
		}
		if err := t.temp(i, o); err != nil {
			return err
		}
	}
	if err := t.sync(); err != nil {
		return err
	}
	if err := t.s.put(t.j.ID, madeFile, t.j); err != nil {
		return err
	}
	t.made = true
	return nil
}

// moves reports whether what was there can be moved to the journal, by one rename.
func (t *txn) moves() (bool, error) {
	var a, b unix.Statx_t
	const mask = unix.STATX_MNT_ID
	err := errors.Join(unix.Statx(t.lower.fd, "", unix.AT_EMPTY_PATH, mask, &a), unix.Statx(t.s.dir.fd, "", unix.AT_EMPTY_PATH, mask, &b))
	same := a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor && a.Mnt_id == b.Mnt_id && a.Mask&b.Mask&mask != 0
	return same && canMove, err
}

// canMove is false in tests of journals on another file system.
var canMove = true

// temp makes what is new under a name beside its own, and a copy of what is old if that cannot be moved later.
func (t *txn) temp(i int, o *op) (err error) {
	if o.Do == create || o.Do == replace {
		dir, base := split(string(o.Path))
		if base == "" {
			return bad("the top directory is not replaced")
		}
		old := ""
		if o.Do == replace {
			old = string(o.Path)
		}
		if o.New, err = t.b.build(join(dir, string(o.Temp)), o.nodes, o.from, old); err != nil {
			return err
		}
	}
	if t.j.Copied && t.j.Undoes == "" && (o.Do == replace || o.Do == remove) {
		_, err = t.kept.build(t.keptPath(i), nodesOf(o.Old), source{t.lower, string(o.Path)}, "")
	}
	return err
}

// keptPath is where the old content of an operation is kept.
func (t *txn) keptPath(i int) string { return t.j.ID + "/" + oldDir + "/" + strconv.Itoa(i) }

// sync waits until everything is on disk. One call for the whole file system is faster than one for each file.
func (t *txn) sync() error {
	if err := step("sync the file system"); err != nil {
		return err
	}
	for _, d := range []folder{t.lower, t.s.dir} {
		if err := unix.Syncfs(d.fd); err != nil {
			return fmt.Errorf("the files cannot be written to disk: %w", err)
		}
		if !t.j.Copied { // one file system
			break
		}
	}
	return nil
}

// openDirs opens the directories that their owner has closed, the outermost first.
func (t *txn) openDirs() error {
	for _, o := range t.j.Ops {
		if o.Do != chmod || o.Open == o.Old[0].Stamp.Mode&0o7777 {
			continue
		}
		if err := t.setMode(o, o.Old[0].Stamp.Mode&0o7777, o.Open); err != nil {
			return err
		}
	}
	return nil
}

// setMode changes the mode of a directory from one to another.
func (t *txn) setMode(o *op, from, to uint32) error {
	d, is, err := t.dirOf(o)
	if err != nil {
		return err
	}
	defer d.close()
	if is.Mode&0o7777 != from {
		return stale("%q: its mode was changed meanwhile", o.Path)
	}
	if from == to {
		return nil
	}
	if err := step("chmod " + string(o.Path)); err != nil {
		return err
	}
	return unix.Chmod(d.link(), to)
}

// dirOf opens the directory of a chmod, which may be closed to its owner.
func (t *txn) dirOf(o *op) (folder, stamp, error) {
	d, err := t.lower.via(string(o.Path))
	if err != nil {
		return d, stamp{}, err
	}
	is, err := d.self()
	if err == nil && !is.is(o.Old[0].Stamp) {
		err = stale("%q: another directory is there now", o.Path)
	}
	if err != nil {
		d.close()
	}
	return d, is, err
}

// commit marks that everything is changed. Before the mark is on disk everything else is.
func (t *txn) commit() error {
	if err := t.sync(); err != nil {
		return err
	}
	t.restamp(t.j)
	if err := t.s.put(t.j.ID, commitFile, t.j); err != nil {
		return err
	}
	t.marked = true
	return nil
}

// restamp notes what the files are after the exchange, which changed their time of change. One that another process has changed
// since then keeps the stamp that it had, so that Undo sees it.
func (t *txn) restamp(j *journal) {
	for _, o := range j.Ops {
		if len(o.New) == 0 {
			continue
		}
		if d, base, err := t.b.parent(string(o.Path)); err == nil {
			if s, there, err := d.stat(base); err == nil && there && o.New[0].Stamp.unchanged(s, true) {
				o.New[0].Stamp = s
			}
		}
	}
}

// finish moves what was there to the journal and gives directories their modes. It can be called again after a crash.
func (t *txn) finish() error {
	t.ctx = context.WithoutCancel(t.ctx)
	for i, o := range t.j.Ops {
		if err := t.keep(i, o); err != nil {
			return fmt.Errorf("what %q was cannot be kept: %w", o.Path, err)
		}
	}
	for _, o := range slices.Backward(t.j.Ops) {
		if o.Do == chmod {
			if err := t.setLast(o); err != nil {
				return err
			}
		}
	}
	if err := t.remember(false); err != nil {
		return err
	}
	if err := t.sync(); err != nil {
		return err
	}
	if t.j.Undoes != "" {
		if err := t.s.drop(t.ctx, t.j.Undoes); err != nil {
			return err
		}
		return t.s.drop(t.ctx, t.j.ID)
	}
	if err := t.s.put(t.j.ID, doneFile, t.j); err != nil {
		return err
	}
	return t.s.unlink(t.j.ID, planFile, madeFile, commitFile)
}

// setLast gives a directory the mode that it has afterwards. One whose mode another process changed meanwhile keeps that.
func (t *txn) setLast(o *op) error {
	d, is, err := t.dirOf(o)
	if errors.Is(err, unix.ENOENT) || errdefs.IsFailedPrecondition(err) {
		return nil
	}
	if err != nil {
		return err
	}
	d.close()
	if is.Mode&0o7777 != o.Open {
		return nil
	}
	return t.setMode(o, o.Open, o.Mode)
}

// keep takes what was there away from beside its name.
func (t *txn) keep(i int, o *op) error {
	if o.Do != replace && o.Do != remove {
		return nil
	}
	d, _, err := t.b.parent(string(o.Path))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) { // another process removed the directory, and it with that
		return nil
	}
	if err != nil {
		return err
	}
	_, there, err := d.stat(string(o.Temp))
	if err != nil || !there { // it is kept already
		return err
	}
	if err := step("keep " + string(o.Path)); err != nil {
		return err
	}
	if !t.j.Copied && t.j.Undoes == "" {
		err := t.move(d, string(o.Temp), i)
		if err == nil || !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EACCES) {
			return err
		}
		if err := t.copyLate(d, string(o.Temp), i, o); err != nil {
			return err
		}
	}
	return removeIn(t.ctx, d, string(o.Temp))
}

// move moves something to the journal.
func (t *txn) move(d folder, temp string, i int) error {
	to, base, err := t.kept.parent(t.keptPath(i))
	if err != nil {
		return err
	}
	return unix.Renameat2(d.fd, temp, to.fd, base, unix.RENAME_NOREPLACE)
}

// copyLate copies what cannot be moved, although it seemed so. Half a copy, of a process that was killed, goes first.
func (t *txn) copyLate(d folder, temp string, i int, o *op) error {
	part := t.keptPath(i) + ".part"
	to, base, err := t.kept.parent(part)
	if err != nil {
		return err
	}
	if err := removeIn(t.ctx, to, base); err != nil {
		return err
	}
	if _, err := t.kept.build(part, nodesOf(o.Old), source{d, temp}, ""); err != nil {
		return err
	}
	if err := unix.Syncfs(t.s.dir.fd); err != nil {
		return err
	}
	to, base, err = t.kept.parent(part)
	if err != nil {
		return err
	}
	return unix.Renameat(to.fd, base, to.fd, strconv.Itoa(i))
}

// removeIn removes a tree from a directory.
func removeIn(ctx context.Context, d folder, base string) error {
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	return removal.Remove(ctx, f, base)
}
