package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A workspace with a limit on disk space has an image, images/<name>.img: a sparse file
// with an ext4 of that size, in which its home and temporary directories lie. The file
// belongs to root and to the group of the workspace's first id, which nobody is in: so it
// is known whose it is, as ids are never used again.
//
//	create    <name>.new is made and filled, synced, and renamed to <name>.img
//	start     attached to a loop device, mounted where nobody sees it, lent to the executor
//	stop      the last mount goes with the workspace's namespace, the device with the mount
//	destroy   moved into the place of the retained home, or removed
//
// The workspace never writes the image, only files in it: what is in its structures is the
// kernel's own. So a mount may replay its journal, and nothing but the kernel reads it.

// imageDirs are the directories of an image that are lent, as Config of package launch
// wants them: the home, and those that stand for /tmp and /var/tmp.
var imageDirs = []string{"home", temporary[0], temporary[1]}

// HoldsDisk is part of Effects.
func (h *Host) HoldsDisk() error {
	if _, err := tool("mke2fs"); err != nil {
		return fmt.Errorf("the control disk is unavailable: %w", err)
	}
	if err := image.Ready(); err != nil {
		return fmt.Errorf("the control disk is unavailable: %w", err)
	}
	return nil
}

// GrowsDisk is part of Effects.
func (h *Host) GrowsDisk() error { return image.Grows() }

// mkfsArgs is the whole of what mke2fs is told. A new sparse file reads as zeros, so that
// nothing has to be zeroed now or by the kernel later; the journal takes a 64th.
func mkfsArgs(path string, bytes int64) []string {
	journal := min(max(bytes>>26, 4), 64) // MiB
	return []string{
		"-q", "-F", "-t", "ext4", "-b", strconv.Itoa(image.Block), "-m", "0", "-i", "8192", "-I", "256",
		"-J", "size=" + strconv.FormatInt(journal, 10), "-e", "remount-ro",
		"-E", "lazy_itable_init=0,lazy_journal_init=1,root_owner=0:0", path,
	}
}

// imageBytes is the size of an image: whole blocks.
func imageBytes(limit int64) int64 { return limit &^ (image.Block - 1) }

// MakeImage is part of Effects.
func (h *Host) MakeImage(ctx context.Context, name id.Workspace, ids workspace.IDs, limit int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot make the image of %s: %w", name, err)
		}
	}()
	if err := h.HoldsDisk(); err != nil {
		return err
	}
	there, err := h.ownImage(name, ids)
	if err != nil || there {
		return err
	}
	if err := removeAt(h.images, newImageName(name)); err != nil {
		return err
	}
	f, err := openAt(h.images, newImageName(name), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	crashpoint.Here("broker.image.file-made")
	if err := errors.Join(withFD(f, func(fd int) error { return unix.Fchown(fd, 0, int(ids.Executor)) }),
		f.Truncate(imageBytes(limit))); err != nil {
		return err
	}
	if said, err := once(ctx, "mke2fs", mkfsArgs(f.Name(), imageBytes(limit))...); err != nil {
		return fmt.Errorf("mke2fs failed: %s: %w", firstOf(said, err.Error()), errdefs.ErrInternal)
	}
	crashpoint.Here("broker.image.formatted")
	if err := syncFile(f); err != nil {
		return err
	}
	if err := withFD(h.images, func(fd int) error {
		return unix.Renameat2(fd, newImageName(name), fd, imageName(name), unix.RENAME_NOREPLACE)
	}); err != nil {
		return err
	}
	crashpoint.Here("broker.image.placed")
	return syncFile(h.images)
}

// mountImage makes the directories of a workspace with a limit ready to be lent.
func (h *Host) mountImage(ctx context.Context, e Entry) (*image.Mounted, error) {
	fail := func(err error) (*image.Mounted, error) {
		return nil, fmt.Errorf("cannot mount the image of %s: %w", e.Name, err)
	}
	f, err := openAt(h.images, imageName(e.Name), unix.O_RDWR, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := fstat(f, &st); err != nil {
		return fail(err)
	}
	if err := isImage(&st, e.IDs); err != nil {
		return fail(err)
	}
	if want := imageBytes(e.Limits.DiskBytes); st.Size < want {
		if err := f.Truncate(want); err != nil {
			return fail(err)
		}
		crashpoint.Here("broker.image.extended")
	}
	m, err := image.Mount(ctx, f, h.images.Name(), func(root *os.File) error {
		modes := []uint32{0o700, 0o1777, 0o1777}
		for i, dir := range imageDirs {
			if err := makeOwned(root, dir, modes[i], e.IDs.Work); err != nil {
				return err
			}
		}
		return nil
	}, imageDirs...)
	if err != nil {
		return fail(err)
	}
	return m, nil
}

// diskFindings looks from outside at where the directories of a started executor lie.
func (h *Host) diskFindings(e Entry, pid int, device uint64) []sandbox.Finding {
	var found []sandbox.Finding
	add := func(ok bool, format string, a ...any) {
		found = append(found, sandbox.Finding{Control: "disk", OK: ok, Evidence: "outside: " + fmt.Sprintf(format, a...)})
	}
	at := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(device), unix.Minor(device))
	backing, err := os.ReadFile(at + "loop/backing_file")
	path := h.images.Name() + "/" + imageName(e.Name)
	size, serr := readUint(at + "size")
	size *= 512 // sectors, whatever the device's own are
	add(err == nil && string(backing) == path+"\n" && serr == nil && size > 0 && size <= uint64(e.Limits.DiskBytes),
		"%s is of %d bytes and on %d:%d", firstOf(string(trimmed(backing)), at), size, unix.Major(device), unix.Minor(device))
	for _, place := range sandbox.DiskPlaces(&sandbox.Spec{Name: e.Name}) {
		var st unix.Stat_t
		err := statInside(pid, place, func(fd int) error { return unix.Fstat(fd, &st) })
		if err != nil {
			add(false, "cannot look at %s: %v", place, err)
			continue
		}
		add(st.Dev == device, "%s lies on %d:%d", place, unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	return found
}

func readUint(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(trimmed(b)), 10, 64)
}

func trimmed(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		return b[:n-1]
	}
	return b
}

// statInside opens a directory as an executor sees it, without reading it. The executor's
// root and what is mounted in it were put together by its first stage, and nothing inside
// can change them.
func statInside(pid int, place string, call func(fd int) error) error {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, place, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return call(fd)
}

// diskUse is what the directories of a running workspace hold, -1 if that is not limited.
func diskUse(e Entry) int64 {
	if e.Limits.DiskBytes == 0 || e.Executor == nil {
		return -1
	}
	var fs unix.Statfs_t
	if err := statInside(e.Executor.PID, "/tmp", func(fd int) error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return -1
	}
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize
}
