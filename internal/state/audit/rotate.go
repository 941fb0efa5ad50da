package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// Rotated is the Data of a rotation record.
type Rotated struct {
	// File is the name of the file before, and LastHash the hash of its last record.
	File     string `json:"file"`
	LastHash string `json:"last_hash"`
	// TreeSize counts the records before this one.
	TreeSize int64 `json:"tree_size"`
}

// isFull reports whether the next record begins another file. l.mu is held.
func (l *Log) isFull(now time.Time) bool {
	if l.cut >= 0 || l.seq < l.last.first { // another file has begun already, or this one is empty
		return false
	}
	return l.maxSize > 0 && l.last.size >= l.maxSize || l.maxAge > 0 && now.Sub(l.last.began) >= l.maxAge
}

// queueRotation queues the first record of the next file. l.mu is held.
func (l *Log) queueRotation(now time.Time) {
	data, _ := json.Marshal(Rotated{ // strings and a number always marshal
		File: filepath.Base(fullName(l.path, l.last.first, l.seq)), LastHash: string(l.hash[:]), TreeSize: l.seq,
	})
	r := Record{Type: Rotation, Principal: "system", Status: StatusOK, Data: data}
	l.cut = len(l.pending)
	l.pending = r.appendRest(appendStart(l.pending, l.hash[:], l.seq+1, now))
	seal(l.pending[l.cut:])
	l.seq++
	l.last.first, l.last.size, l.last.began = l.seq, int64(len(l.pending)-l.cut), now
	copy(l.hash[:], hashOf(l.pending[l.cut:]))
}

// rotate syncs the current file, which has the lines before cut and is then full, and writes the others to
// the next file, which prepare has made. l.mu is not held; nobody else writes.
//
//	end of the full file ─► next file under the name .new ─► second name of the full file ─►
//	.new replaces its first name
//
// So there is always a complete file with the log's name. A crash leaves a .new, whose records were
// not acknowledged, or a second name; the next start removes both.
func (l *Log) rotate(lines []byte, cut int) error {
	if cut > 0 {
		if err := l.f.Datasync(); err != nil {
			return err
		}
	}
	crashpoint.Here("daemon.rotate.filled")
	f, ok := parseFrame(lines[cut : cut+lineLen(lines[cut:])])
	if !ok {
		return errors.New("the first record of the next file has no number") // it was written here
	}
	if l.prepared.err != nil {
		return l.prepared.err
	}
	next, to := l.prepared.real, l.prepared.file
	full := fullFile{fullName(l.path, l.first, f.seq-1), l.first, f.seq - 1}
	err := func() error {
		crashpoint.Here("daemon.rotate.made")
		_, err := l.write(to, lines[cut:], 0)
		crashpoint.Here("daemon.rotate.written")
		if err == nil {
			err = next.Sync()
		}
		if err == nil {
			err = os.Link(l.path, full.path)
		}
		if diskreserve.Full(err) {
			l.prepared.ahead.Reset()
			l.prepared.zeroed = 0
			err = fmt.Errorf("%w: %w", errPutOff, err)
			return errors.Join(err, next.Truncate(0))
		}
		if err != nil {
			return err
		}
		crashpoint.Here("daemon.rotate.named")
		if err := os.Rename(next.Name(), l.path); err != nil {
			return err
		}
		if real, ok := l.f.(interface{ Truncate(int64) error }); ok { // what is behind its end
			_ = real.Truncate(l.size + int64(cut))
		}
		crashpoint.Here("daemon.rotate.replaced")
		return syncDir(filepath.Dir(l.path))
	}()
	if errors.Is(err, errPutOff) {
		return err // the next file is still there for the next attempt
	}
	if err != nil {
		return errors.Join(err, to.Close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// The garbage collector closes the old file when nobody reads it any more.
	l.f, l.size, l.first, l.ahead, l.zeroed = to, int64(len(lines)-cut), f.seq, l.prepared.ahead, l.prepared.zeroed
	l.prepared = nil
	l.full = append(slices.Clip(l.full), full)
	return nil
}

// lineLen returns the length of the first line without its newline.
func lineLen(lines []byte) int {
	for i, c := range lines {
		if c == '\n' {
			return i
		}
	}
	return len(lines)
}

// fullBefore lists the full files before the current file f, and returns f's first record. It
// removes what a crash left of a rotation.
func fullBefore(f *os.File, path string, size int64) (full []fullFile, first Record, err error) {
	all, err := fullFiles(path)
	if err != nil {
		return nil, first, err
	}
	live, err := f.Stat()
	if err != nil {
		return nil, first, fmt.Errorf("cannot open the audit log: %w", err)
	}
	left := []string{path + newSuffix}
	for _, o := range all {
		fi, err := os.Stat(o.path)
		if err != nil {
			return nil, first, fmt.Errorf("cannot open the audit log: %w", err)
		}
		if os.SameFile(fi, live) {
			left = append(left, o.path)
			continue
		}
		full = append(full, o)
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, first, fmt.Errorf("cannot remove what was left of a rotation of the audit log: %w", err)
		}
	}
	first.Seq = 1
	if size > 0 {
		line, err := part{path: path, f: f, end: size}.firstLine()
		if err == nil {
			first, err = Decode(line)
		}
		if err != nil {
			return nil, first, damaged(path, fmt.Sprintf("its first record cannot be read (%v)", err))
		}
	}
	before := int64(0)
	if len(full) > 0 {
		before = full[len(full)-1].last
	} else if known, err := bases(path); err != nil {
		return nil, first, err
	} else if b, ok := known[first.Seq-1]; ok {
		before = b.To
	}
	if first.Seq != before+1 {
		return nil, first, damaged(path, fmt.Sprintf("it begins with record %d, and the files before it end with record %d: one is missing",
			first.Seq, before))
	}
	return full, first, nil
}
