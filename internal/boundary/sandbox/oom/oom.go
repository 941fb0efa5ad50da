// Package oom puts carrel's processes into the order in which the kernel ends them when the host's
// memory is full (oom_score_adj in proc_pid_oom_score_adj(5)). Memory of the kernel that a command
// fills is charged to no process, and by size alone the kernel would choose a service of the host.
//
// A process may raise its own value, and lower it again to what a process with CAP_SYS_RESOURCE set
// last, which children inherit. So a command can lower its value to that of its executor, and for
// that reason the executor's lies far above the values of the host's services.
package oom

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The values, from who is ended first to who is ended last. What else runs on a host has 0 as a rule.
const (
	Command  = 500
	Executor = 400
	Carrel   = -900 // broker and daemon
)

func path(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }

// Set sets the value of a process.
func Set(pid, value int) error {
	f, err := os.OpenFile(path(pid), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(value))
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("cannot set when the kernel ends process %d in a lack of memory: %w", pid, err)
	}
	return nil
}

// Of reads the value of a process.
func Of(pid int) (int, error) {
	b, err := os.ReadFile(path(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
