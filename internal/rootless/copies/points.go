package copies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/linux/removal"
)

//	<store>/RUN/N/points/NAME    what upper was at a checkpoint
//	<store>/RUN/N/stage/old      what it was before a restore, until that is done

const (
	pointsName = "points"
	partSuffix = ".part"
	oldName    = "old"
	nextName   = "next"
)

// MaxPoints bounds the checkpoints of a copy.
const MaxPoints = 100

// Point is a checkpoint of a copy.
type Point struct {
	Name string    `json:"name"`
	Made time.Time `json:"made"`
}

var pointNames = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

// Points lists the checkpoints of a copy, the oldest first.
func (c *Copy) Points() (all []Point, err error) {
	list, err := os.ReadDir(filepath.Join(c.dir, pointsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the checkpoints of %s: %w", c.Run, err)
	}
	for _, e := range list {
		fi, err := e.Info()
		if err != nil || strings.HasSuffix(e.Name(), partSuffix) {
			continue
		}
		all = append(all, Point{e.Name(), fi.ModTime().UTC()})
	}
	return all, nil
}

// Checkpoint keeps what the copy is now under a name, which is the next number if it is "". Nobody may write the copy meanwhile.
func (c *Copy) Checkpoint(ctx context.Context, name string) (Point, error) {
	fail := func(err error) (Point, error) {
		return Point{}, fmt.Errorf("cannot make a checkpoint of the staged copy of %s: %w", c.Source, err)
	}
	if err := c.settled("make a checkpoint of"); err != nil {
		return Point{}, err
	}
	all, err := c.Points()
	if err != nil {
		return Point{}, err
	}
	if len(all) >= MaxPoints {
		return fail(fmt.Errorf("it has %d; carrel discard removes them with it: %w", len(all), errdefs.ErrResourceExhausted))
	}
	for n := len(all) + 1; name == ""; n++ {
		if _, err := os.Lstat(filepath.Join(c.dir, pointsName, strconv.Itoa(n))); err != nil {
			name = strconv.Itoa(n)
		}
	}
	if !pointNames().MatchString(name) {
		return fail(fmt.Errorf("%q is no name for one: use up to 64 letters, digits, _ and -: %w", name, errdefs.ErrInvalidArgument))
	}
	to := filepath.Join(c.dir, pointsName, name)
	if _, err := os.Lstat(to); err == nil {
		return fail(fmt.Errorf("there is one of the name %s: %w", name, errdefs.ErrAlreadyExists))
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fail(err)
	}
	if err := copyTree(ctx, c.upper(), to+partSuffix); err != nil {
		return fail(err)
	}
	now := time.Now()
	if err := errors.Join(os.Chtimes(to+partSuffix, now, now), os.Rename(to+partSuffix, to)); err != nil {
		return fail(err)
	}
	return Point{name, now.UTC()}, nil
}

func (c *Copy) upper() string { return filepath.Join(c.dir, stageName, sandbox.StageUpper) }

// Restore makes the copy what it was at a checkpoint, which stays. No workspace may have the copy mounted. If it is cut off, the copy
// is as it was, or as it is to be.
func (c *Copy) Restore(ctx context.Context, name string) error {
	fail := func(err error) error {
		return fmt.Errorf("cannot restore the staged copy of %s: %w", c.Source, err)
	}
	if err := c.settled("restore"); err != nil {
		return err
	}
	from := filepath.Join(c.dir, pointsName, name)
	if _, err := os.Lstat(from); err != nil || !pointNames().MatchString(name) {
		return fail(fmt.Errorf("it has no checkpoint %q; carrel checkpoint --list %s lists them: %w", name, c.Run, errdefs.ErrNotFound))
	}
	stage := filepath.Join(c.dir, stageName)
	next, old := filepath.Join(stage, nextName), filepath.Join(stage, oldName)
	if err := copyTree(ctx, from, next); err != nil {
		return fail(err)
	}
	// One call exchanges them, so that there is always one of the two.
	if err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, c.upper(), unix.RENAME_EXCHANGE); err != nil {
		return fail(err)
	}
	if err := os.Rename(next, old); err != nil {
		return fail(err)
	}
	if err := removal.Path(ctx, old); err != nil {
		return fail(err)
	}
	return nil
}

// copyTree copies an upper directory with everything that an overlay marks: attributes, links, devices 0/0. What was there of an
// earlier attempt is removed.
func copyTree(ctx context.Context, from, to string) error {
	if err := removal.Path(ctx, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c := exec.CommandContext(ctx, "/usr/bin/cp", "--archive", "--no-dereference", "--reflink=auto", "--no-target-directory", "--", from, to)
	if _, err := os.Lstat(c.Path); err != nil {
		c.Path = "/bin/cp"
	}
	c.Dir, c.Env = "/", []string{"LC_ALL=C"}
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("cp: %.300s: %w", strings.TrimSpace(said.String()), err)
	}
	return nil
}
