package archive_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive"
	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

// The kinds of error that the tables expect.
var (
	invalid   = errdefs.IsInvalidArgument
	lost      = errdefs.IsDataLoss
	exhausted = errdefs.IsResourceExhausted
)

func compress(t testing.TB, data []byte) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	must(t, err)
	defer e.Close()
	return e.EncodeAll(data, nil)
}

// entry is a header and its data.
type entry struct {
	tarfmt.Header
	data string
}

func file(name, data string) entry {
	return entry{tarfmt.Header{Kind: tarfmt.Regular, Name: name, Mode: 0o644, Size: int64(len(data))}, data}
}

func link(kind tarfmt.Kind, name, target string) entry {
	return entry{tarfmt.Header{Kind: kind, Name: name, Target: target, Mode: 0o777}, ""}
}

func dir(name string) entry {
	return entry{tarfmt.Header{Kind: tarfmt.Directory, Name: name, Mode: 0o755}, ""}
}

// raw returns a tar stream of entries without an end mark.
func raw(list ...entry) (b []byte) {
	for _, e := range list {
		b = tarfmt.Append(b, &e.Header)
		b = append(append(b, e.data...), tarfmt.Padding(int64(len(e.data)))...)
	}
	return b
}

func whole(list ...entry) []byte { return tarfmt.AppendEnd(raw(list...)) }

// reference makes an archive with archive/tar, which writes some records that tarfmt does not.
func reference(t testing.TB, list ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		must(t, w.WriteHeader(h))
	}
	must(t, w.Close())
	return b.Bytes()
}

// outside makes a directory beside the one that is unpacked into, as a target of attacks.
func outside(t *testing.T) (victim, into string) {
	t.Helper()
	base := t.TempDir()
	victim, into = filepath.Join(base, "outside"), filepath.Join(base, "into")
	must(t, os.MkdirAll(filepath.Join(victim, "dir"), 0o755))
	must(t, os.Mkdir(into, 0o700))
	must(t, os.WriteFile(filepath.Join(victim, "file"), []byte("theirs"), 0o644))
	return victim, into
}

// Each archive is refused, or unpacked without harm, and nothing outside of the directory has
// changed.
func TestHostile(t *testing.T) {
	small := archive.Limits{Bytes: 1 << 20, FileBytes: 1 << 19, Entries: 100, Depth: 12, PathBytes: 200, XattrBytes: 1000}
	evil := filepath.Join(t.TempDir(), "evil")
	device := func(kind byte) []byte {
		return reference(t, &tar.Header{Name: "dev", Typeflag: kind, Devmajor: 1, Devminor: 3, Mode: 0o666})
	}
	bomb := func() []byte {
		return whole(file("zeros", strings.Repeat("\x00", 200<<20)))
	}
	many := func(n int) []byte {
		var list []entry
		for i := range n {
			list = append(list, file(fmt.Sprint(i), ""))
		}
		return whole(list...)
	}
	sparse := entry{tarfmt.Header{
		Kind: tarfmt.Regular, Name: "s", Mode: 0o644, Sparse: true, RealSize: 1 << 50, Extents: []tarfmt.Extent{{Offset: 1 << 50}},
	}, ""}
	xattr := file("x", "")
	xattr.Xattrs = []tarfmt.Xattr{{Name: "user.a", Value: make([]byte, 2000)}}
	nulAttr := file("x", "")
	nulAttr.Xattrs = []tarfmt.Xattr{{Name: "user.a\x00b"}}
	trusted := file("x", "")
	trusted.Xattrs = []tarfmt.Xattr{{Name: "trusted.overlay.opaque", Value: []byte("y")}, {
		Name: "security.capability", Value: []byte("\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
	}}
	far := file("x", "")
	far.Sec = 1 << 55
	zipped := func(b []byte) []byte { return compress(t, b) }
	cut := zipped(whole(file("a", strings.Repeat("text and more", 5000)+string(make([]byte, 1000)))))
	late := zipped(append(whole(file("a", "x")), make([]byte, 900<<10)...))
	flipped := bytes.Clone(cut)
	flipped[len(flipped)-2] ^= 1 // in the checksum
	wide := func() []byte {      // a frame that claims a window of 16 MiB
		b := binary.LittleEndian.AppendUint32(nil, 0xFD2FB528)
		return append(b, 0x00, 14<<3, 1, 0, 0)
	}

	for name, row := range map[string]struct {
		data   []byte
		want   string // "" is unpacked, harmlessly
		is     func(error) bool
		zipped bool // data is compressed already
		limits *archive.Limits
	}{
		"dot dot":                   {data: whole(file("../outside/file", "evil")), want: "leads out", is: invalid},
		"dot dot deep":              {data: whole(file("a/b/../../../outside/file", "evil")), want: "leads out", is: invalid},
		"dot dot within":            {data: whole(dir("a"), file("a/../b", "evil")), want: "leads out", is: invalid},
		"dot dot directory":         {data: whole(dir("..")), want: "leads out", is: invalid},
		"absolute":                  {data: whole(file(evil, "evil")), want: "is absolute", is: invalid},
		"the root itself as a file": {data: whole(file("./", "evil")), want: "directory itself", is: invalid},
		"the root itself as a link": {data: whole(link(tarfmt.Symlink, ".", "../outside")), want: "directory itself", is: invalid},
		"symlink, write through": {data: whole(
			link(tarfmt.Symlink, "l", "../outside"), file("l/file", "evil"),
		), want: "no directory in the archive", is: invalid},
		"symlink, new file through": {data: whole(
			link(tarfmt.Symlink, "l", "../outside/new"), file("l", "evil"),
		), want: "the name twice", is: invalid},
		"symlink, directory over it": {data: whole(
			link(tarfmt.Symlink, "l", "../outside"), dir("l"),
		), want: "no directory in the archive", is: invalid},
		"symlink to absolute": {data: whole(
			link(tarfmt.Symlink, "l", "/"), dir("l"+evil),
		), want: "no directory in the archive", is: invalid},
		"symlink of symlinks": {data: whole(
			link(tarfmt.Symlink, "a", "."), link(tarfmt.Symlink, "b", "a/.."), file("b/outside/file", "evil"),
		), want: "no directory in the archive", is: invalid},
		"symlink left alone": {data: whole(link(tarfmt.Symlink, "l", "../outside/file"))},
		"symlink over a file": {data: whole(
			file("f", "x"), file("later", ""), link(tarfmt.Symlink, "f", "../outside/file"),
		), want: "the name twice", is: invalid},
		"FIFO over a symlink": {data: whole(link(tarfmt.Symlink, "l", "../outside/file"), entry{
			Header: tarfmt.Header{Kind: tarfmt.FIFO, Name: "l", Mode: 0o777},
		}), want: "the name twice", is: invalid},
		"hard link out":      {data: whole(link(tarfmt.Link, "h", "../outside/file")), want: "leads out", is: invalid},
		"hard link absolute": {data: whole(link(tarfmt.Link, "h", "/etc/passwd")), want: "is absolute", is: invalid},
		"hard link to nothing": {data: whole(
			link(tarfmt.Link, "h", "later"), file("later", "x"),
		), want: "not unpacked before", is: invalid},
		"hard link to itself": {data: whole(link(tarfmt.Link, "h", "h")), want: "not unpacked before", is: invalid},
		"hard link to a symlink": {data: whole(
			link(tarfmt.Symlink, "l", "../outside/file"), link(tarfmt.Link, "h", "l"),
		), want: "is no file", is: invalid},
		"hard link through a symlink": {data: whole(
			link(tarfmt.Symlink, "l", "../outside"), link(tarfmt.Link, "h", "l/file"),
		), want: "not unpacked before", is: invalid},
		"hard link to a directory": {data: whole(dir("d"), link(tarfmt.Link, "h", "d")), want: "is no file", is: invalid},
		"hard link to the root":    {data: whole(link(tarfmt.Link, "h", ".")), want: "directory itself", is: invalid},
		"hard link over a file": {data: whole(
			file("a", "x"), file("b", "y"), link(tarfmt.Link, "b", "a"),
		), want: "the name twice", is: invalid},
		"character device":            {data: device(tar.TypeChar), want: "device", is: invalid},
		"block device":                {data: device(tar.TypeBlock), want: "device", is: invalid},
		"twice the same file":         {data: whole(file("a", "x"), file("a", "y")), want: "the name twice", is: invalid},
		"the same by another path":    {data: whole(file("a", "x"), file(".//./a", "y")), want: "the name twice", is: invalid},
		"a file, then below it":       {data: whole(file("a", "x"), file("a/b", "y")), want: `"a`, is: invalid},
		"a file where a directory is": {data: whole(dir("a"), file("a", "x")), want: "the name twice", is: invalid},
		"twice the same directory":    {data: whole(dir("a"), file("b", ""), dir("a"), file("a/c", ""))},
		"NUL in a name":               {data: whole(file("a\x00b"+strings.Repeat("c", 100), "x")), want: "NUL", is: invalid},
		"newline in a name":           {data: whole(file("a\nb", "x"))},
		"a name of 256 bytes": {data: whole(
			file(strings.Repeat("n", 256), ""),
		), limits: &archive.Limits{}, want: "longer than 255", is: invalid},
		"a long path": {data: whole(
			file(strings.Repeat("nn/", 2)+strings.Repeat("n", 220), ""),
		), want: "limit of", is: exhausted},
		"a deep path":      {data: whole(file(strings.Repeat("n/", 12)+"n", "")), want: "levels", is: exhausted},
		"a long target":    {data: whole(link(tarfmt.Symlink, "l", strings.Repeat("t", 300))), want: "limit of", is: exhausted},
		"too many entries": {data: many(101), want: "limit of 100", is: exhausted},
		"too many named directories": {data: whole(
			file("1/2/3/4/5/6/7/a", ""), file("2/2/3/4/5/6/7/a", ""),
		), limits: &archive.Limits{Entries: 10}, want: "directories", is: exhausted},
		"a large file": {data: whole(file("a", strings.Repeat("x", 1<<19+1))), want: "limit of 524288", is: exhausted},
		"much in all": {data: whole(
			file("a", strings.Repeat("x", 1<<19)), file("b", strings.Repeat("x", 1<<19)), file("c", "x"),
		), want: "limit of 1048576", is: exhausted},
		"a size without data": {data: append(raw(entry{
			Header: tarfmt.Header{Kind: tarfmt.Regular, Name: "a", Size: 1 << 50},
		}), make([]byte, 1024)...), want: "limit of", is: exhausted},
		"sparse bomb":              {data: whole(sparse), want: "limit of 524288", is: exhausted},
		"zip bomb":                 {data: bomb(), limits: &archive.Limits{Ratio: 1000}, want: "gives more than", is: exhausted},
		"zip bomb, by size":        {data: bomb(), want: "limit of", is: exhausted},
		"large attributes":         {data: whole(xattr), want: "extended attributes", is: exhausted},
		"NUL in an attribute":      {data: whole(nulAttr), want: "keyword", is: invalid},
		"attributes of the system": {data: whole(trusted)},
		"a time far away":          {data: whole(far), want: "years", is: invalid},
		"garbage after the end":    {data: append(whole(file("a", "x")), "more"...), want: "follows the archive's end", is: invalid},
		"an archive after the end": {data: append(
			whole(file("a", "x")), whole(file("b", "x"))...,
		), want: "follows the archive's end", is: invalid},
		"nothing without end":     {data: append(whole(file("a", "x")), make([]byte, 2<<20)...), want: "after the end mark", is: exhausted},
		"no end mark":             {data: raw(file("a", "x")), want: "cut short", is: lost},
		"cut in a block":          {data: whole(file("a", "x"))[:700], want: "cut short", is: lost},
		"cut in a file's data":    {data: raw(file("a", strings.Repeat("x", 5000)))[:2048], want: "cut short", is: lost},
		"empty":                   {data: nil, zipped: true, want: "cut short", is: lost},
		"no zstd":                 {data: whole(file("a", "x")), zipped: true, want: "no zstd stream", is: invalid},
		"cut in the frame":        {data: cut[:len(cut)-5], zipped: true, want: "cut short", is: lost},
		"cut in the checksum":     {data: cut[:len(cut)-1], zipped: true, want: "cut short", is: lost},
		"cut after the end mark":  {data: late[:len(late)-1], zipped: true, want: "cut short", is: lost},
		"a wrong checksum":        {data: flipped, zipped: true, want: "damaged", is: lost},
		"garbage after the frame": {data: append(bytes.Clone(cut), "garbage"...), zipped: true, want: "follows its end", is: invalid},
		"a frame after the frame": {data: append(bytes.Clone(cut), cut...), zipped: true, want: "follows the archive's end", is: invalid},
		"a window of 16 MiB":      {data: wide(), zipped: true, want: "window", is: exhausted},
		"nothing but the end":     {data: whole()},
	} {
		t.Run(name, func(t *testing.T) {
			victim, into := outside(t)
			before := tree(t, victim)
			data, l := row.data, small
			if !row.zipped {
				data = zipped(data)
			}
			if row.limits != nil {
				l = *row.limits
			}
			s, err := archive.Read(t.Context(), bytes.NewReader(data), open(t, into), l, archive.Options{})
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want) || !row.is(err)):
				t.Errorf("got %v, want one with %q", err, row.want)
			case err != nil && len(err.Error()) > 2000:
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			sameVerdict(t, data, l, s, err)
			if d := cmp.Diff(before, tree(t, victim)); d != "" {
				t.Errorf("something outside changed: %s", d)
			}
			if _, err := os.Lstat(evil); !errors.Is(err, os.ErrNotExist) {
				t.Error("something was made by its absolute path")
			}
			for path := range tree(t, into) {
				var info os.FileInfo
				if info, err = os.Lstat(filepath.Join(into, path)); err != nil || info.Mode()&os.ModeDevice != 0 {
					t.Errorf("%s: %v, %v", path, info, err)
				}
			}
		})
	}
}

// sameVerdict sees that Verify says of an archive what Read said.
func sameVerdict(t *testing.T, data []byte, l archive.Limits, unpacked archive.Summary, read error) {
	t.Helper()
	verified, err := archive.Verify(t.Context(), bytes.NewReader(data), l, archive.Options{})
	if read == nil && verified != unpacked {
		t.Errorf("verified %+v\nunpacked %+v", verified, unpacked)
	}
	said := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	var errno unix.Errno
	if errors.As(read, &errno) && errno != unix.EEXIST {
		return // of this file system
	}
	// The system names the call that found a name taken, and a file may be made after what follows it.
	if errno == unix.EEXIST && errdefs.IsInvalidArgument(err) {
		return
	}
	if said(err) != said(read) {
		t.Errorf("it is verified with: %v\nand unpacked with: %v", err, read)
	}
}

// An archive that removes the permissions of a directory and then adds to it.
func TestComesBack(t *testing.T) {
	closed := dir("a")
	closed.Mode = 0o500
	closed.Sec = 1000
	to, _, err := unpack(t, compress(t, whole(closed, file("b", ""), file("a/c", "x"))), archive.Limits{})
	must(t, err)
	grownUp(t, to)
	info, err := os.Stat(filepath.Join(to, "a"))
	must(t, err)
	if _, err := os.Stat(filepath.Join(to, "a/c")); err != nil || info.Mode().Perm() != 0o500 || info.ModTime().Unix() != 1000 {
		t.Errorf("%v, %v, %v", info.Mode(), info.ModTime(), err)
	}
}

// Files that are still being created do not change the directory's mode and time.
func TestComesBackAtOnce(t *testing.T) {
	var list []entry
	for i := range 40 {
		a := dir(fmt.Sprint("d", i))
		a.Mode, a.Sec = 0o750, int64(i)*1000
		for n := range 4 {
			list = append(list, file(fmt.Sprint(a.Name, "/", n), strings.Repeat("x", 200<<10)))
		}
		list = append(list, a, file(fmt.Sprint("f", i), ""), file(a.Name+"/again", strings.Repeat("y", 100<<10)))
	}
	to, _, err := unpack(t, compress(t, whole(list...)), archive.Limits{})
	must(t, err)
	for i := range 40 {
		info, err := os.Stat(filepath.Join(to, fmt.Sprint("d", i)))
		if err != nil || info.Mode().Perm() != 0o750 || info.ModTime().Unix() != int64(i)*1000 {
			t.Errorf("%d: %v, %v, %v", i, info.Mode(), info.ModTime(), err)
		}
	}
}

// Attributes with a meaning for the system are never set.
func TestSystemXattrs(t *testing.T) {
	e := file("x", "")
	e.Xattrs = []tarfmt.Xattr{{Name: "trusted.evil", Value: []byte("y")}, {Name: "user.kept", Value: []byte("z")}}
	to, s, err := unpack(t, compress(t, whole(e)), archive.Limits{})
	must(t, err)
	b := make([]byte, 1000)
	n, err := unix.Llistxattr(filepath.Join(to, "x"), b)
	must(t, err)
	if s.Xattrs != 1 || string(b[:n]) != "user.kept\x00" {
		t.Errorf("%d dropped, %q", s.Xattrs, b[:n])
	}
}

func TestOnlyIntoEmpty(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "there"), nil, 0o600))
	data := compress(t, whole(file("a", "")))
	_, err := archive.Read(t.Context(), bytes.NewReader(data), open(t, dir), archive.Limits{}, archive.Options{})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `"there"`) {
		t.Errorf("got %v", err)
	}
}

func TestSum(t *testing.T) {
	data := compress(t, whole(file("a", "")))
	_, s, err := unpack(t, data, archive.Limits{})
	must(t, err)
	for sum, fine := range map[string]bool{s.SHA256: true, strings.Repeat("0", 64): false} {
		_, err := archive.Read(t.Context(), bytes.NewReader(data), open(
			t, t.TempDir(),
		), archive.Limits{}, archive.Options{SHA256: sum, Sync: true})
		if (err == nil) != fine || !fine && !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", sum, err)
		}
	}
}

// broken fails where the data ends.
type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrClosedPipe
	}
	return n, err
}

func TestReadFails(t *testing.T) {
	data := compress(t, whole(file("a", strings.Repeat("0123456789abcdef", 1<<16))))
	_, err := archive.Read(t.Context(), broken{bytes.NewReader(data[:len(data)/2])}, open(t, t.TempDir()), archive.Limits{}, archive.Options{})
	if !errdefs.IsUnavailable(err) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

// FuzzRead unpacks any stream: nothing may change outside of the directory, and a failure is an
// error.
func FuzzRead(f *testing.F) {
	for _, b := range [][]byte{
		whole(dir("d"), file("d/a", "x"), link(tarfmt.Symlink, "l", "../outside"), link(tarfmt.Link, "h", "d/a")),
		whole(file("../outside/file", "evil")),
		whole(link(tarfmt.Symlink, "l", "../outside"), file("l/file", "evil")),
		whole(entry{tarfmt.Header{Kind: tarfmt.Regular, Name: "s", Sparse: true, RealSize: 9000, Size: 5, Extents: []tarfmt.Extent{
			{Offset: 4096, Length: 5}, {Offset: 9000},
		}}, "12345"}),
		raw(file("a", "x")),
	} {
		f.Add(b, true)
		f.Add(compress(f, b), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, zip bool) {
		if zip {
			data = bytes.Clone(data)
			for b := data; len(b) >= tarfmt.BlockSize; b = b[tarfmt.BlockSize:] {
				resum(b)
			}
			data = compress(t, data)
		}
		base := t.TempDir()
		victim, into := filepath.Join(base, "outside"), filepath.Join(base, "into")
		must(t, os.Mkdir(victim, 0o700))
		must(t, os.Mkdir(into, 0o700))
		must(t, os.WriteFile(filepath.Join(victim, "file"), []byte("theirs"), 0o600))
		before := tree(t, victim)
		dir := open(t, into)
		l := archive.Limits{Bytes: 1 << 20, FileBytes: 1 << 20, Entries: 200, Depth: 10, PathBytes: 300}
		s, err := archive.Read(t.Context(), bytes.NewReader(data), dir, l, archive.Options{})
		sameVerdict(t, data, l, s, err)
		if d := cmp.Diff(before, tree(t, victim)); d != "" {
			t.Errorf("something outside changed: %s", d)
		}
		if list, _ := os.ReadDir(base); len(list) != 2 {
			t.Errorf("something was made beside: %v", list)
		}
		if os.Geteuid() != 0 {
			grownUp(t, into)
		}
		if err != nil {
			return
		}
		// Whatever was unpacked can be packed and unpacked again within the same limits.
		var again bytes.Buffer
		first, err := archive.Write(t.Context(), &again, dir, l, archive.Options{SkipUnreadable: true})
		must(t, err)
		second, err := archive.Read(t.Context(), &again, open(t, t.TempDir()), l, archive.Options{SHA256: first.SHA256})
		must(t, err)
		if first.Entries != second.Entries || first.Bytes != second.Bytes {
			t.Errorf("packed %+v, unpacked %+v", first, second)
		}
	})
}

// resum puts the right checksum into what looks like a header, which fuzzing would not find.
func resum(b []byte) {
	if string(b[257:262]) != "ustar" {
		return
	}
	n := 8 * int(' ')
	for i, c := range b[:tarfmt.BlockSize] {
		if i < 148 || i >= 156 {
			n += int(c)
		}
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", n))
}
