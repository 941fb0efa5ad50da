package workspace

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Mount is a directory of the host that a workspace shows.
type Mount struct {
	// Source is its path on the host: absolute, and free of symbolic links.
	Source string `json:"source"`
	// Destination is its path inside: anywhere but where the workspace's own system is. In a request
	// the home may be written "~"; in force, it is a path.
	Destination string `json:"destination"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	// AsRoot: root agrees that commands write files of root there. Only a grant of root's may say so.
	AsRoot bool `json:"as_root,omitempty"`
	// Staged shows a copy: what commands write is kept apart from the directory until a person applies it.
	Staged bool `json:"staged,omitempty"`
	// Stage is, with Staged, the directory of the host in which a daemon has what they write kept: it has "upper" and "work". A run
	// without a daemon names none.
	Stage string `json:"stage,omitempty"`
	// OwnerUID is the user of the host whose files the workspace's commands own there.
	// It is a result, and not part of a request.
	OwnerUID uint32 `json:"owner_uid,omitempty"`
}

// Bounds of the mounts of one workspace.
const (
	MaxMounts = 8
	// maxMountPath bounds each path, and maxMountBytes the JSON of all mounts.
	maxMountPath  = 1024
	maxMountBytes = 6 << 10
)

// Home is where the home of every workspace is inside, so that what is installed there works after a restore
// under another key (docs/decisions/0013-paths-inside.md).
const Home = "/home/work"

// homePrefix starts a destination below the home.
const homePrefix = "~/"

// reserved are the places of a workspace's own system.
var reserved = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/dev", "/proc", "/sys", "/run", "/var/run", "/var/lock",
	"/var/lib/dpkg",
}

// directories are the workspace's own, below which something can be mounted.
var directories = []string{Home, "/tmp", "/var/tmp"}

// CheckMounts reports what is wrong with requested mounts.
func CheckMounts(mounts []Mount) error {
	if len(mounts) > MaxMounts {
		return fmt.Errorf("cannot mount %d directories: a workspace takes at most %d: %w", len(mounts), MaxMounts, errdefs.ErrInvalidArgument)
	}
	for i, m := range mounts {
		if err := checkSource(m.Source); err != nil {
			return err
		}
		if err := CheckDestination(m.AtHome().Destination); err != nil {
			return err
		}
		if m.AsRoot && m.ReadOnly {
			return fmt.Errorf("cannot mount %s read-only and for files of root: choose one: %w", m.Source, errdefs.ErrInvalidArgument)
		}
		if m.Staged && (m.ReadOnly || m.AsRoot) {
			return fmt.Errorf("cannot mount %s as a staged copy and read-only or for files of root: choose one: %w", m.Source,
				errdefs.ErrInvalidArgument)
		}
		if err := m.checkStage(); err != nil {
			return err
		}
		if m.OwnerUID != 0 {
			return fmt.Errorf("cannot mount %s: the owner cannot be chosen: %w", m.Source, errdefs.ErrInvalidArgument)
		}
		for _, o := range mounts[:i] {
			if a, b := o.AtHome().Destination, m.AtHome().Destination; Within(a, b) || Within(b, a) {
				return fmt.Errorf("cannot mount at both %s and %s: one is in the way of the other; choose places beside each other: %w",
					o.Destination, m.Destination, errdefs.ErrInvalidArgument)
			}
		}
	}
	// Both sides store and send them in messages that have a bound.
	if b, err := json.Marshal(mounts); err != nil || len(b) > maxMountBytes {
		return fmt.Errorf("cannot mount the directories: their paths are too long together; mount fewer, or directories with shorter paths: %w",
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkStage checks where what is written to a staged copy is kept.
func (m Mount) checkStage() error {
	if m.Stage == "" {
		return nil
	}
	if !m.Staged {
		return fmt.Errorf("cannot mount %s: a place for a staged copy is named, and it is none: %w", m.Source, errdefs.ErrInvalidArgument)
	}
	if Within(m.Source, m.Stage) || Within(m.Stage, m.Source) {
		return fmt.Errorf("cannot make a staged copy of %s in %s: one contains the other; set XDG_STATE_HOME to another place: %w",
			m.Source, m.Stage, errdefs.ErrInvalidArgument)
	}
	return checkSource(m.Stage)
}

func checkSource(s string) error {
	if err := checkPath(s, "mount "+quoted(s)); err != nil {
		return err
	}
	if s == "/" {
		return fmt.Errorf("cannot mount /: the whole host does not belong into a workspace; mount the directory that is needed: %w",
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// CheckDestination reports why nothing can be mounted at a path inside.
func CheckDestination(d string) error {
	what := "mount at " + quoted(d)
	if err := checkPath(d, what); err != nil {
		return err
	}
	taken := func(place string) bool {
		return Within(d, place) || Within(place, d) && !slices.Contains(directories, place)
	}
	if d == "/" || slices.ContainsFunc(reserved, taken) || slices.ContainsFunc(directories, taken) {
		return fmt.Errorf("cannot %s: the workspace has its own files there; a mount goes to /workspace, to a place below /mnt, /srv or "+
			"the home (~/NAME), or to the path that it has on the host: %w", what, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkPath checks that a path is absolute, in its shortest form, and can be stored without loss.
func checkPath(p, what string) error {
	switch {
	case len(p) > maxMountPath:
		return fmt.Errorf("cannot %s: the path is longer than %d bytes: %w", what, maxMountPath, errdefs.ErrInvalidArgument)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("cannot %s: the path has characters that cannot be shown; rename the directory: %w", what, errdefs.ErrInvalidArgument)
	case !path.IsAbs(p) || path.Clean(p) != p:
		return fmt.Errorf("cannot %s: the path must be absolute and without \".\", \"..\" and repeated or trailing slashes: %w",
			what, errdefs.ErrInvalidArgument)
	}
	return nil
}

func quoted(s string) string { return fmt.Sprintf("%.200q", s) }

// Within reports whether p is dir or below it, both clean and absolute.
func Within(dir, p string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// BelowHome reports whether the destination is below the home.
func (m Mount) BelowHome() bool { return Within(Home, m.AtHome().Destination) }

// AtHome writes out a destination below the home.
func (m Mount) AtHome() Mount {
	if rest, ok := strings.CutPrefix(m.Destination, homePrefix); ok {
		m.Destination = Home + "/" + rest
	}
	return m
}

// Writable are the destinations of the mounts in which commands may write, nil if there are none.
func Writable(mounts []Mount) []string {
	var places []string
	for _, m := range mounts {
		if !m.ReadOnly {
			places = append(places, m.Destination)
		}
	}
	return places
}

// SameMounts reports whether the mounts in force are the requested ones.
func SameMounts(asked, inForce []Mount) bool {
	if len(asked) != len(inForce) {
		return false
	}
	for i, a := range asked {
		f := inForce[i]
		f.OwnerUID = 0
		if a.AtHome() != f {
			return false
		}
	}
	return true
}
