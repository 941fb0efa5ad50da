package hostrun

import (
	"context"
	"fmt"
	"sync"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// groups is where control groups of commands can be made, found once: a process stays in its group.
var groups = sync.OnceValues(cgroup.OpenSteps)

// takeGroup makes a control group for the supervisor and its command, without bounds yet, where the caller can make some. Otherwise
// ungrouped says why there is none, and the other bounds hold the command as where none can be made.
func (s *supervisor) takeGroup() {
	if !s.row.limited {
		return
	}
	at, err := groups()
	if err == nil {
		s.group, err = at.Make(cgroup.StepLimits{})
	}
	if err != nil {
		s.ungrouped = err.Error()
	}
}

// boundGroup sets the bounds of the group, before the command is there.
func (s *supervisor) boundGroup(sp *spec) {
	if s.group == nil {
		return
	}
	if err := s.group.Limit(cgroup.StepLimits{MemoryBytes: sp.Memory, Pids: int64(sp.most())}); err != nil {
		s.ungrouped = err.Error()
		return
	}
	sp.Grouped = sp.Processes > 0
}

// dropGroup ends what is left in the group, and removes it.
func (s *supervisor) dropGroup() {
	if s.group != nil {
		_ = s.group.Remove(context.Background()) // one that stays is removed by the next process that makes some
	}
}

// born starts the supervisor in its group. One that cannot be entered is given up, and said.
func (s *supervisor) born() (err error) {
	if s.group != nil {
		err = s.group.Fork(func(in int) error {
			a := s.command.SysProcAttr
			a.UseCgroupFD, a.CgroupFD = in >= 0, max(in, 0)
			return s.command.Start()
		})
		if err == nil || s.command.Process != nil {
			return err
		}
		s.dropGroup()
		s.group, s.ungrouped = nil, err.Error()
		again := *s.command // a command starts once
		again.SysProcAttr = attributes(s.row)
		s.command = &again
	}
	return s.command.Start()
}

// grouped are what is read of the command's group.
func (s *supervisor) grouped() (found []finding) {
	of := map[string]string{string(cgroup.Memory): "memory", string(cgroup.Pids): "process-count", string(cgroup.CPU): "processor"}
	if s.group == nil || s.ungrouped != "" {
		return nil
	}
	for _, e := range s.group.Check(s.command.Process.Pid) {
		found = append(found, finding{of[e.Control], e.OK, "outside: " + e.Text})
	}
	return found
}

// filled says that the kernel has ended a process of the command because its group had no memory left; nil if it has not.
func (s *session) filled() error {
	if s.group == nil || s.group.Killed() == 0 {
		return nil
	}
	return &exceeded{fmt.Sprintf("its processes took %d MiB of memory together, and may take %[1]d with files in memory; have it do less "+
		"at once, or have an administrator raise steps.memory", s.spec.Memory>>20)}
}
