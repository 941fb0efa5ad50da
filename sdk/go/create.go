package carrel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

// Mount is a directory of this host for a new workspace.
type Mount struct {
	// Source is a directory that this process may open. The user of this process owns the files
	// that commands make in it.
	Source string
	// Destination is its path inside: anywhere but in the places of the workspace's own system, or
	// "~/NAME" below the home.
	Destination string
	ReadOnly    bool
	// AsRoot: this process is root's, and commands may write files of root in the directory.
	AsRoot bool
	// Stage, if set, has commands work on a copy: what they write is kept in this directory, and Source stays as it is. It has the
	// directories "upper" and "work", is this user's, on the same kind of file system as an overlay may write to (overlayfs.rst of
	// Linux), and outside of Source. What is in upper is the form of such an overlay with the option userxattr.
	Stage string
	// Held are paths below Source that commands shall not write, without links on the way; what is not there is left out. They are
	// for what the broker cannot know, such as a directory of hooks that this user's configuration of git names. There may be 256.
	Held []string
}

// Create makes the workspace for a key and starts it, or returns the existing one; created says
// which. Each mount is opened with the rights of this process, and by the broker with the rights
// of its user at each start. There may be eight mounts. Without mounts it is the same as
// Workspaces().Create.
//
// If the workspace exists with other mounts, openings or network rules, the error is failed_precondition. Rules
// (ReachAllow, ReachDeny) are changed with Workspaces().Update.
func (c *Client) Create(ctx context.Context, req *carrelv1.CreateRequest, mounts ...Mount) (
	w *carrelv1.Workspace, created bool, err error,
) {
	if len(mounts) == 0 {
		res, err := c.Workspaces().Create(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, false, err
		}
		return res.Msg.GetWorkspace(), res.Msg.GetCreated(), nil
	}
	if !c.host.direct() {
		return nil, false, fmt.Errorf(
			"cannot mount directories into a workspace with a token or from elsewhere: the Unix user decides who may read them; create "+
				"it on the daemon's host, without a token: %w", errdefs.ErrFailedPrecondition,
		)
	}
	sum := sha256.Sum256([]byte(req.GetKey()))
	m := mountgrant.Message{KeyDigest: hex.EncodeToString(sum[:])}
	var dirs, stages []*os.File
	var held [][]string
	some := false
	defer func() {
		for _, d := range dirs {
			d.Close()
		}
	}()
	for _, x := range mounts {
		dir, path, err := openSource(x.Source)
		if err != nil {
			return nil, false, err
		}
		dirs = append(dirs, dir)
		w := workspace.Mount{Source: path, Destination: x.Destination, ReadOnly: x.ReadOnly, AsRoot: x.AsRoot, Staged: x.Stage != ""}
		if w.Staged {
			var stage *os.File
			if stage, w.Stage, err = openSource(x.Stage); err != nil {
				return nil, false, err
			}
			defer stage.Close()
			stages = append(stages, stage)
		}
		m.Mounts = append(m.Mounts, w)
		held = append(held, x.Held)
		some = some || len(x.Held) > 0
	}
	if err := workspace.CheckMounts(m.Mounts); err != nil {
		return nil, false, err
	}
	if some {
		m.Held = held
	}
	far, near, err := mountgrant.Offer(m, slices.Concat(dirs, stages))
	if err != nil {
		return nil, false, err
	}
	defer near.Close() // the grant is valid while it is open
	defer far.Close()
	x, err := c.open(ctx)
	if err != nil {
		return nil, false, err
	}
	defer x.Close()
	with := proto.CloneOf(req)
	for _, m := range m.Mounts {
		with.Mounts = append(with.Mounts, &carrelv1.Mount{
			Source: m.Source, Destination: m.Destination, ReadOnly: m.ReadOnly, AsRoot: m.AsRoot,
			Staged: m.Staged, Stage: m.Stage,
		})
	}
	var res carrelv1.CreateResponse
	if _, err := x.call(ctx, fdapi.Create, with, &res, 0, far); err != nil {
		return nil, false, err
	}
	return res.GetWorkspace(), res.GetCreated(), nil
}

// openSource opens a directory for reading, which shows that this user may read it, and returns
// its path according to the kernel.
func openSource(source string) (*os.File, string, error) {
	fail := func(why string, kind error) (*os.File, string, error) {
		return nil, "", fmt.Errorf("cannot mount %s: %s: %w", source, why, kind)
	}
	fd, err := unix.Open(source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case os.IsPermission(err):
		return fail("this user may not open it", errdefs.ErrPermissionDenied)
	case os.IsNotExist(err):
		return fail("there is no such directory", errdefs.ErrNotFound)
	case errors.Is(err, unix.ENOTDIR):
		return fail("it is not a directory, and only those can be mounted; name the one that it is in", errdefs.ErrInvalidArgument)
	case err != nil:
		return fail(err.Error(), errdefs.ErrInvalidArgument)
	}
	f := os.NewFile(uintptr(fd), source)
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !filepath.IsAbs(path) || strings.HasSuffix(path, " (deleted)") {
		f.Close()
		return fail("it has no path by which others could find it", errdefs.ErrInvalidArgument)
	}
	return f, path, nil
}
