// Package subid gives the executor of a workspace an id of its own without root: one of the
// ranges that an administrator gave the caller (subuid(5), subgid(5)), mapped by newuidmap and
// newgidmap.
//
// It must not run anything else, nor decide whether a workspace may go without.
package subid

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Ranges are the ids that the caller's executors and commands get: an executor the first of
// the caller's ranges, and commands the caller's own, so that files in mounts and homes keep
// their owner, and Unix rules keep the two apart. The second is kept for another compartment.
// nil is no ranges: executors and commands share the caller's id.
type Ranges struct {
	// uid and gid are the first of the caller's ranges.
	uid, gid uint32
	// helpers are the paths of newuidmap and newgidmap, of Debian's package uidmap, which have
	// a right that the caller has not.
	helpers [2]string
}

// taken is how many ids of a range are used.
const taken = 2

// helperTimeout bounds what a helper may take, which asks directories over the network on
// some hosts.
const helperTimeout = 10 * time.Second

// Find returns the ranges that the files give the caller, or why there are none. Whether they
// can be mapped is for Try to say, or for the first use.
func Find() (*Ranges, error) {
	r := &Ranges{}
	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("uid %d has no entry in passwd, without which newuidmap refuses it; as root: "+
			"useradd --no-create-home --uid %d NAME: %w: %w", os.Getuid(), os.Getuid(), err, errdefs.ErrNotFound)
	}
	for i, name := range []string{"newuidmap", "newgidmap"} {
		for _, dir := range []string{"/usr/bin/", "/bin/", "/usr/local/bin/"} {
			if unix.Access(dir+name, unix.X_OK) == nil {
				r.helpers[i] = dir + name
				break
			}
		}
		if r.helpers[i] == "" {
			return nil, fmt.Errorf("%s is not installed; on Debian: apt install uidmap: %w", name, errdefs.ErrNotFound)
		}
	}
	for _, f := range []struct {
		path string
		to   *uint32
	}{{"/etc/subuid", &r.uid}, {"/etc/subgid", &r.gid}} {
		b, err := os.ReadFile(f.path)
		if err != nil {
			return nil, err
		}
		var ok bool
		if *f.to, ok = ParseRange(b, me.Username, me.Uid); !ok {
			return nil, fmt.Errorf("%s gives you no range of %d ids; as root: usermod --add-subuids 100000-165535 --add-subgids "+
				"100000-165535 %s: %w", f.path, taken, me.Username, errdefs.ErrNotFound)
		}
	}
	return r, nil
}

// ParseRange finds the first range in the text of /etc/subuid or /etc/subgid that is long
// enough: lines of NAME:FIRST:COUNT, with a user's name or number (subuid(5)).
func ParseRange(text []byte, name, uid string) (first uint32, ok bool) {
	for line := range bytes.Lines(text) {
		f := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(f) != 3 || f[0] != name && f[0] != uid {
			continue
		}
		from, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		// 0 is root's, and the last number stands for none.
		if err1 == nil && err2 == nil && from > 0 && count >= taken && from+taken < 1<<32 {
			return uint32(from), true
		}
	}
	return 0, false
}

// Try maps the ids for a process that does nothing.
func (r *Ranges) Try(ctx context.Context) error {
	c := exec.CommandContext(ctx, "/bin/cat") // until its input ends
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	defer in.Close()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return err
	}
	if err = r.mapIDs(ctx, c.Process.Pid); err != nil {
		err = fmt.Errorf("the ranges cannot be mapped: %w", err)
	}
	in.Close()
	return errors.Join(err, c.Wait())
}

// IDs are the ids of a workspace.
func (r *Ranges) IDs() workspace.IDs {
	if r == nil {
		uid := uint32(os.Geteuid())
		return workspace.IDs{Executor: uid, Work: uid, Agent: uid}
	}
	return workspace.IDs{Executor: r.uid, Work: uint32(os.Geteuid()), Agent: r.uid + 1}
}

// Put gives spec its ids and returns what maps them for an executor, if that cannot do so
// itself (launch.Config).
func (r *Ranges) Put(spec *sandbox.Spec) (mapIDs func(ctx context.Context, pid int) error) {
	spec.IDs = r.IDs()
	if r == nil {
		return nil
	}
	spec.ExecutorGID, spec.AgentGID = r.gid, r.gid+1
	return r.mapIDs
}

// mapIDs writes the maps of a child that has a user namespace of its own. Inside, groups have
// the numbers of users.
func (r *Ranges) mapIDs(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	i := r.IDs()
	done := make(chan error, len(r.helpers))
	for n, host := range [][3]uint32{{r.uid, uint32(os.Geteuid()), r.uid + 1}, {r.gid, uint32(os.Getegid()), r.gid + 1}} {
		args := []string{strconv.Itoa(pid)}
		for at, inside := range []uint32{0, i.Work, i.Agent} {
			args = append(args, strconv.FormatUint(uint64(inside), 10), strconv.FormatUint(uint64(host[at]), 10), "1")
		}
		go func() {
			out, err := exec.CommandContext(ctx, r.helpers[n], args...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%s failed: %s: %w", r.helpers[n], strings.TrimSpace(string(out)), err)
			}
			done <- err
		}()
	}
	return errors.Join(<-done, <-done)
}
