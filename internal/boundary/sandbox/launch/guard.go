package launch

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// Guard calls lost, once, when a protected name in a writable project mount of a running executor
// is no longer held. Nothing inside can bring that about, and a user of the host can: the kernel
// unmounts what is mounted on a name that is removed or replaced elsewhere, as editors and git
// clean do. What a command then left under such a name would be run on the host, so lost is to
// end the workspace. exited is closed when the executor has ended.
func Guard(mode sandbox.Mode, pid int, exited <-chan struct{}, projects []sandbox.Project, lost func(what string)) error {
	if !writable(projects) {
		return nil
	}
	// The kernel reports each change of the mounts to a process that polls this file.
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot watch the mounts: %w", err)
	}
	rc, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("cannot watch the mounts: %w", err)
	}
	go func() {
		<-exited
		_ = f.Close() // which ends the other
	}()
	go func() {
		_ = rc.Read(func(uintptr) bool {
			select {
			case <-exited:
				return true
			default:
			}
			what := missing(mode, pid, projects)
			if what != "" {
				lost(what)
			}
			return what != ""
		})
	}()
	return nil
}

func writable(projects []sandbox.Project) bool {
	for _, p := range projects {
		if !p.ReadOnly {
			return true
		}
	}
	return false
}

// missing says which of the writable mounts of a running executor, or of what is protected in
// them, is no longer as it was, or "". An executor that is gone misses nothing.
func missing(mode sandbox.Mode, pid int, projects []sandbox.Project) string {
	seen, err := table("/proc/" + strconv.Itoa(pid) + "/")
	if err != nil {
		return ""
	}
	for _, p := range projects {
		if p.ReadOnly {
			continue
		}
		for _, f := range sandbox.ProjectFindings(mode, seen, []sandbox.Project{p}) {
			if !f.OK {
				return f.Evidence
			}
		}
	}
	return ""
}

// Held lists the protected names at the top of a project mount that are mounts.
func Held(pid int, destination string) []string {
	seen, err := table("/proc/" + strconv.Itoa(pid) + "/")
	if err != nil {
		return nil
	}
	var held []string
	for _, m := range seen {
		if name, ok := strings.CutPrefix(m.Point, destination+"/"); ok && !strings.Contains(name, "/") {
			held = append(held, name)
		}
	}
	return held
}

// HeldOf are those of paths below a project mount that are mounts.
func HeldOf(pid int, destination string, paths []string) (held []string) {
	if len(paths) == 0 {
		return nil
	}
	seen, err := table("/proc/" + strconv.Itoa(pid) + "/")
	if err != nil {
		return nil
	}
	for _, m := range seen {
		if p, ok := strings.CutPrefix(m.Point, destination+"/"); ok && slices.Contains(paths, p) {
			held = append(held, p)
		}
	}
	return held
}

// Specs are the projects as an executor is told of them.
func Specs(projects []Project) []sandbox.Project {
	var specs []sandbox.Project
	for _, p := range projects {
		specs = append(specs, p.Project)
	}
	return specs
}

// CloseProjects closes the directories of projects.
func CloseProjects(projects []Project) {
	for _, p := range projects {
		_ = p.Dir.Close()
		if p.Stage != nil {
			_ = p.Stage.Close()
		}
	}
}
