package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive"
)

// What can be archived can be restored: homes as odd as a file system takes them are packed, verified
// and unpacked within the same limits, and are what they were.
func TestOddHomes(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			from := t.TempDir()
			oddHome(t, from, seed)
			comesBack(t, from)
		})
	}
}

// comesBack archives a home and sees that it is the same when it is unpacked. It returns what was
// unpacked.
func comesBack(t *testing.T, from string) (to string) {
	t.Helper()
	want := tree(t, from)
	data, packed := pack(t, from)
	verified, err := archive.Verify(t.Context(), bytes.NewReader(data), archive.Limits{}, archive.Options{SHA256: packed.SHA256})
	must(t, err)
	to, unpacked, err := unpack(t, data, archive.Limits{})
	must(t, err)
	grownUp(t, to)
	got := tree(t, to)
	for path, f := range want {
		if f.Mode&os.ModeSocket != 0 {
			delete(want, path)
			continue
		}
		if os.Geteuid() == 0 { // which does not restore them
			f.Mode &^= os.ModeSetuid | os.ModeSetgid
			want[path] = f
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(clip(d))
	}
	if verified != unpacked {
		t.Errorf("verified %+v\nunpacked %+v", verified, unpacked)
	}
	if packed.Entries != unpacked.Entries || packed.Bytes != unpacked.Bytes || packed.Stream != unpacked.Stream ||
		packed.SHA256 != unpacked.SHA256 || int(packed.Entries) != len(want) {
		t.Errorf("of %d entries: packed %+v\nunpacked %+v", len(want), packed, unpacked)
	}
	return to
}

func clip(s string) string { return s[:min(len(s), 4000)] }

// oddHome fills dir with what a home can have and hardly one has, the same for the same seed.
func oddHome(t *testing.T, dir string, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(root) })
	deep, deepest := deepTree(t, root)
	t.Cleanup(func() { unix.Close(deep) })
	write := func(fd int, name string, b []byte) { must(t, os.WriteFile(at(fd, name), b, 0o600)) }

	// Zeros that are there, some at the first seed by the hundreds of MB, and holes.
	zeros := make([]byte, 1<<20)
	f, err := os.Create(filepath.Join(dir, "zeros"))
	must(t, err)
	for range 2 + 200*(1-min(seed, 1)) {
		_, err := f.Write(zeros)
		must(t, err)
	}
	must(t, f.Close())
	for i := range 6 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("sparse", i)))
		must(t, err)
		at := int64(0)
		for range r.IntN(60) {
			at += r.Int64N(1 << (12 + r.IntN(18)))
			b := make([]byte, r.IntN(70_000)) // zeros too, in places
			for i := r.IntN(len(b) + 1); i < len(b); i++ {
				b[i] = byte(r.Uint32())
			}
			n, err := f.WriteAt(b, at)
			must(t, err)
			at += int64(n)
		}
		must(t, f.Truncate(at+[]int64{0, 1, 4096, 1 << 20, 60 << 30}[r.IntN(5)]))
		must(t, f.Close())
	}

	// Names of every length, of bytes that are no text, and of what formats have a meaning for.
	for n := 1; n <= 255; n += 1 + r.IntN(12) {
		write(root, strings.Repeat(string(rune('a'+n%26)), n), []byte(fmt.Sprint(n)))
	}
	for _, name := range []string{
		strings.Repeat("x", 99), strings.Repeat("x", 100), strings.Repeat("x", 101), strings.Repeat("\xff", 255), strings.Repeat("ü", 127),
		"\xff\xfe", "\x01\x1b[31m", " ", "  trailing  ", "new\nline", "19 path=evil\n", "-rf", "a=b%3D%25", "\\", "GNUSparseFile.0", "...",
	} {
		write(root, name, []byte(name))
		f, err := os.Create(at(root, "s"+name[1:])) // a sparse file has its name elsewhere
		must(t, err)
		must(t, f.Truncate(1<<20+r.Int64N(1<<20)))
		must(t, f.Close())
	}

	// Deep, as far as the limits and the system's longest path go.
	write(deep, "f", []byte("deep"))
	must(t, os.Symlink(deepest, at(deep, "l")))
	must(t, os.Link(at(deep, "f"), filepath.Join(dir, "of the deepest")))

	// Links by the thousand, of a few files, and of one that is sparse.
	must(t, os.Mkdir(filepath.Join(dir, "links"), 0o700))
	for i := range 1000 {
		must(t, os.Link(at(root, []string{"zeros", "sparse0", "sparse1", "of the deepest"}[r.IntN(4)]), at(root, fmt.Sprint("links/", i))))
	}
	for _, n := range []int{1, 99, 100, 101, 1000, 4095} {
		must(t, os.Symlink(strings.Repeat("\xff/", n/2)+strings.Repeat("t", n%2), at(root, fmt.Sprint("to ", n))))
	}

	// Empty ones by the thousand, and what is no file.
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	for i := range 1000 {
		write(root, fmt.Sprint("empty/", i), nil)
	}
	must(t, unix.Mkfifo(at(root, "fifo"), 0o622))
	listen(t, at(root, "socket"))

	// Attributes.
	for i, name := range []string{"zeros", "sparse0", "empty", ".", "to be closed"} {
		if i == 4 {
			must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		}
		for _, x := range []struct{ name, value string }{
			{"user.a=b%25", "\x00\n=%3D"},
			{"user.empty", ""},
			{"user." + strings.Repeat("n", 250), "long"},
			{"user.\xff\n", "\xff"},
			{"user.large", strings.Repeat("%", 1000+r.IntN(1000))},
		} {
			if err := unix.Setxattr(at(root, name), x.name, []byte(x.value), 0); !errors.Is(err, unix.ENOTSUP) {
				must(t, err)
			}
		}
	}

	// Modes, and what a directory has that may not be written any more.
	for mode := range uint32(16) {
		name := fmt.Sprintf("mode%o", mode)
		write(root, name, nil)
		must(t, unix.Chmod(at(root, name), mode&7<<9|0o400|mode>>3*0o111))
		must(t, os.MkdirAll(at(root, "d"+name+"/below"), 0o700))
		must(t, unix.Chmod(at(root, "d"+name), mode&7<<9|0o500|mode>>3*0o222))
	}
	write(root, "to be closed/file", []byte("in it"))
	must(t, os.Chmod(at(root, "to be closed"), 0o500))
	grownUp(t, dir)

	// Times, of everything, the deepest directory first.
	times := []unix.Timespec{
		{Sec: 0},
		{Sec: 1, Nsec: 1},
		{Sec: -1, Nsec: 750_000_000},
		{Sec: -1 << 31},
		{Sec: 1<<31 + 5, Nsec: 999_999_999},
		{Sec: 1<<33 + 7},
		{Sec: 1 << 55},
		{Sec: -1 << 62}, // as far as the file system keeps them
	}
	for _, name := range []string{"f", "l", "."} {
		must(t, unix.UtimesNanoAt(deep, name, []unix.Timespec{{}, times[r.IntN(4)]}, unix.AT_SYMLINK_NOFOLLOW))
	}
	names, err := os.ReadDir(dir)
	must(t, err)
	for i, e := range names {
		must(t, unix.UtimesNanoAt(root, e.Name(), []unix.Timespec{{}, times[(i+int(seed))%6]}, unix.AT_SYMLINK_NOFOLLOW))
	}
	for i, far := range times[6:] { // which is cut where more is kept than an archive can say
		write(root, fmt.Sprint("far", i), nil)
		must(t, unix.UtimesNanoAt(root, fmt.Sprint("far", i), []unix.Timespec{{}, far}, 0))
	}
	must(t, unix.UtimesNanoAt(root, ".", []unix.Timespec{{}, {Sec: 12345, Nsec: 6}}, 0))
}

// deepTree makes a tree of which the deepest directory is as deep as the limits let it have one more
// name, and whose path is as long as they let it have one letter more.
func deepTree(t *testing.T, root int) (deep int, path string) {
	t.Helper()
	limits := archive.DefaultLimits()
	deep, err := unix.Dup(root)
	must(t, err)
	for i := 1; i < limits.Depth; i++ {
		n := (limits.PathBytes - 1 - len(path)) / (limits.Depth - i) // of name and slash
		name := strings.Repeat("d", n-1)
		must(t, unix.Mkdirat(deep, name, 0o700))
		next, err := unix.Openat(deep, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(deep)
		deep, path = next, path+name+"/"
	}
	if len(path) != limits.PathBytes-1 {
		t.Fatalf("the deepest path has %d bytes", len(path))
	}
	return deep, path
}

// memoryDir returns a directory of a file system that keeps any time and large attributes.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "carrel-archive-test-")
	if err != nil {
		t.Skipf("there is no file system in memory: %v", err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// A time that no archive can say is packed as the nearest that it can.
func TestFarTimes(t *testing.T) {
	dir := memoryDir(t)
	for i, sec := range []int64{1 << 62, -1 << 62, 1 << 41, -1 << 41} {
		path := filepath.Join(dir, fmt.Sprint(i))
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{}, {Sec: sec}}, 0))
	}
	data, _ := pack(t, dir)
	if _, _, err := unpack(t, data, archive.Limits{}); err != nil {
		t.Error(err)
	}
}

// Attributes that together are more than can be read again are refused when they are packed.
func TestManyAttributes(t *testing.T) {
	dir := memoryDir(t)
	value := bytes.Repeat([]byte("v"), 60_000)
	for i := range 400 {
		path := filepath.Join(dir, fmt.Sprint(i))
		must(t, os.WriteFile(path, nil, 0o600))
		for x := range 4 {
			if err := unix.Setxattr(path, fmt.Sprint("user.", x), value, 0); err != nil {
				t.Skipf("this file system does not keep so many: %v", err)
			}
		}
	}
	var out bytes.Buffer
	_, err := archive.Write(t.Context(), &out, open(t, dir), archive.Limits{}, archive.Options{})
	if err == nil {
		_, err = archive.Verify(t.Context(), &out, archive.Limits{}, archive.Options{})
		t.Fatalf("it is packed, and verified with: %v", err)
	}
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v", err)
	}
}

// A sparse file in more pieces than an archive lists takes no more room when it is unpacked.
func TestManyPieces(t *testing.T) {
	archive.SetMaxExtents(t, 100)
	from := t.TempDir()
	f, err := os.Create(filepath.Join(from, "f"))
	must(t, err)
	for i := range int64(300) {
		_, err := f.WriteAt([]byte("data"), i<<20+1234)
		must(t, err)
	}
	must(t, f.Close())
	to := comesBack(t, from)
	var was, is unix.Stat_t
	must(t, unix.Stat(filepath.Join(from, "f"), &was))
	must(t, unix.Stat(filepath.Join(to, "f"), &is))
	if is.Blocks > was.Blocks+64 { // how the file system notes them may differ
		t.Errorf("it had %d blocks and has %d", was.Blocks, is.Blocks)
	}
}
