package tarfmt_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

// The kinds of error that the tables expect.
var (
	invalid   = errdefs.IsInvalidArgument
	lost      = errdefs.IsDataLoss
	exhausted = errdefs.IsResourceExhausted
)

var limits = tarfmt.Limits{Path: 4096, Xattr: 256 << 10}

// blocks returns a function that returns data in blocks.
func blocks(data []byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(data) < tarfmt.BlockSize {
			return nil, io.EOF
		}
		b := data[:tarfmt.BlockSize]
		data = data[tarfmt.BlockSize:]
		return b, nil
	}
}

// all reads every header and skips the data.
func all(data []byte) (list []tarfmt.Header, err error) {
	next := blocks(data)
	r := tarfmt.NewReader(next, limits)
	for {
		var h tarfmt.Header
		if err := r.Next(&h); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return list, err
		}
		list = append(list, h)
		for n := h.Size; n > 0; n -= tarfmt.BlockSize {
			if _, err := next(); err != nil {
				return list, err
			}
		}
	}
}

var headers = []tarfmt.Header{
	{Kind: tarfmt.Regular, Name: "a", Mode: 0o644, Sec: 1},
	{Kind: tarfmt.Regular, Name: strings.Repeat("d/", 90) + "x", Mode: 0o4755, Size: 513, Sec: 1700000000, Nsec: 1},
	{Kind: tarfmt.Regular, Name: "ünï\xffcode\nname", Mode: 0o600, Nsec: 999999999},
	{Kind: tarfmt.Directory, Name: ".", Mode: 0o700, Sec: -1, Nsec: 500000000},
	{Kind: tarfmt.Directory, Name: "sticky", Mode: 0o1777, Sec: -2},
	{Kind: tarfmt.Symlink, Name: "l", Target: strings.Repeat("t", 300), Mode: 0o777},
	{Kind: tarfmt.Link, Name: "h", Target: "a", Mode: 0o644},
	{Kind: tarfmt.FIFO, Name: "f", Mode: 0o644, Sec: 1 << 34},
	{Kind: tarfmt.Regular, Name: "x", Xattrs: []tarfmt.Xattr{{"user.a=b%3D", []byte("1\n2\x003")}, {"user.empty", nil}}},
	{
		Kind: tarfmt.Regular, Name: "deep/sparse", Sparse: true, RealSize: 1 << 40, Size: 600,
		Extents: []tarfmt.Extent{{4096, 500}, {1 << 30, 100}, {1 << 40, 0}},
	},
	{Kind: tarfmt.Regular, Name: "hole", Sparse: true, RealSize: 7, Extents: []tarfmt.Extent{{7, 0}}},
}

func stream(list []tarfmt.Header) (b []byte) {
	for _, h := range list {
		b = tarfmt.Append(b, &h)
		b = append(b, make([]byte, h.Size)...)
		b = append(b, tarfmt.Padding(h.Size)...)
	}
	return tarfmt.AppendEnd(b)
}

func TestRoundTrip(t *testing.T) {
	got, err := all(stream(headers))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(headers, got, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

// archive/tar is the reference for what is written.
func TestReferenceReadsIt(t *testing.T) {
	r := tar.NewReader(bytes.NewReader(stream(headers)))
	for _, want := range headers {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s: %v", want.Name, err)
		}
		compare(t, &want, h)
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func compare(t *testing.T, ours *tarfmt.Header, ref *tar.Header) {
	t.Helper()
	length := ours.Size
	if ours.Sparse {
		length = ours.RealSize
	}
	type facts struct {
		Name, Target string
		Kind         byte
		Mode         int64
		Length       int64
		Time         time.Time
	}
	kind := ref.Typeflag
	switch kind {
	case 0, '7', 'S':
		kind = '0'
	}
	name := ref.Name
	if kind == '5' {
		for len(name) > 1 && strings.HasSuffix(name, "/") {
			name = name[:len(name)-1]
		}
	}
	got := facts{ours.Name, ours.Target, byte(ours.Kind), int64(ours.Mode), length, time.Unix(ours.Sec, ours.Nsec).UTC()}
	want := facts{name, ref.Linkname, kind, ref.Mode & 0o7777, ref.Size, ref.ModTime.UTC()}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("reference and ours: %s", d)
	}
	n := 0
	for k, v := range ref.PAXRecords {
		if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
			n++
			name = strings.NewReplacer("%25", "%", "%3D", "=").Replace(name)
			found := false
			for _, x := range ours.Xattrs {
				found = found || x.Name == name && string(x.Value) == v
			}
			if !found {
				t.Errorf("attribute %q is missing", name)
			}
		}
	}
}

func TestHugeSize(t *testing.T) {
	h := tarfmt.Header{Kind: tarfmt.Regular, Name: "big", Size: math.MaxInt64 - 1024}
	next := blocks(tarfmt.Append(nil, &h))
	var got tarfmt.Header
	if err := tarfmt.NewReader(next, limits).Next(&got); err != nil || got.Size != h.Size {
		t.Errorf("got %d, %v", got.Size, err)
	}
}

// record makes one record of an extended header.
func record(key, value string) string {
	for n := len(key) + len(value) + 4; ; n++ {
		if s := fmt.Sprintf("%d %s=%s\n", n, key, value); len(s) == n {
			return s
		}
	}
}

// with puts an extended header of the given kind and data before an empty file.
func with(kind byte, data string) []byte {
	ext := tarfmt.Header{Kind: tarfmt.Kind(kind), Name: "ext", Size: int64(len(data))}
	b := tarfmt.Append(nil, &ext)
	b = append(append(b, data...), tarfmt.Padding(ext.Size)...)
	return tarfmt.AppendEnd(tarfmt.Append(b, &tarfmt.Header{Kind: tarfmt.Regular, Name: "a", Mode: 0o644}))
}

func TestRefused(t *testing.T) {
	plain := stream(headers[:1])
	spoilt := func(at int, c byte) []byte {
		b := bytes.Clone(plain)
		b[at] = c
		return b
	}
	sparse := func(text string, size int64) []byte {
		records := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
			record("GNU.sparse.name", "s") + record("GNU.sparse.realsize", "1000")
		b := with('x', records)
		b = b[:len(b)-3*tarfmt.BlockSize]
		b = tarfmt.Append(b, &tarfmt.Header{Kind: tarfmt.Regular, Name: "s", Size: size})
		return tarfmt.AppendEnd(append(append(b, text...), tarfmt.Padding(int64(len(text)))...))
	}
	for name, row := range map[string]struct {
		data []byte
		want string
		is   func(error) bool
	}{
		"nothing":                      {nil, "cut short", lost},
		"no end mark":                  {plain[:512], "cut short", lost},
		"half an end mark":             {plain[:1024], "cut short", lost},
		"an empty block in between":    {append(make([]byte, 512), plain...), "empty block", invalid},
		"a flipped bit":                {spoilt(3, 'q'), "checksum", invalid},
		"no octal":                     {spoilt(150, '9'), "number", invalid},
		"global path":                  {with('g', record("path", "evil")), "global", invalid},
		"two extended headers":         {append(with('x', record("path", "b"))[:1024], with('x', record("path", "c"))...), "several", invalid},
		"two long names":               {append(with('L', "b")[:1024], with('L', "c")...), "several", invalid},
		"extended header, no entry":    {append(with('x', record("path", "b"))[:1024], make([]byte, 1024)...), "no entry", invalid},
		"record without length":        {with('x', "path=b\n"), "length", invalid},
		"record too long":              {with('x', "99 path=b\n"), "length", invalid},
		"record of length zero":        {with('x', "0 \n"), "length", invalid},
		"record without newline":       {with('x', "9 path=bb"), "length", invalid},
		"record without keyword":       {with('x', "6 =bb\n"), "keyword", invalid},
		"negative size":                {with('x', record("size", "-1")), "number", invalid},
		"size beyond 63 bits":          {with('x', record("size", "9223372036854775808")), "large", invalid},
		"time of letters":              {with('x', record("mtime", "1.x")), "time", invalid},
		"NUL in a path":                {with('x', record("path", "a\x00b")), "NUL", invalid},
		"long path":                    {with('x', record("path", strings.Repeat("p", 5000))), "limit of 4096", exhausted},
		"long GNU name":                {with('L', strings.Repeat("p", 5000)), "limit of 4097", exhausted},
		"long target":                  {with('x', record("linkpath", strings.Repeat("p", 5000))), "limit of 4096", exhausted},
		"extended header of a GiB":     {tarfmt.Append(nil, &tarfmt.Header{Kind: 'x', Name: "x", Size: 1 << 30}), "extended header", exhausted},
		"attributes too large":         {with('x', record("SCHILY.xattr.user.a", strings.Repeat("v", 300<<10))), "limit", exhausted},
		"attributes too many":          {with('x', strings.Repeat(record("SCHILY.xattr.user.a", ""), 1025)), "limit", exhausted},
		"sparse of form 0.1":           {with('x', record("GNU.sparse.map", "0,1")), "form 1.0", invalid},
		"sparse of form 2.0":           {with('x', record("GNU.sparse.major", "2")), "form 1.0", invalid},
		"sparse map out of order":      {sparse("2\n100\n10\n50\n10\n", 532), "does not fit", invalid},
		"sparse map overlapping":       {sparse("2\n0\n10\n5\n10\n", 532), "does not fit", invalid},
		"sparse map past the end":      {sparse("1\n990\n20\n", 532), "does not fit", invalid},
		"sparse map, sum overflowing":  {sparse("2\n0\n999999999999999999\n0\n999999999999999999\n", 532), "does not fit", invalid},
		"sparse map with letters":      {sparse("x\n", 532), "not a number", invalid},
		"sparse map of too much":       {sparse("65537\n", 532), "limit of 65536", exhausted},
		"sparse map beyond its data":   {sparse("200\n"+strings.Repeat("0\n0\n", 127), 512), "longer than", invalid},
		"sparse map of other sum":      {sparse("1\n0\n10\n", 600), "has 10 bytes and 88", invalid},
		"sparse map, number unending":  {sparse(strings.Repeat("1", 512), 512), "not a number", invalid},
		"unknown kind":                 {stream([]tarfmt.Header{{Kind: 'Z', Name: "z"}}), "unknown kind", invalid},
		"data of a directory":          {stream([]tarfmt.Header{{Kind: tarfmt.Directory, Name: "z", Size: 5}}), "bytes of data", invalid},
		"data of a hard link":          {stream([]tarfmt.Header{{Kind: tarfmt.Link, Name: "z", Target: "y", Size: 5}}), "bytes of data", invalid},
		"link without target":          {stream([]tarfmt.Header{{Kind: tarfmt.Link, Name: "z"}}), "no target", invalid},
		"no name":                      {stream([]tarfmt.Header{{Kind: tarfmt.Regular}}), "no name", invalid},
		"old sparse in a posix header": {stream([]tarfmt.Header{{Kind: 'S', Name: "s"}}), "another", invalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := all(row.data)
			if err == nil || !row.is(err) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want one with %q", err, row.want)
			}
		})
	}
}

// A flood of extended headers ends long before its data does.
func TestFlood(t *testing.T) {
	one := with('x', record("comment", strings.Repeat("c", 500<<10)))
	one = one[:len(one)-1024]
	given := 0
	var rest []byte
	r := tarfmt.NewReader(func() ([]byte, error) {
		if len(rest) == 0 {
			rest = one
		}
		b := rest[:512]
		rest = rest[512:]
		given += 512
		return b, nil
	}, limits)
	for {
		var h tarfmt.Header
		err := r.Next(&h)
		if err == nil && given < 128<<20 {
			continue
		}
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "extended headers") {
			t.Errorf("got %v after %d bytes", err, given)
		}
		return
	}
}

// FuzzReader compares with archive/tar: both must decode what they accept in the same way.
func FuzzReader(f *testing.F) {
	f.Add(stream(headers))
	for _, h := range headers {
		f.Add(stream([]tarfmt.Header{h}))
	}
	var b bytes.Buffer
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU} {
		b.Reset()
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: strings.Repeat("n/", 60) + "n", Mode: 0o640, Uid: 1, Format: format})
		_ = w.Close()
		f.Add(bytes.Clone(b.Bytes()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = bytes.Clone(data)
		for b := data; len(b) >= tarfmt.BlockSize; b = b[tarfmt.BlockSize:] {
			resum(b)
		}
		list, err := all(data)
		ref := tar.NewReader(bytes.NewReader(data))
		for i := range list {
			h, refErr := ref.Next()
			if refErr != nil {
				return // stricter than ours in what we do not use
			}
			for h.Typeflag == tar.TypeXGlobalHeader {
				if h, refErr = ref.Next(); refErr != nil {
					return
				}
			}
			// archive/tar reports an unknown format for headers that Go 1.8 wrote wrongly.
			if h.Format == tar.FormatUnknown || list[i].Size > 1<<20 || i == len(list)-1 && err != nil {
				return
			}
			compare(t, &list[i], h)
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
