package hostrun

import (
	"context"
	"fmt"
	"sync"

	"github.com/carrel-dev/carrel/internal/sandbox/cgroup"
)

// groups is where control groups of commands can be made, found once: a process stays in its group.
var groups = sync.OnceValues(cgroup.OpenSteps)

// takeGroup makes a control group for the command, where the caller can make some. Otherwise ungrouped says why there is none, and
// the other bounds hold the command as where none can be made.
func (s *session) takeGroup() {
	if !s.row.limited {
		return
	}
	at, err := groups()
	if err == nil {
		s.group, err = at.Make(cgroup.StepLimits{MemoryBytes: s.spec.Memory, Pids: int64(s.spec.most())})
	}
	if err != nil {
		s.ungrouped = err.Error()
	}
	s.spec.Grouped = err == nil && s.spec.Processes > 0
}

// dropGroup ends what is left in the command's group, and removes it.
func (s *session) dropGroup() {
	if s.group != nil {
		_ = s.group.Remove(context.Background()) // one that stays is removed by the next process that makes some
	}
}

// born starts the supervisor in the command's group. One that cannot be entered is given up, and said.
func (s *session) born() (err error) {
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
		s.group, s.ungrouped, s.spec.Grouped = nil, err.Error(), false
		again := *s.command // a command starts once
		again.SysProcAttr = s.attributes()
		s.command = &again
	}
	return s.command.Start()
}

// grouped are what is read of the command's group.
func (s *session) grouped() (found []finding) {
	of := map[string]string{string(cgroup.Memory): "memory", string(cgroup.Pids): "process-count", string(cgroup.CPU): "processor"}
	if s.group == nil {
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
