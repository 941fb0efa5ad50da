// Package tarfmt encodes and decodes tar headers: POSIX ustar with pax extended
// headers, GNU long names, and sparse maps of GNU's 1.0 and old GNU form.
//
// archive/tar cannot replace it, because holes would become data: its Writer drops the
// GNU.sparse records, and its Reader expands a sparse file and does not return the map
// (a hole of 8 GiB is 8 GiB of zeros to read, which no limit on data could count).
// Measured with Go 1.26.8 on an EPYC core: a header takes 3.2 µs to write with
// archive/tar and 1.2 here, an entry of 1 KiB 5.8 µs to read and 1.6 here; it adds
// 33 KB to carrel-archive.
//
// The package must not open, make or look at files, and it trusts nothing that it reads.
package tarfmt

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// BlockSize is the unit of a tar stream: headers take whole blocks, data is padded to them.
const BlockSize = 512

// MaxExtents is the most pieces that the data of a sparse file may have.
const MaxExtents = 1 << 16

// MaxXattrs is the most extended attributes that an entry may have.
const MaxXattrs = 1024

// Kind is the typeflag of an entry: POSIX.1-2001, pax.
type Kind byte

// The kinds of entries.
const (
	Regular   Kind = '0'
	Link      Kind = '1'
	Symlink   Kind = '2'
	Char      Kind = '3'
	Block     Kind = '4'
	Directory Kind = '5'
	FIFO      Kind = '6'
)

// Xattr is an extended attribute; its name has the namespace in front ("user.x").
type Xattr struct {
	Name  string
	Value []byte
}

// Extent is a piece of a sparse file that holds data, in bytes.
type Extent struct{ Offset, Length int64 }

// Header is one entry.
type Header struct {
	Kind Kind
	Mode uint32 // permissions with set-id and sticky bits, 07777
	// Name is the path in the archive, without the slash at the end of a
	// directory's. Target is what a link or symlink points to.
	Name, Target string
	UID, GID     int64
	// Size is the number of data bytes that follow, without padding. For a sparse file that
	// is the sum of Extents, and RealSize is the length of the file.
	Size, RealSize int64
	Sec            int64 // of the last modification, since 1970
	Nsec           int64
	Xattrs         []Xattr
	Sparse         bool
	Extents        []Extent
}

// Limits bound the contents of headers.
type Limits struct {
	Path  int // bytes of a name or target
	Xattr int // bytes of an entry's extended attributes, names and values
}

// Extended headers may take headerFloor bytes and headerPerEntry more for each entry: enough for
// a long path and a few attributes of every entry.
const (
	headerFloor    = 64 << 20
	headerPerEntry = 16 << 10
	// paxBeside is for the records of an extended header that are not path, target or attribute.
	paxBeside = 64 << 10
)

// MaxHeaders is how many bytes of extended headers and maps of sparse files a Reader takes when it has
// read so many entries.
func MaxHeaders(entries int64) int64 { return headerFloor + headerPerEntry*entries }

func damaged(why string, args ...any) error {
	return fmt.Errorf("%s: the archive is damaged or made to harm, take another copy: %w",
		fmt.Sprintf(why, args...), errdefs.ErrInvalidArgument)
}

func over(what string, limit int64) error {
	return fmt.Errorf("%s are more than the limit of %d: raise it if the archive can be trusted: %w",
		what, limit, errdefs.ErrResourceExhausted)
}

func pad(n int64) int64 { return -n & (BlockSize - 1) }
