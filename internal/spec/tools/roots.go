package tools

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Roots are the directories below which paths are read on a host, beside those that its user offers: what administrators
// look at. Home directories, /tmp and /root are not among them.
var Roots = []string{"/bin", "/boot", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/srv", "/sys", "/usr", "/var/log"}

// maxPaths bounds how many paths a line of a search may begin with.
const maxPaths = 16

// PathsOf are the paths that a line of a search may begin with: what is in front of each ":", number and ":". A file's name
// may have such a thing in it, so that one line may have several. None: the line is no such line, or has too many.
func PathsOf(line string) []string {
	var all []string
	if !strings.HasPrefix(line, "/") {
		return nil
	}
	for _, at := range numbered.FindAllStringIndex(line, -1) {
		if at[1] == len(line) || line[at[1]] != ':' {
			continue
		}
		if all = append(all, line[:at[0]]); len(all) > maxPaths {
			return nil
		}
	}
	return all
}

// numbered begins what is between the path and the text of a line; the ":" behind it may begin another one.
var numbered = regexp.MustCompile(`:[0-9]+`)

// Below says why a path may not be read where the directories of Roots and some others may: permission_denied. The path has
// been resolved: no part of it is a symbolic link.
func Below(found string, others ...string) error {
	if !path.IsAbs(found) || path.Clean(found) != found {
		return fmt.Errorf("cannot read %q: it is no absolute path without . and ..: %w", found, errdefs.ErrInvalidArgument)
	}
	all := append(slices.Clone(others), Roots...)
	for _, root := range all {
		if found == root || strings.HasPrefix(found, strings.TrimSuffix(root, "/")+"/") {
			return nil
		}
	}
	return fmt.Errorf("cannot read %s: tools read below %s alone; propose a command, about which the person is asked: %w", found,
		strings.Join(all, " "), errdefs.ErrPermissionDenied)
}
