package tarfmt

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// Offsets and lengths of a ustar header's fields: POSIX.1-2001, pax, "ustar Interchange Format".
const (
	atMode, lenMode       = 100, 8
	atUID, atGID, lenID   = 108, 116, 8
	atSize, lenSize       = 124, 12
	atTime, lenTime       = 136, 12
	atSum, lenSum         = 148, 8
	atKind                = 156
	atTarget, lenTarget   = 157, 100
	atMagic, lenMagic     = 257, 8
	atPrefix, lenPrefix   = 345, 155
	lenName               = 100
	maxOctal11            = 1<<33 - 1
	magicPosix, magicGNU  = "ustar\x0000", "ustar  \x00"
	paxKind, globalKind   = 'x', 'g'
	longName, longTarget  = 'L', 'K'
	oldSparse, contiguous = 'S', '7'
)

const xattrPrefix = "SCHILY.xattr."

// Append appends h's blocks to b: an extended header if needed, the header, and the map of
// a sparse file. The caller appends the data, which has Size bytes or the sum of Extents, and
// its padding.
func Append(b []byte, h *Header) []byte {
	var sparse, records []byte
	name, size := h.Name, h.Size
	if h.Kind == Directory {
		name += "/"
	}
	if h.Sparse {
		sparse = appendMap(nil, h.Extents)
		size = int64(len(sparse))
		for _, e := range h.Extents {
			size += e.Length
		}
		records = appendRecord(records, "GNU.sparse.major", "1")
		records = appendRecord(records, "GNU.sparse.minor", "0")
		records = appendRecord(records, "GNU.sparse.name", name)
		records = appendRecord(records, "GNU.sparse.realsize", strconv.FormatInt(h.RealSize, 10))
		// The name for a reader without sparse files, which unpacks map and data.
		name = "GNUSparseFile.0/" + name[strings.LastIndexByte(name, '/')+1:]
	} else if !fits(name, lenName) {
		records = appendRecord(records, "path", name)
	}
	if !fits(h.Target, lenTarget) {
		records = appendRecord(records, "linkpath", h.Target)
	}
	if size > maxOctal11 {
		records = appendRecord(records, "size", strconv.FormatInt(size, 10))
	}
	if h.Nsec != 0 || h.Sec < 0 || h.Sec > maxOctal11 {
		records = appendRecord(records, "mtime", formatTime(h.Sec, h.Nsec))
	}
	for _, x := range h.Xattrs {
		records = appendRecord(records, xattrPrefix+xattrEscape.Replace(x.Name), string(x.Value))
	}
	if len(records) > 0 {
		b = appendBlock(b, &Header{Kind: paxKind, Mode: 0o644, Sec: h.Sec}, "PaxHeaders.0/entry", int64(len(records)))
		b = append(b, records...)
		b = append(b, zeros[:pad(int64(len(records)))]...)
	}
	b = appendBlock(b, h, name, size)
	return append(b, sparse...)
}

// AppendEnd appends the two empty blocks that end an archive.
func AppendEnd(b []byte) []byte { return append(append(b, zeros[:]...), zeros[:]...) }

// Padding returns the zeros that follow n bytes of data.
func Padding(n int64) []byte { return zeros[:pad(n)] }

var zeros [BlockSize]byte

// xattrEscape is GNU tar's: a keyword ends at its first equals sign.
var xattrEscape = strings.NewReplacer("%", "%25", "=", "%3D")

// fits reports whether a field of n bytes can hold s, and every reader takes it the same way.
func fits(s string, n int) bool {
	return len(s) <= n && !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

func appendBlock(b []byte, h *Header, name string, size int64) []byte {
	at := len(b)
	b = append(b, zeros[:]...)
	f := b[at : at+BlockSize : at+BlockSize]
	copy(f[:lenName], name)
	octal(f[atMode:atMode+lenMode], int64(h.Mode))
	octal(f[atUID:atUID+lenID], h.UID)
	octal(f[atGID:atGID+lenID], h.GID)
	octal(f[atSize:atSize+lenSize], min(size, maxOctal11)) // a larger one is in the extended header
	octal(f[atTime:atTime+lenTime], min(max(h.Sec, 0), maxOctal11))
	f[atKind] = byte(h.Kind)
	copy(f[atTarget:atTarget+lenTarget], h.Target)
	copy(f[atMagic:], magicPosix)
	octal(f[atSum:atSum+lenSum-1], sum(f))
	f[atSum+lenSum-1] = ' '
	return b
}

// octal fills f with n, with leading zeros and a NUL at the end.
func octal(f []byte, n int64) {
	for i := len(f) - 2; i >= 0; i-- {
		f[i] = '0' + byte(n&7)
		n >>= 3
	}
	f[len(f)-1] = 0
}

// sum returns the checksum of a header, in which its own field counts as spaces.
func sum(f []byte) (n int64) {
	for i, c := range f[:BlockSize] {
		if i >= atSum && i < atSum+lenSum {
			c = ' '
		}
		n += int64(c)
	}
	return n
}

// appendRecord appends "length key=value\n", where length counts itself.
func appendRecord(b []byte, key, value string) []byte {
	n := len(key) + len(value) + 3
	total := n + len(strconv.Itoa(n))
	if len(strconv.Itoa(total)) > len(strconv.Itoa(n)) {
		total++
	}
	b = strconv.AppendInt(b, int64(total), 10)
	b = append(b, ' ')
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, '\n')
}

// formatTime formats seconds with their fraction; -1.25 is 0.25 s before -1.
func formatTime(sec, nsec int64) string {
	sign := ""
	if sec < 0 && nsec > 0 {
		sec, nsec = sec+1, 1e9-nsec
		if sec == 0 {
			sign = "-"
		}
	}
	s := sign + strconv.FormatInt(sec, 10)
	if nsec == 0 {
		return s
	}
	frac := strconv.FormatInt(1e9+nsec, 10)[1:]
	return s + "." + strings.TrimRight(frac, "0")
}

// appendMap appends the map of GNU's sparse form 1.0: the number of pieces, then the
// offset and length of each, one number a line, padded to whole blocks.
func appendMap(b []byte, extents []Extent) []byte {
	b = slices.Grow(b, 16*len(extents)+BlockSize)
	b = append(strconv.AppendInt(b, int64(len(extents)), 10), '\n')
	for _, e := range extents {
		b = append(strconv.AppendInt(b, e.Offset, 10), '\n')
		b = append(strconv.AppendInt(b, e.Length, 10), '\n')
	}
	return append(b, Padding(int64(len(b)))...)
}

func empty(f []byte) bool { return bytes.Equal(f, zeros[:]) }
