package hostrun

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// place is a directory, by a path without symbolic links. Device and Inode tell it from another that takes its place.
type place struct {
	Dir    string `json:"dir"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Locked are names in it that stay read-only, all of which are there.
	Locked []string `json:"locked,omitempty"`
}

// directories finds where the command begins and what it may change.
func (p *plan) directories() (err error) {
	dir, writes := p.Dir, p.Writes
	switch {
	case len(writes) > 0 && !p.row.writes:
		return bad("cannot run the command under %s: directories to change are named, and it lets none be changed", p.row.name)
	case len(writes) > MaxWrites:
		return bad("cannot run the command under %s: %d directories to change are named, and at most %d are taken", p.row.name, len(writes),
			MaxWrites)
	case p.row.writes && len(writes) == 0 && dir == "":
		return bad("cannot run the command under %s: no directory is named that it may change", p.row.name)
	}
	if dir == "" {
		if dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("cannot find the current directory: %w; name one: %w", err, errdefs.ErrNotFound)
		}
	}
	if p.spec.place, err = placeOf(dir); err != nil || !p.row.writes {
		return err
	}
	if len(writes) == 0 {
		writes = []string{dir}
	}
	p.spec.Writes, err = writesOf(writes)
	return err
}

// Writable returns the directories that WorkspaceWrite lets a command change, given these: without symbolic links, and without
// those that are within another one. The error is that of Run.
func Writable(dirs []string) ([]string, error) {
	all, err := writesOf(dirs)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range all {
		out = append(out, w.Dir)
	}
	return out, nil
}

func writesOf(dirs []string) (out []place, err error) {
	for _, d := range dirs {
		w, err := placeOf(d)
		if err != nil {
			return nil, err
		}
		if err := writable(w.Dir); err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return slices.DeleteFunc(slices.Clone(out), func(w place) bool {
		first := slices.IndexFunc(out, func(o place) bool { return within(w.Dir, o.Dir) && w.Dir != o.Dir })
		return first >= 0
	}), nil
}

// placeOf finds a directory by the path that it has without symbolic links.
func placeOf(dir string) (place, error) {
	if !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return place{}, bad("cannot run the command in %.200q: name the directory by an absolute path", dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return place{}, fmt.Errorf("cannot run the command in %s: %w; name a directory that is there: %w", dir, err, errdefs.ErrNotFound)
	}
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return place{}, fmt.Errorf("cannot run the command in %s: %w; name a directory that is there: %w", dir, err, errdefs.ErrNotFound)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return place{}, bad("cannot run the command in %s: it is not a directory", dir)
	}
	return place{Dir: real, Device: st.Dev, Inode: st.Ino}, nil
}

// unwritable are trees of which nothing may be given to a command of WorkspaceWrite: the kernel's, and sockets of services.
var unwritable = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/boot"}

// writable reports whether a directory may be given to a command to change: one that holds no home and is none, and in which
// programs do not look for what they run. A list of names that stay read-only would never be all of those of a home.
func writable(dir string) error {
	no := func(why string) error {
		return bad("cannot let a command change %s: %s; name a directory of one project", dir, why)
	}
	for _, h := range homes() {
		if within(h, dir) {
			return no("it is or holds the home " + h)
		}
		if rest, below := strings.CutPrefix(dir, h+"/"); below && h != "/home" {
			if first, _, _ := strings.Cut(rest, "/"); strings.HasPrefix(first, ".") || first == "bin" {
				return no("~/" + first + " is where programs of the user are, or what they are told to run")
			}
		}
	}
	if filepath.Dir(dir) == "/home" {
		return no("it is a home")
	}
	for _, u := range unwritable {
		if within(dir, u) {
			return no("nothing below " + u + " is given to commands")
		}
	}
	if slices.Contains([]string{"/etc", "/usr", "/var", "/opt", "/srv", "/tmp", "/var/tmp", "/var/lib", "/mnt", "/media"}, dir) {
		return no("it is a directory of the system")
	}
	for name := range strings.SplitSeq(dir, "/") {
		for _, p := range hostfiles.Protected() {
			if p.Name == name && (p.Absent == hostfiles.Always || p.Absent == hostfiles.InHome) {
				return no("what is in " + name + " tells programs of the user what to run")
			}
		}
	}
	return nil
}

// homes are those of root and of the user, and where homes are, without symbolic links.
func homes() (all []string) {
	for _, h := range []string{"/root", "/home", os.Getenv("HOME"), passwdHome(os.Getuid())} {
		if h == "" || !filepath.IsAbs(h) {
			continue
		}
		if real, err := filepath.EvalSymlinks(h); err == nil {
			h = real
		}
		all = append(all, h)
	}
	return all
}
