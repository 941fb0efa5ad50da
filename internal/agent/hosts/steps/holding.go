package steps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

// Holding is what holds commands on this machine. The zero value holds those alone that must not change anything.
type Holding struct {
	// Profile is that of commands which may change something; "" is hostrun.None. Writes are the directories that they may change
	// under hostrun.WorkspaceWrite, and are not read under another one.
	Profile hostrun.Profile
	Writes  []string
	// AsRoot lets commands run as root where the caller is root.
	AsRoot bool

	// program supervises them, and by runs them with it; nil is the running program, which must call hostrun.Stage then.
	program *hostrun.Program
	by      *hostrun.Runner
}

// Supervised is h with the program at path, carrel-hostrun, to supervise commands. The caller must call done.
func (h Holding) Supervised(path string) (with Holding, done func(), err error) {
	if h.program, err = hostrun.OpenProgram(path); err != nil {
		return h, nil, err
	}
	h.by = hostrun.NewRunner(h.program)
	return h, func() { _ = h.program.Close() }, nil // it was only looked at
}

// Hold returns what holds commands by a profile, in these directories where it lets some be changed. offered says that there are
// such commands at all: else the directories are not looked at.
func Hold(profile string, dirs []string, asRoot, offered bool) (h Holding, err error) {
	h = Holding{Profile: hostrun.Profile(profile), AsRoot: asRoot}
	if h.Profile != hostrun.WorkspaceWrite || !offered {
		return h, nil
	}
	if len(dirs) == 0 {
		err = fmt.Errorf("there is no directory that commands may change: %w", errdefs.ErrInvalidArgument)
	} else {
		h.Writes, err = hostrun.Writable(dirs)
	}
	if err != nil {
		return h, fmt.Errorf("cannot hold commands by profile %s: %w; go into a directory of one project, name it by --files, or give "+
			"--profile %s", profile, err, hostrun.None)
	}
	return h, nil
}

// of returns the profile of a command, with what it may change. It is an error if a person was shown another one.
func (h Holding) of(c runtime.HostCommand) (profile hostrun.Profile, writes []string, err error) {
	switch profile = cmp.Or(h.Profile, hostrun.None); {
	case c.ReadOnly:
		profile = hostrun.SystemInspect
	case profile == hostrun.WorkspaceWrite:
		writes = h.Writes
	}
	if c.Profile != "" && c.Profile != string(profile) {
		return "", nil, fmt.Errorf("it was not run: the question said that profile %.40q holds it, and this client holds it by %s; ask again: %w",
			c.Profile, profile, errdefs.ErrFailedPrecondition)
	}
	return profile, writes, nil
}

// otherwise says, in two lines of which a person sees the last, what held a command and how it runs without.
func (h Holding) otherwise() string {
	what := h.Profile.Describe()
	if h.Profile == hostrun.WorkspaceWrite {
		what = "it may change " + strings.Join(h.Writes, ", ") + " and a /tmp of its own, but neither .git nor what runs programs there"
	}
	return fmt.Sprintf("\ncarrel: under profile %s %s\ncarrel: profile %[1]s held it; only the person who asked can have it run without, "+
		"by --profile %[3]s\n", h.Profile, what, hostrun.None)
}

// refusedBy are the words of what a profile refuses.
var refusedBy = []error{unix.EROFS, unix.EACCES, unix.EPERM, unix.EXDEV, unix.EBUSY}

// held reports whether the profile of the person's choice is probably why a command failed.
func (h Holding) held(profile hostrun.Profile, c runtime.HostCommand, res hostrun.Result) bool {
	if c.ReadOnly || profile == hostrun.None || profile == hostrun.PrivilegedPassthrough || res.Code == 0 || res.TimedOut {
		return false
	}
	said := strings.ToLower(res.Stderr.Text() + res.Stdout.Text())
	return slices.ContainsFunc(refusedBy, func(e error) bool { return strings.Contains(said, e.Error()) })
}
