// Package build has the name, version and commit of a program, and nothing else.
package build

import "runtime/debug"

// version is set by the linker: -X github.com/carrel-dev/carrel/internal/base/build.version=v1.2.3
var version = ""

// Version is the release, or "devel" and the commit it was built from.
func Version() string {
	if version != "" {
		return version
	}
	if c := Commit(); c != "" {
		return "devel-" + c[:min(12, len(c))]
	}
	return "devel"
}

// Commit is the full hash of the source, with "-dirty" if it was changed, or "".
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var rev, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if rev == "" {
		return ""
	}
	return rev + dirty
}
