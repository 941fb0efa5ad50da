package audit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// frontier is an append-only hash tree of RFC 6962. Of its n leaves it holds the roots of the
// largest whole subtrees: edge[i] is the root of 1<<i leaves if n has that bit.
type frontier struct {
	n    int64
	edge [63]tlog.Hash
}

// add appends a leaf. It calls store, if not nil, with the leaf and the root of each subtree that
// the leaf completes, in the order in which package tlog stores them.
func (f *frontier) add(h tlog.Hash, stored func(tlog.Hash)) {
	i := 0
	for ; ; i++ {
		if stored != nil {
			stored(h)
		}
		if f.n>>i&1 == 0 {
			break
		}
		h = nodeHash(&f.edge[i], &h)
	}
	f.edge[i] = h
	f.n++
}

// nodeHash is tlog.NodeHash without an allocation, for BenchmarkVerifySigned.
func nodeHash(left, right *tlog.Hash) tlog.Hash {
	var b [1 + 2*tlog.HashSize]byte
	b[0] = 1
	copy(b[1:], left[:])
	copy(b[1+tlog.HashSize:], right[:])
	return sha256.Sum256(b[:])
}

// root returns the root of all leaves; there must be at least one.
func (f *frontier) root() (root tlog.Hash) {
	first := true
	for i := range f.edge {
		switch {
		case f.n>>i&1 == 0:
		case first:
			root, first = f.edge[i], false
		default:
			root = tlog.NodeHash(f.edge[i], root)
		}
	}
	return root
}

// tree is a frontier whose hashes are stored in a file in the order of package tlog, so that proofs
// can be made. The file is never trusted over the log: opening it rebuilds what is behind the last
// checkpoint, what is before must give the signed root, and each proof is checked before use.
type tree struct {
	f *os.File
	frontier
	// written counts the hashes in the file; buf has further ones.
	written int64
	buf     []byte
	reserve *diskreserve.Reserve // as that of a Log
}

func openTree(path string) (*tree, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the hash tree of the audit log: %w", err)
	}
	return &tree{f: f}, nil
}

// cut shortens the stored tree to its first n records. It returns false if it has fewer.
func (t *tree) cut(n int64) (bool, error) {
	fi, err := t.f.Stat()
	if err != nil {
		return false, fmt.Errorf("cannot read the hash tree of the audit log: %w", err)
	}
	t.frontier, t.buf, t.written = frontier{}, t.buf[:0], 0
	if n > 0 && tlog.StoredHashCount(n) > fi.Size()/tlog.HashSize {
		return false, nil
	}
	if n > 0 {
		t.written = tlog.StoredHashCount(n)
	}
	for i := range t.edge {
		if n>>i&1 == 0 {
			continue
		}
		h, err := t.ReadHashes([]int64{tlog.StoredHashIndex(i, n>>i-1)})
		if err != nil {
			return false, err
		}
		t.edge[i] = h[0]
	}
	t.n = n
	if fi.Size() == t.written*tlog.HashSize {
		return true, nil // to cut it off would give up the room behind its end
	}
	if err := t.f.Truncate(t.written * tlog.HashSize); err != nil {
		return false, fmt.Errorf("cannot shorten the hash tree of the audit log: %w", err)
	}
	return true, nil
}

// add appends the leaf of one record.
func (t *tree) add(line []byte) error {
	t.frontier.add(tlog.RecordHash(line), func(h tlog.Hash) { t.buf = append(t.buf, h[:]...) })
	if len(t.buf) >= readChunk {
		return t.flush()
	}
	return nil
}

func (t *tree) flush() error {
	_, err := t.f.WriteAt(t.buf, t.written*tlog.HashSize)
	for diskreserve.Full(err) && t.reserve.Give() {
		_, err = t.f.WriteAt(t.buf, t.written*tlog.HashSize)
	}
	if err != nil {
		return fmt.Errorf("cannot write the hash tree of the audit log: %w", err)
	}
	t.written += int64(len(t.buf)) / tlog.HashSize
	t.buf = t.buf[:0]
	return nil
}

// ReadHashes implements tlog.HashReader.
func (t *tree) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, index := range at {
		if off := (index - t.written) * tlog.HashSize; off >= 0 && off < int64(len(t.buf)) {
			copy(out[i][:], t.buf[off:])
			continue
		}
		if _, err := t.f.ReadAt(out[i][:], index*tlog.HashSize); err != nil {
			if errors.Is(err, io.EOF) {
				err = errdefs.ErrDataLoss
			}
			return nil, fmt.Errorf("cannot read the hash tree of the audit log: %w", err)
		}
	}
	return out, nil
}

func (t *tree) close() error { return t.f.Close() }
