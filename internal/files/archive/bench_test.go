package archive_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/files/archive"
)

// material is like the contents of a home: source text, programs, and incompressible data.
func material(b *testing.B) (kinds [3][]byte) {
	b.Helper()
	read := func(root, ext string, most int) (all []byte) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if len(all) > most {
				return filepath.SkipAll
			}
			if err == nil && d.Type().IsRegular() && (ext == "" || filepath.Ext(path) == ext) {
				data, _ := os.ReadFile(path)
				all = append(all, data...)
			}
			return nil
		})
		return all
	}
	out, err := exec.CommandContext(b.Context(), "go", "env", "GOROOT").Output()
	must(b, err)
	goroot := string(bytes.TrimSpace(out))
	kinds[0] = read(filepath.Join(goroot, "src"), ".go", 64<<20)
	kinds[1] = append(read(filepath.Join(goroot, "bin"), "", 64<<20), read(filepath.Join(goroot, "pkg", "tool"), "", 64<<20)...)
	kinds[2] = make([]byte, 32<<20)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(kinds[2])
	return kinds
}

// home fills dir with total bytes in count files of 250 × 4 directories, sizes spread as in homes.
func home(b *testing.B, dir string, count int, total float64) {
	b.Helper()
	kinds := material(b)
	r := rand.New(rand.NewPCG(1, 1))
	sizes := make([]float64, count)
	sum := 0.0
	for i := range sizes {
		sizes[i] = min(4<<20, math.Exp(9.6+1.6*r.NormFloat64()))
		sum += sizes[i]
	}
	for i, size := range sizes {
		n := int(size * total / sum)
		from := kinds[[]int{0, 0, 0, 0, 0, 0, 1, 1, 1, 2}[r.IntN(10)]]
		n = min(n, len(from))
		at := r.IntN(len(from) - n + 1)
		path := filepath.Join(dir, fmt.Sprintf("d%03d/e%d/f%05d", i%250, i%4, i))
		must(b, os.MkdirAll(filepath.Dir(path), 0o700))
		must(b, os.WriteFile(path, from[at:at+n], 0o600))
	}
}

// BenchmarkBesideTar packs and unpacks 1 GiB in 20,000 files, alternately with tar and zstd,
// so that other load on the machine affects both. It reports medians.
// Run it with -benchtime=5x.
func BenchmarkBesideTar(b *testing.B) {
	from := b.TempDir()
	home(b, from, 20000, 1<<30)
	work := b.TempDir()
	ours, theirs := filepath.Join(work, "ours.tar.zst"), filepath.Join(work, "theirs.tar.zst")
	program := filepath.Join(work, "carrel-archive")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", program, "github.com/carrel-dev/carrel/cmd/carrel-archive")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	must(b, build.Run())
	shell := func(command string) {
		if out, err := exec.CommandContext(b.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
			b.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	into := filepath.Join(work, "into")
	steps := []struct {
		name, command string
	}{
		{"pack", program + " pack " + from + " >" + ours},
		{"tar-pack", "tar -C " + from + " -I 'zstd -T2 -3' -cf " + theirs + " ."},
		{"unpack", program + " unpack " + into + " <" + ours},
		{"tar-unpack", "tar -C " + into + " -I zstd -xf " + theirs},
	}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for _, s := range steps {
			shell("rm -rf " + into + " && mkdir " + into + " && sync")
			start := time.Now()
			shell(s.command)
			took[s.name] = append(took[s.name], time.Since(start))
		}
	}
	median := func(name string) float64 {
		d := slices.Sorted(slices.Values(took[name]))
		return d[len(d)/2].Seconds()
	}
	for _, s := range steps {
		b.ReportMetric(median(s.name), s.name+"-s")
	}
	b.ReportMetric(median("tar-pack")/median("pack"), "pack-of-tar")
	b.ReportMetric(median("tar-unpack")/median("unpack"), "unpack-of-tar")
	for name, path := range map[string]string{"size-MB": ours, "tar-size-MB": theirs} {
		info, err := os.Stat(path)
		must(b, err)
		b.ReportMetric(float64(info.Size())/1e6, name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWrite and BenchmarkRead measure the package itself.
func BenchmarkWrite(b *testing.B) {
	from := b.TempDir()
	home(b, from, 2000, 100<<20)
	b.SetBytes(100 << 20)
	for b.Loop() {
		var out bytes.Buffer
		_, err := archive.Write(b.Context(), &out, open(b, from), archive.Limits{}, archive.Options{})
		must(b, err)
	}
}

func BenchmarkRead(b *testing.B) {
	from := b.TempDir()
	home(b, from, 2000, 100<<20)
	data, _ := pack(b, from)
	b.SetBytes(100 << 20)
	for b.Loop() {
		b.StopTimer()
		into := open(b, b.TempDir())
		b.StartTimer()
		_, err := archive.Read(b.Context(), bytes.NewReader(data), into, archive.Limits{}, archive.Options{})
		must(b, err)
	}
}
