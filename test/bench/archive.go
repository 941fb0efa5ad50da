package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// tree is what a home is filled with to be archived.
type tree struct {
	files int
	bytes int64
}

// packer is how tar is told to compress: as the archiver does.
const packer = "zstd -T2 -3"

// archive measures how fast a home is archived into the daemon's keeping and restored
// from there, beside tar as root on the same file system. What is restored is on disk at
// the end, with both. Before each operation the file system is synced, so that none pays
// for the one before.
func (b *bench) archive() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	size, rounds := tree{files: 20_000, bytes: 1 << 30}, 3
	if b.quick {
		size, rounds = tree{files: 1500, bytes: 64 << 20}, 2
	}
	const key = "archive"
	w, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: key, IdleTimeoutMs: forever})
	if err != nil {
		return err
	}
	b.say("filling a home with %d MiB in %d files", size.bytes>>20, size.files)
	if size, err = h.fill(key, w.GetHome(), size); err != nil {
		return fmt.Errorf("cannot fill a home: %w", err)
	}
	var kept *carrelv1.Archive
	pack := func() (took time.Duration, err error) {
		if kept != nil { // of the round before; the last one is for the restores
			if _, err := h.client.Archives().RemoveArchive(b.ctx,
				connect.NewRequest(&carrelv1.RemoveArchiveRequest{Archive: kept.GetId()})); err != nil {
				return 0, err
			}
		}
		if err := syncAll(b.dir); err != nil {
			return 0, err
		}
		began := time.Now()
		kept, err = h.archived(key)
		took = time.Since(began)
		if err == nil && kept.GetBytes() != size.bytes {
			err = fmt.Errorf("the archive has %d bytes of files, the home %d", kept.GetBytes(), size.bytes)
		}
		return took, err
	}
	unpack := func() (took time.Duration, err error) {
		if err := syncAll(b.dir); err != nil {
			return 0, err
		}
		began := time.Now()
		w, err := h.restored(kept.GetId(), newKey())
		took = time.Since(began)
		if err != nil {
			return 0, err
		}
		return took, errors.Join(sameTree(w.GetHome(), size), h.destroy(w.GetName()))
	}
	file, dir := filepath.Join(b.dir, "peer.tar.zst"), filepath.Join(b.dir, "peer-tree")
	tarPack := func() (time.Duration, error) {
		if err := errors.Join(os.RemoveAll(file), syncAll(b.dir)); err != nil {
			return 0, err
		}
		return timedTool("tar", "-C", w.GetHome(), "-I", packer, "-cf", file, ".")
	}
	tarUnpack := func() (time.Duration, error) {
		if err := errors.Join(os.Mkdir(dir, 0o700), syncAll(b.dir)); err != nil {
			return 0, err
		}
		began := time.Now()
		_, err := timedTool("tar", "-C", dir, "-I", packer, "-xf", file)
		if err == nil {
			err = syncAll(dir)
		}
		took := time.Since(began)
		if err == nil {
			err = sameTree(dir, size)
		}
		return took, errors.Join(err, os.RemoveAll(dir))
	}
	for _, f := range []struct {
		id, name, beside string
		ours, peer       func() (time.Duration, error)
	}{
		{report.Archive, "archive of a home", report.TarPack, pack, tarPack},
		{report.Restore, "restore of a home", report.TarUnpack, unpack, tarUnpack},
	} {
		got := measure.Interleave(
			b.ctx, measure.Pace{Rounds: rounds}, []measure.Contestant{{Name: f.name, Op: f.ours}, {Name: f.beside, Op: f.peer}},
		)
		for i := range got {
			for _, r := range got[i].Rounds {
				got[i].Rates = append(got[i].Rates, float64(size.bytes)/1e6/r[0].Seconds())
			}
		}
		if err := b.rates(f.id, "MB/s", got[0], got[1:]); err != nil {
			return err
		}
	}
	if _, err := h.client.Archives().RemoveArchive(b.ctx,
		connect.NewRequest(&carrelv1.RemoveArchiveRequest{Archive: kept.GetId()})); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(file), h.destroy(key))
}

// syncAll has the file system of path on disk.
func syncAll(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// timedTool runs a program to its end.
func timedTool(name string, args ...string) (time.Duration, error) {
	var stderr bytes.Buffer
	c := exec.CommandContext(context.Background(), name, args...)
	c.Stderr, c.SysProcAttr = &stderr, &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	err := c.Run()
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", name, err, lastLine(stderr.Bytes()))
	}
	return took, nil
}

// archived archives a workspace into the daemon's keeping.
func (h *carrelHost) archived(workspace string) (*carrelv1.Archive, error) {
	s, err := h.client.Archives().CreateArchive(h.b.ctx, connect.NewRequest(&carrelv1.CreateArchiveRequest{Workspace: workspace}))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var made *carrelv1.Archive
	for s.Receive() {
		if a := s.Msg().GetArchive(); a != nil {
			made = a
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if made == nil {
		return nil, errors.New("the stream ended without the archive")
	}
	return made, nil
}

// restored makes a workspace from an archive in the daemon's keeping.
func (h *carrelHost) restored(from, key string) (*carrelv1.Workspace, error) {
	ctx, cancel := context.WithCancel(h.b.ctx)
	defer cancel()
	s := h.client.Archives().Restore(ctx)
	defer func() { _ = s.CloseResponse() }() // what there was to learn has come by then
	start := &carrelv1.RestoreStart{From: from, Key: key, IdleTimeoutMs: forever}
	err := s.Send(&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Start{Start: start}})
	if err != nil && !errors.Is(err, io.EOF) { // the reason of an EOF comes with Receive
		return nil, err
	}
	_ = s.CloseRequest() // as above
	for {
		m, err := s.Receive()
		if err != nil {
			return nil, err
		}
		if w := m.GetWorkspace(); w != nil {
			return w, nil
		}
	}
}

// fill makes a tree in the home of a running workspace, as its user, and returns what
// there is then. It is the same in every run.
func (h *carrelHost) fill(workspace, home string, want tree) (tree, error) {
	c, err := h.client.Start(h.b.ctx, workspace, carrel.Spec{Argv: []string{"tar", "-xf", "-"}, Stdin: true})
	if err != nil {
		return tree{}, err
	}
	defer c.Close()
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(want.write(w)) }() // always nil
	var said bytes.Buffer
	status, err := c.Run(h.b.ctx, carrel.Streams{Stdin: r, Stdout: io.Discard, Stderr: &said})
	_ = r.Close() // always nil
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("tar ended with code %d: %s", status.Code, lastLine(said.Bytes()))
	}
	if err != nil {
		return tree{}, err
	}
	got, err := look(home)
	if err == nil && got.files < want.files {
		err = fmt.Errorf("there are %d files of %d", got.files, want.files)
	}
	return got, err
}

// write writes the tree as a tar: files of sizes that fall off exponentially, every other
// one of words, which compress, and the rest of noise, which does not.
func (t tree) write(w io.Writer) error {
	const perDir = 100
	seed := rand.NewPCG(1, 2)
	r := rand.New(seed) //nolint:gosec // the same bytes in every run are wanted
	words := make([][]byte, 2000)
	for i := range words {
		words[i] = []byte(fmt.Sprintf("%x ", r.Uint64()>>(4*r.IntN(14))))
	}
	out := tar.NewWriter(w)
	mean := float64(t.bytes) / float64(t.files)
	var content []byte
	for i := range t.files {
		dir := fmt.Sprintf("d%03d/", i/perDir)
		if i%perDir == 0 {
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
				return err
			}
		}
		content = content[:0]
		for n := int(min(r.ExpFloat64(), 20) * mean); len(content) < n; {
			if i%2 == 0 {
				content = append(content, words[r.IntN(len(words))]...)
			} else {
				content = binary.LittleEndian.AppendUint64(content, seed.Uint64())
			}
		}
		if err := out.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("%sf%05d", dir, i), Mode: 0o644, Size: int64(len(content)),
		}); err != nil {
			return err
		}
		if _, err := out.Write(content); err != nil {
			return err
		}
	}
	return out.Close()
}

// look counts the files below dir and their bytes.
func look(dir string) (t tree, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		t.files++
		t.bytes += info.Size()
		return nil
	})
	return t, err
}

func sameTree(dir string, want tree) error {
	got, err := look(dir)
	if err == nil && got != want {
		err = fmt.Errorf("%d files with %d bytes were unpacked, of %d with %d", got.files, got.bytes, want.files, want.bytes)
	}
	return err
}
