package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// Options are the options of Open.
type Options struct {
	// Path of the log; required. Its directory is made 0700 if missing.
	Path string
	// Since is a mark of this log that was taken before; optional. Records up to it
	// are not read again. A log that ends before it, or has another record there, is
	// damaged.
	Since Mark
	// Known is a record that was on disk when something else was written that is kept elsewhere; optional.
	// A log that ends before it, or has another record there, is damaged.
	Known Head
	// AcceptDamage renames a damaged log, with ".damaged-" and the time added to its
	// name, and starts a new chain whose first record says so. Without it Open
	// refuses a damaged log.
	AcceptDamage bool
	// Reopened keeps another mark where Since was kept; optional. Open calls it before it writes anything behind an
	// end, if it takes records for a daemon's that its mark does not know: see Late.
	Reopened func(ctx context.Context, m Mark) error

	// A file is full at MaxSize bytes, or when its first record has the age MaxAge. The next
	// record then begins another file. 0 means no bound.
	MaxSize int64
	MaxAge  time.Duration

	// Room is how many bytes the log holds behind its end for what must be recorded when the disk is
	// full; see Log.Room. 0 is none.
	Room int64
	// Reserve gives room where the file system cannot hold any; optional.
	Reserve *diskreserve.Reserve

	wrap func(file) file
}

// ErrDamaged is wrapped by the errors of Open that AcceptDamage would accept.
var ErrDamaged = errors.New("the audit log is damaged")

// Open opens the log for appending and creates it if it is missing. It verifies what was written since the mark, as
// VerifyLog does with all. Bytes after the last newline were never acknowledged: Open cuts them off and writes a repair
// record with their number and hash. Another says which records it has taken for an earlier daemon's: see Late.
//
// Errors: failed_precondition if another process has the log open or its permissions
// are too wide; data_loss and ErrDamaged if the log since the mark does not hold, lacks
// the record of the mark, or has something behind the end of a daemon.
func Open(ctx context.Context, o Options) (*Log, error) {
	f, err := openLocked(o.Path)
	if err != nil {
		return nil, err
	}
	l, repair, err := examine(ctx, f, &o)
	if errors.Is(err, ErrDamaged) && o.AcceptDamage {
		o.Since, o.Known = Mark{}, Head{}
		if f, repair, err = setAside(f, o.Path, err); err != nil {
			return nil, err
		}
		l, _, err = inspect(f, o)
	}
	if err == nil {
		err = l.catchUp(ctx, o.Since)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := l.noteRepair(ctx, repair); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// examine judges the log, and then cuts off its torn end. A log that it refuses stays as it was. Of a log that it accepts
// with late records o.Since is what Reopened was told.
func examine(ctx context.Context, f *os.File, o *Options) (*Log, *Mended, error) {
	l, data, err := inspect(f, *o)
	if errors.Is(err, ErrDamaged) { // its very end: the verifier says what it is
		if v, verr := VerifyLog(ctx, o.Path, Trust{Since: o.Since, Known: o.Known}); verr == nil && v.Bad != nil && v.Bad.Harm != Torn {
			err = damaged(o.Path, v.Bad.Detail)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	late, err := l.judge(ctx, *o)
	if err == nil && o.Since.Ended && l.size < data {
		err = damaged(o.Path, fmt.Sprintf("the daemon stopped at record %d and did not write what follows: a forged append", o.Since.Head.Seq))
	}
	if err == nil && late != nil {
		err = l.reopened(ctx, o, late)
	}
	if err != nil {
		return nil, nil, err
	}
	repair, err := l.cutOff(f, data)
	if late = o.Since.Late; late != nil && err == nil && !l.saysLate(o.Since.Head.Seq+1) {
		if repair == nil {
			repair = &Mended{}
		}
		repair.Late = late
	}
	return l, repair, err
}

// saysLate reports whether a record says which late records were taken over.
func (l *Log) saysLate(seq int64) bool {
	if l.durable.Seq < seq {
		return false
	}
	line, err := l.line(seq)
	if err != nil {
		return false
	}
	r, err := Decode(line)
	var m Mended
	return err == nil && r.Type == Repair && json.Unmarshal(r.Data, &m) == nil && m.Late != nil
}

// judge verifies the log from the record of the mark on.
func (l *Log) judge(ctx context.Context, o Options) (*Late, error) {
	c := chain{next: 1, prev: []byte(Genesis)}
	if err := c.knows(l.path, Trust{Since: o.Since, Known: o.Known}); err != nil {
		return nil, err
	}
	from := o.Since.Head.Seq
	var files []span
	for _, f := range l.full {
		if f.last >= from {
			files = append(files, span{path: f.path, size: -1})
		}
	}
	files = append(files, span{path: l.path, size: l.size, open: l.f})
	if from > 0 {
		first, err := files[0].behind(from)
		if err != nil {
			return nil, damaged(l.path, fmt.Sprintf("record %d cannot be found where it was written (%v)", from, err))
		}
		files[0], c.next, c.prev = first, from, nil
		for len(c.known) > 0 && c.known[0].Seq < from {
			c.known = c.known[1:]
		}
	} else if err := c.begin(l.path, files[0]); err != nil {
		return nil, err
	}
	c.removable = c.gone // the checkpoints say whether they may be missing
	v, err := c.walkFiles(ctx, files, nil)
	if err == nil && v.Bad != nil {
		err = damaged(l.path, v.Bad.Detail)
	}
	return v.Late, err
}

// reopened has the mark reach behind late records, before anything follows them.
func (l *Log) reopened(ctx context.Context, o *Options, late *Late) error {
	m := Mark{Head: l.durable, Late: late}
	err := l.catchUp(ctx, o.Since)
	m.Open = slices.Sorted(maps.Keys(l.open))
	clear(l.open)
	if err == nil && o.Reopened != nil {
		err = o.Reopened(ctx, m)
	}
	o.Since, o.Known = m, Head{}
	return err
}

// noteRepair writes a repair record, unless repair is nil.
func (l *Log) noteRepair(ctx context.Context, repair *Mended) error {
	if repair == nil {
		return nil
	}
	data, err := json.Marshal(repair)
	if err == nil {
		_, err = l.Append(ctx, Record{Type: Repair, Principal: "system", Status: StatusOK, Data: data})
	}
	return err
}

// Mended is the Data of a repair record.
type Mended struct {
	// CutBytes were cut off the end; CutSHA256 is the hex hash over them.
	CutBytes  int64  `json:"cut_bytes,omitempty"`
	CutSHA256 string `json:"cut_sha256,omitempty"`
	// SetAside is where a damaged log was kept, and Damage what was wrong with it.
	SetAside string `json:"set_aside,omitempty"`
	Damage   string `json:"damage,omitempty"`
	// Late were found behind the end of a daemon, and taken for its own.
	Late *Late `json:"late,omitempty"`
}

// openLocked opens path, checks who may write it and takes its lock.
func openLocked(path string) (*os.File, error) { return openWith(path, unix.LOCK_EX|unix.LOCK_NB) }

// openWith is openLocked with the flags of flock.
func openWith(path string, how int) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot open the audit log %q: its path must be absolute: %w", path, errdefs.ErrInvalidArgument)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the audit log: %w", err)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the audit log: %w", err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("cannot open the audit log: other users may enter its directory (mode %#o); run: chmod 700 %s: %w",
			fi.Mode().Perm(), dir, errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the audit log: %w", err)
	}
	if err := claim(f, path, how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func claim(f *os.File, path string, how int) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot open the audit log: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("cannot open the audit log %s: it is not a regular file: %w", path, errdefs.ErrFailedPrecondition)
	}
	if fi.Mode().Perm()&0o177 != 0 {
		return fmt.Errorf("cannot open the audit log: other users may read or write it (mode %#o); run: chmod 600 %s: %w",
			fi.Mode().Perm(), path, errdefs.ErrFailedPrecondition)
	}
	switch err := lockFile(f, how); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("cannot open the audit log %s: another process has it open; "+
			"a second carreld with the same data directory? end that one first: %w",
			path, errdefs.ErrFailedPrecondition)
	case err != nil:
		return fmt.Errorf("cannot lock the audit log %s: %w", path, err)
	}
	if fi.Size() > 0 && how&unix.LOCK_NB == 0 {
		return nil // whoever made it did this
	}
	// Otherwise the whole log could be lost in a crash.
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open the directory of the audit log: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("cannot make the audit log's name durable: %w", err)
	}
	return nil
}

// inspect finds the end of the chain and makes the Log. data is where the file's bytes end, behind the log's size if its end
// is torn. It changes nothing.
func inspect(f *os.File, o Options) (l *Log, data int64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open the audit log: %w", err)
	}
	data, err = dataEnd(f, fi.Size())
	if err != nil {
		return nil, 0, err
	}
	size := data
	if o.Room > 0 && !o.Since.Ended { // a clean stop left no group half written
		if size, err = firstZero(f, data); err != nil {
			return nil, 0, err
		}
	}
	if size, err = endOfLines(f, size); err != nil {
		return nil, 0, err
	}
	head, err := lastHead(f, size, o.Path)
	if err != nil {
		return nil, 0, err
	}
	full, first, err := fullBefore(f, o.Path, size)
	if err != nil {
		return nil, 0, err
	}
	real, err := newFile(f)
	if err != nil {
		return nil, 0, err
	}
	l = &Log{
		f: real, path: o.Path, seq: head.Seq, durable: head, size: size, open: make(map[int64]struct{}), failed: make(chan struct{}),
		full: full, first: first.Seq, maxSize: o.MaxSize, maxAge: o.MaxAge, cut: -1, wrap: o.wrap,
	}
	l.reserve = o.Reserve
	l.ahead = diskreserve.Ahead{Least: o.Room, Step: o.Room / 2}
	l.ahead.Has(fi)
	l.zeroed, l.spreads = fi.Size(), o.Room > 0 && overwritten(f)
	l.last.first, l.last.size, l.last.began = first.Seq, size, first.Time
	copy(l.hash[:], cmp.Or(head.Hash, Genesis))
	if o.wrap != nil {
		l.f = o.wrap(l.f)
	}
	return l, data, nil
}

// cutOff cuts off what stands between the last line and data.
func (l *Log) cutOff(f *os.File, data int64) (*Mended, error) {
	size := l.size
	if size == data {
		return nil, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, size, data-size)); err != nil {
		return nil, fmt.Errorf("cannot read the torn end of the audit log: %w", err)
	}
	if err := f.Truncate(size); err != nil {
		return nil, fmt.Errorf("cannot cut the torn end off the audit log: %w", err)
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("cannot cut the torn end off the audit log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot open the audit log: %w", err)
	}
	l.ahead.Has(fi)
	l.zeroed = size
	return &Mended{CutBytes: data - size, CutSHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// endOfLines returns the offset after the last newline before size.
func endOfLines(f io.ReaderAt, size int64) (int64, error) {
	for end, buf := size, make([]byte, lookAt); end > 0; {
		n := min(end, int64(len(buf)))
		if _, err := f.ReadAt(buf[:n], end-n); err != nil {
			return 0, fmt.Errorf("cannot read the end of the audit log: %w", err)
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}
	return 0, nil
}

// lastHead reads the last line before size, which is after a newline, and
// checks its hash.
func lastHead(f io.ReaderAt, size int64, path string) (Head, error) {
	if size == 0 {
		return Head{}, nil
	}
	var line []byte
	for _, n := range []int64{lookAt, MaxRecord + 1} {
		buf := make([]byte, min(size, n))
		if _, err := f.ReadAt(buf, size-int64(len(buf))); err != nil {
			return Head{}, fmt.Errorf("cannot read the end of the audit log: %w", err)
		}
		line = buf[:len(buf)-1]
		if i := bytes.LastIndexByte(line, '\n'); i >= 0 {
			line = line[i+1:]
			break
		}
	}
	fr, ok := parseFrame(line)
	if !ok || !hashHolds(line, fr) || !json.Valid(line) {
		return Head{}, damaged(path, "its last record was changed after it was written, or is no record")
	}
	return Head{Seq: fr.seq, Hash: string(fr.hash)}, nil
}

func damaged(path, what string) error {
	return fmt.Errorf("cannot open the audit log %s: %s; \"audit verify\" names the first bad record: %w: %w",
		path, what, ErrDamaged, errdefs.ErrDataLoss)
}

// SetAside renames a damaged log, its checkpoints and their key, as Open does with AcceptDamage,
// and opens a new log. damage is the error of OpenCheckpoints.
func SetAside(ctx context.Context, o Options, damage error) (*Log, error) {
	f, err := openLocked(o.Path)
	if err != nil {
		return nil, err
	}
	f, repair, err := setAside(f, o.Path, damage)
	if err != nil {
		return nil, err
	}
	o.Since, o.Known = Mark{}, Head{}
	l, _, err := inspect(f, o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := l.noteRepair(ctx, repair); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// setAside renames a damaged log, whose lock f holds, and opens a new one.
func setAside(f *os.File, path string, damage error) (*os.File, *Mended, error) {
	// The key too: the new log has another key and so another name.
	suffix := ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	kept := path + suffix
	names := []string{filepath.Base(path), checkpointsName, removedName, treeName, secretName, publicName}
	full, err := fullFiles(path)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	for _, o := range full {
		names = append(names, filepath.Base(o.path))
	}
	for _, name := range names {
		name = filepath.Join(filepath.Dir(path), name)
		if err := os.Rename(name, name+suffix); err != nil && (name == path || !errors.Is(err, os.ErrNotExist)) {
			return nil, nil, errors.Join(fmt.Errorf("cannot keep the damaged audit log aside: %w", err), f.Close())
		}
	}
	fresh, err := openLocked(path)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = errors.Join(fmt.Errorf("cannot close the damaged audit log: %w", cerr), fresh.Close())
	}
	if err != nil {
		return nil, nil, err
	}
	return fresh, &Mended{SetAside: kept, Damage: damage.Error()}, nil
}
