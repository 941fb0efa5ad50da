package workspace

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Mount is a directory of the host that a workspace shows.
type Mount struct {
	// Source is its path on the host: absolute, and free of symbolic links.
	Source string `json:"source"`
	// Destination is its path inside: below /mnt or /srv, at or below /workspace, or below the
	// home. In a request the home is written "~"; in force, it is a path.
	Destination string `json:"destination"`
	ReadOnly    bool   `json:"read_only,omitempty"`
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

// homePrefix starts a destination below the home, whose path is not known before the workspace
// exists.
const homePrefix = "~/"

// CheckMounts reports what is wrong with requested mounts.
func CheckMounts(mounts []Mount) error {
	if len(mounts) > MaxMounts {
		return fmt.Errorf("cannot mount %d directories: a workspace takes at most %d: %w", len(mounts), MaxMounts, errdefs.ErrInvalidArgument)
	}
	for i, m := range mounts {
		if err := checkSource(m.Source); err != nil {
			return err
		}
		if err := CheckDestination(m.Destination, "~"); err != nil {
			return err
		}
		if m.OwnerUID != 0 {
			return fmt.Errorf("cannot mount %s: the owner cannot be chosen: %w", m.Source, errdefs.ErrInvalidArgument)
		}
		for _, o := range mounts[:i] {
			if within(o.Destination, m.Destination) || within(m.Destination, o.Destination) {
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

// CheckDestination reports why nothing can be mounted at d; home is how the workspace's
// home is written in it.
func CheckDestination(d, home string) error {
	p := d
	if rest, ok := strings.CutPrefix(d, home+"/"); ok {
		p = "/~/" + rest // any place of its own will do for the check of the form
	}
	what := "mount at " + quoted(d)
	if err := checkPath(p, what); err != nil {
		return err
	}
	for _, place := range []struct {
		dir    string
		itself bool
	}{{"/mnt", false}, {"/srv", false}, {"/workspace", true}, {"/~", false}} {
		if within(place.dir, p) && (p != place.dir || place.itself) && (place.dir != "/~" || p != d) {
			return nil
		}
	}
	return fmt.Errorf("cannot %s: a mount goes to /workspace, or to a place below it, /mnt, /srv or the home (~/NAME): %w",
		what, errdefs.ErrInvalidArgument)
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

// within reports whether p is dir or below it.
func within(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// BelowHome reports whether the destination of a requested mount is below the home.
func (m Mount) BelowHome() bool { return strings.HasPrefix(m.Destination, homePrefix) }

// AtHome writes out a destination below the home.
func (m Mount) AtHome(home string) Mount {
	if rest, ok := strings.CutPrefix(m.Destination, homePrefix); ok {
		m.Destination = home + "/" + rest
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
func SameMounts(asked, inForce []Mount, home string) bool {
	if len(asked) != len(inForce) {
		return false
	}
	for i, a := range asked {
		f := inForce[i]
		f.OwnerUID = 0
		if a.AtHome(home) != f {
			return false
		}
	}
	return true
}
