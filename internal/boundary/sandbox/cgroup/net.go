package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Limits of the group of a workspace's carrel-egress, which holds the buffers of its connections. What it
// uses counts for the workspace, and not for others.
const (
	NetPids        = 64
	NetMemoryBytes = 128 << 20
)

// net is the name of that group, beside sup and cmd.
const net = "net"

// NetFiles are how a process is born in the group of a workspace's carrel-egress.
type NetFiles struct {
	// V1 are the `tasks` files of its v1 groups: a thread that writes "0" there moves itself.
	V1 []*os.File
	// V2 is the directory of its v2 group, to clone into.
	V2 *os.File
}

// Close closes all of them.
func (f *NetFiles) Close() {
	for _, x := range append(f.V1, f.V2) {
		if x != nil {
			_ = x.Close()
		}
	}
}

// OpenNet makes the group of a running workspace's carrel-egress, or takes the one there is, and opens it.
func (in *Instance) OpenNet(name id.Workspace) (*NetFiles, error) {
	f := &NetFiles{}
	for _, h := range in.all() {
		if err := h.within(string(name), func(own dirFD) error { return h.openNet(own, f) }); err != nil {
			f.Close()
			return nil, fmt.Errorf("cannot make the control group of carrel-egress for %s: %w", name, err)
		}
	}
	return f, nil
}

func (h *hierarchy) openNet(own dirFD, f *NetFiles) error {
	d, err := own.make(net)
	if err != nil {
		return err
	}
	defer d.close()
	if len(h.have) > 0 {
		if err := h.apply(d, net, noLimits); err != nil {
			return err
		}
	}
	if h.v1() {
		tasks, err := d.openFile("tasks", unix.O_WRONLY)
		if err == nil {
			f.V1 = append(f.V1, tasks)
		}
		return err
	}
	fd, err := openat(int(d), ".", openDir)
	if err == nil {
		f.V2 = os.NewFile(uintptr(fd), "v2 net group")
	}
	return err
}

// EndNet ends the carrel-egress of a workspace and waits until it has ended. It is no error if there is none.
func (in *Instance) EndNet(ctx context.Context, name id.Workspace) error {
	err := in.v2.within(string(name), func(own dirFD) error {
		d, err := own.open(net)
		if err != nil {
			return err
		}
		defer d.close()
		if err := d.killAll(); err != nil {
			return err
		}
		if err := d.await(ctx, "populated 0"); err != nil {
			return err
		}
		// Linux 6.18 ends what is cloned into a group in which all was killed before.
		return removeTree(own, net, 0)
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot end the carrel-egress of %s: %w", name, err)
	}
	return nil
}
