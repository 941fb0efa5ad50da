package archives

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// maxArchive bounds an archive of a workspace without a disk limit, in bytes: what the archiver packs
// at most, and some for its frames.
const maxArchive = 65 << 30

// most is how many bytes an archive of a workspace with those limits may have: what its home can hold
// and a tenth for what does not compress.
func most(l workspace.Limits) int64 {
	if l.DiskBytes > 0 {
		return l.DiskBytes + l.DiskBytes/10 + 16<<20
	}
	return maxArchive
}

// boundedWriter passes on what is written, up to a number of bytes.
type boundedWriter struct {
	w    io.Writer
	left int64
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, fmt.Errorf("cannot archive: it takes more bytes than the workspace's disk limit lets it have: %w",
			errdefs.ErrResourceExhausted)
	}
	return b.w.Write(p)
}

// digest sums what is written to it, and counts it. It goes beside a stream, by io.TeeReader or
// io.MultiWriter.
type digest struct {
	hash.Hash
	n int64
}

func newDigest() *digest { return &digest{Hash: sha256.New()} }

func (d *digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.Hash.Write(p)
}

// text is the sum in hexadecimal digits.
func (d *digest) text() string { return hex.EncodeToString(d.Sum(nil)) }
