package filetree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/filetree"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stream is a tar stream of headers; a file has its own name as its text.
func stream(t testing.TB, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(h.Name))
			must(t, err)
		}
	}
	must(t, w.Close())
	return b.Bytes()
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }

func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func hard(name, of string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: of}
}

func folder(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}

var (
	plain = filetree.UnpackOptions{}
	links = filetree.UnpackOptions{Links: true}
)

func limited(bytes, entries int64, depth int) filetree.UnpackOptions {
	return filetree.UnpackOptions{Limits: filetree.Limits{Bytes: bytes, Entries: entries, Depth: depth}}
}

func hold(t testing.TB, path string) *filetree.Dir {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	d, err := filetree.Hold(f)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

func unpack(t testing.TB, dir string, b []byte, o filetree.UnpackOptions) (filetree.Summary, error) {
	t.Helper()
	return filetree.Unpack(t.Context(), bytes.NewReader(b), hold(t, dir), o)
}

// names are all below a directory, with the text of files.
func names(t testing.TB, dir string) (list []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); rel != "." {
			list = append(list, rel)
		}
		return err
	}))
	return list
}

// Whatever a stream has, nothing is made but below the directory, and nothing outside is changed: not by names, nor
// by links of the stream's own or that were there, nor by other names of files.
func TestHostileStreams(t *testing.T) {
	device := tar.Header{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 5}
	setID := file("suid")
	setID.Mode = 0o4755
	for name, c := range map[string]struct {
		stream []byte
		o      filetree.UnpackOptions
		err    error // nil: nothing is wrong with it
	}{
		"up":                     {stream(t, file("../out/x")), plain, filetree.ErrName},
		"up inside":              {stream(t, file("a/../../out/x")), plain, filetree.ErrName},
		"absolute":               {stream(t, file("/out/x")), plain, filetree.ErrName},
		"dots alone":             {stream(t, file("..")), plain, filetree.ErrName},
		"link then through it":   {stream(t, link("l", "../out"), file("l/x")), plain, filetree.ErrName},
		"link then directory":    {stream(t, link("l", "../out"), folder("l/")), plain, filetree.ErrName},
		"through what was there": {stream(t, file("there/x")), plain, filetree.ErrName},
		"link then file on it":   {stream(t, link("l", "../out/kept"), file("l")), plain, nil},
		"directory then link":    {stream(t, folder("d"), link("d", "../out")), plain, unix.EISDIR},
		"hard link":              {stream(t, hard("h", "../out/kept")), plain, filetree.ErrName},
		"hard link out":          {stream(t, hard("h", "../out/kept")), links, filetree.ErrName},
		"hard link by a link":    {stream(t, hard("h", "there/kept")), links, filetree.ErrName},
		"hard link to a link":    {stream(t, link("l", "../out/kept"), hard("h", "l")), links, filetree.ErrIrregular},
		"device":                 {stream(t, device, file("a")), plain, nil},
		"twice":                  {stream(t, file("a"), file("a")), plain, nil},
		"set-id":                 {stream(t, setID), plain, nil},
		"beside":                 {stream(t, file("topx/a")), filetree.UnpackOptions{Top: "top"}, filetree.ErrName},
		"another file":           {stream(t, file("a"), file("b")), filetree.UnpackOptions{As: "one"}, filetree.ErrName},
		"a directory":            {stream(t, folder("d")), filetree.UnpackOptions{As: "one"}, filetree.ErrName},
		"too many":               {stream(t, file("a"), file("b")), limited(99, 1, 9), filetree.ErrLimit},
		"too large":              {stream(t, file("abcdef")), limited(5, 9, 9), filetree.ErrLimit},
		"too deep":               {stream(t, file("a/b/c/d")), limited(99, 9, 3), filetree.ErrLimit},
		"no tar":                 {bytes.Repeat([]byte("x"), 4096), plain, filetree.ErrStream},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			must(t, os.MkdirAll(base+"/in", 0o755))
			must(t, os.MkdirAll(base+"/out", 0o755))
			must(t, os.WriteFile(base+"/out/kept", []byte("kept"), 0o600))
			must(t, os.Symlink("../out", base+"/in/there"))
			_, err := unpack(t, base+"/in", c.stream, c.o)
			if !errors.Is(err, c.err) || c.err == nil && err != nil {
				t.Errorf("%v", err)
			}
			if list := names(t, base+"/out"); !slices.Equal(list, []string{"kept"}) {
				t.Errorf("outside are %v", list)
			}
			if b, _ := os.ReadFile(base + "/out/kept"); string(b) != "kept" {
				t.Errorf("outside is %q", b)
			}
			if i, err := os.Stat(base + "/out/kept"); err != nil || i.Mode() != 0o600 {
				t.Errorf("outside is %v", i)
			}
			strange := func(p string) bool { return !strings.HasPrefix(p, "in") && !strings.HasPrefix(p, "out") }
			if list := names(t, base); slices.ContainsFunc(list, strange) {
				t.Errorf("beside are %v", list)
			}
			must(t, filepath.WalkDir(base+"/in", func(p string, e fs.DirEntry, err error) error {
				if i, _ := e.Info(); i.Mode()&(fs.ModeSetuid|fs.ModeDevice|fs.ModeNamedPipe) != 0 {
					t.Errorf("made %s: %v", p, i.Mode())
				}
				return err
			}))
		})
	}
}

// What is packed comes back, and what is there beside it stays.
func TestThereAndBack(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	old := time.Unix(1_600_000_000, 123456789)
	must(t, os.MkdirAll(src+"/d/e", 0o755))
	must(t, os.WriteFile(src+"/d/e/f", []byte("text"), 0o640))
	must(t, os.Chtimes(src+"/d/e/f", old, old))
	must(t, os.Symlink("/nowhere/at/all", src+"/d/l"))
	must(t, unix.Mkfifo(src+"/d/fifo", 0o600))
	must(t, os.WriteFile(src+"/d/"+strings.Repeat("n", 250)+"\xff", nil, 0o600))
	must(t, os.Chmod(src+"/d/e", 0o500))
	t.Cleanup(func() {
		for _, d := range []string{src + "/d/e", dst + "/to/e", dst + "/e"} {
			_ = os.Chmod(d, 0o700) // others than root remove nothing from it otherwise
		}
	})
	must(t, os.Chtimes(src+"/d/e", old, old))
	must(t, os.MkdirAll(dst+"/to", 0o755))
	must(t, os.WriteFile(dst+"/to/stays", []byte("mine"), 0o600))
	for _, c := range []struct{ as, at string }{{"to", "to"}, {".", "."}} {
		var b bytes.Buffer
		sum, err := filetree.Pack(t.Context(), &b, hold(t, src), "d", c.as, filetree.Defaults(), nil)
		if err != nil || sum.Skipped != 1 || sum.Bytes != 4 {
			t.Fatalf("%+v, %v", sum, err)
		}
		at := dst + "/" + c.at
		for again := range 2 { // over what is there too
			if again == 1 {
				must(t, os.Chmod(at+"/e", 0o700)) // where others than root could make nothing
			}
			if _, err := unpack(t, dst, b.Bytes(), filetree.UnpackOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for name, mode := range map[string]fs.FileMode{"e/f": 0o640, "e": fs.ModeDir | 0o500} {
			if i, err := os.Stat(at + "/" + name); err != nil || i.Mode() != mode || !i.ModTime().Equal(old) {
				t.Errorf("%s is %v, %v", name, i, err)
			}
		}
		if to, err := os.Readlink(at + "/l"); err != nil || to != "/nowhere/at/all" {
			t.Errorf("the link leads to %q, %v", to, err)
		}
	}
	if b, err := os.ReadFile(dst + "/to/stays"); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
}

// A directory becomes a link that leads out while a stream is unpacked: nothing is made out there.
func TestUnpackingWhileNamesChange(t *testing.T) {
	base := t.TempDir()
	must(t, os.MkdirAll(base+"/in/d", 0o755))
	must(t, os.MkdirAll(base+"/out", 0o755))
	must(t, os.Symlink("../out", base+"/in/l"))
	var list []tar.Header
	for n := range 200 {
		list = append(list, file("d/"+strings.Repeat("x", n%50+1)), file("other/y"))
	}
	b := stream(t, list...)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, base+"/in/d", unix.AT_FDCWD, base+"/in/l", unix.RENAME_EXCHANGE)
			}
		}
	}()
	refused := 0
	for range 50 {
		if _, err := unpack(t, base+"/in", b, filetree.UnpackOptions{}); err != nil {
			refused++
		}
	}
	close(stop)
	<-stopped
	if list := names(t, base+"/out"); len(list) != 0 {
		t.Errorf("outside are %v", list)
	}
	if refused == 0 {
		t.Error("nothing was refused, so that there was no race")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, file("a"), link("l", "../out"), file("l/x")))
	f.Add(stream(f, hard("h", "../out/kept")))
	f.Fuzz(func(t *testing.T, b []byte) {
		base := t.TempDir()
		must(t, os.MkdirAll(base+"/in", 0o755))
		_, _ = unpack(t, base+"/in", b, filetree.UnpackOptions{Links: true, Limits: filetree.Limits{Bytes: 1 << 20, Entries: 100, Depth: 9}})
		if all, err := os.ReadDir(base); err != nil || len(all) != 1 {
			t.Fatalf("beside are %v, %v", all, err)
		}
	})
}
