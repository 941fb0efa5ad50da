package broker

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// keptImage is what the image of a destroyed workspace is called in its retained home.
const keptImage = "disk.img"

func imageName(name id.Workspace) string { return string(name) + ".img" }

func newImageName(name id.Workspace) string { return string(name) + ".new" }

// ownImage reports whether name has an image, and refuses one that is another's.
func (d *dirs) ownImage(name id.Workspace, ids workspace.IDs) (bool, error) {
	st, there, err := statAt(d.images, imageName(name))
	if there {
		err = isImage(&st, ids)
	}
	if err != nil {
		return false, fmt.Errorf("cannot use %s/%s: %w", d.images.Name(), imageName(name), err)
	}
	return there, nil
}

func isImage(st *unix.Stat_t, ids workspace.IDs) error {
	if st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 || st.Gid != ids.Executor || st.Nlink != 1 {
		return fmt.Errorf("it is not a file of root:%d alone with mode 0600; move it away, or give it back its owner: %w",
			ids.Executor, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// removeImage removes the image of ids, if there is one, and one half made.
func (d *dirs) removeImage(name id.Workspace, ids workspace.IDs) error {
	if err := removeAt(d.images, newImageName(name)); err != nil {
		return err
	}
	st, there, err := statAt(d.images, imageName(name))
	if err != nil {
		return fmt.Errorf("cannot look at the image of %s: %w", name, err)
	}
	if !there || st.Gid != ids.Executor {
		return nil // another's was not made for it, and stays
	}
	f, err := d.freeImage(name)
	if err != nil {
		return err
	}
	defer f.Close()
	err = removeAt(d.images, imageName(name))
	crashpoint.Here("broker.image.removed")
	return err
}

// freeTimeout bounds the wait for the kernel to unmount an image whose executor has ended.
const freeTimeout = 5 * time.Second

// freeImage opens the image and sees that nobody uses it. What is removed or moved while it
// is mounted would live on unseen.
func (d *dirs) freeImage(name id.Workspace) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), freeTimeout)
	defer cancel()
	f, err := openAt(d.images, imageName(name), unix.O_RDONLY, 0)
	if err == nil {
		if err = image.Free(ctx, f); err == nil {
			crashpoint.Here("broker.image.free")
			return f, nil
		}
		_ = f.Close()
	}
	return nil, fmt.Errorf("cannot take the image of %s away: %w", name, err)
}

// keepImage moves the image into a retained home.
func (d *dirs) keepImage(name id.Workspace, ids workspace.IDs, kept *os.File) error {
	there, err := d.ownImage(name, ids)
	if err != nil || !there {
		return err
	}
	f, err := d.freeImage(name)
	if err != nil {
		return err
	}
	defer f.Close()
	err = withFD(d.images, func(from int) error {
		return withFD(kept, func(to int) error {
			return unix.Renameat2(from, imageName(name), to, keptImage, unix.RENAME_NOREPLACE)
		})
	})
	crashpoint.Here("broker.image.kept")
	return err
}

// takeImage moves the image back from a retained home. A file of that name that is no image is the home's own.
func (d *dirs) takeImage(name id.Workspace, ids workspace.IDs, kept *os.File) error {
	st, there, err := statAt(kept, keptImage)
	if err != nil || !there || isImage(&st, ids) != nil {
		return err
	}
	return withFD(kept, func(from int) error {
		return withFD(d.images, func(to int) error {
			return unix.Renameat2(from, keptImage, to, imageName(name), unix.RENAME_NOREPLACE)
		})
	})
}
