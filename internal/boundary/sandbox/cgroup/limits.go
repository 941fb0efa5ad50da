package cgroup

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Limits of the executor's own group. It is a Go program of a few threads that holds
// bounded buffers; what it keeps of output is in these.
const (
	SupPids        = 64
	SupMemoryBytes = 64 << 20
)

// Names of the two groups below a workspace's own.
const (
	sup = "sup"
	cmd = "cmd"
)

// setting is one row of the table: which file of which group holds which value.
type setting struct {
	controller Controller
	group      string // "" is the workspace's own group
	v1, v2     string // file name; "" where that version has none
	// optional: a kernel may lack the file.
	optional bool
	value    func(l workspace.Limits, v1 bool) int64
}

func fixed(v int64) func(workspace.Limits, bool) int64 {
	return func(workspace.Limits, bool) int64 { return v }
}

// settings are written top to bottom: v1 wants limit_in_bytes before memsw, which must
// not be smaller. The weight counts among workspaces, so it is set on the workspace's own
// group; sup and cmd have equal weights.
var settings = []setting{
	{Memory, cmd, "memory.limit_in_bytes", "memory.max", false, func(l workspace.Limits, _ bool) int64 { return l.MemoryBytes }},
	{Memory, cmd, "memory.memsw.limit_in_bytes", "memory.swap.max", true, func(l workspace.Limits, v1 bool) int64 {
		if v1 {
			return l.MemoryBytes + l.SwapBytes // memsw counts both
		}
		return l.SwapBytes
	}},
	// v1 counts what sockets hold apart, and only with a limit; v2 with all other memory.
	{Memory, cmd, "memory.kmem.tcp.limit_in_bytes", "", true, func(l workspace.Limits, _ bool) int64 { return sockets(l.MemoryBytes) }},
	{Memory, cmd, "", "memory.oom.group", true, fixed(0)},
	{Memory, sup, "memory.limit_in_bytes", "memory.max", false, fixed(SupMemoryBytes)},
	{Pids, cmd, "pids.max", "pids.max", false, func(l workspace.Limits, _ bool) int64 { return l.Pids }},
	{Pids, sup, "pids.max", "pids.max", false, fixed(SupPids)},
	{Memory, net, "memory.limit_in_bytes", "memory.max", false, fixed(NetMemoryBytes)},
	{Memory, net, "memory.kmem.tcp.limit_in_bytes", "", true, fixed(NetMemoryBytes)},
	{Pids, net, "pids.max", "pids.max", false, fixed(NetPids)},
	{CPU, "", "cpu.shares", "cpu.weight", false, func(l workspace.Limits, v1 bool) int64 {
		if v1 {
			return shares(l.CPUWeight)
		}
		return l.CPUWeight
	}},
	{IO, "", "", "io.weight", true, func(l workspace.Limits, _ bool) int64 { return l.CPUWeight }},
	{IO, "", "", "io.bfq.weight", true, func(l workspace.Limits, _ bool) int64 { return min(l.CPUWeight, 1000) }},
}

// sockets is how much of a workspace's memory may be in sockets beside it, in bytes: one part in eight,
// and no less than a few connections need.
func sockets(memory int64) int64 { return max(memory/8, min(memory, 16<<20)) }

// shares converts a weight of v2 (1 to 10000, default 100) to shares of v1 (2 to 262144,
// default 1024), so that the defaults correspond.
func shares(weight int64) int64 { return min(max(weight*1024/100, 2), 262144) }

func (s setting) file(v1 bool) string {
	if v1 {
		return s.v1
	}
	return s.v2
}

// noLimits are for groups whose rows are the same for every workspace.
var noLimits workspace.Limits

// Evidence is what was read of one control after the fact.
type Evidence struct {
	Control string
	OK      bool
	Text    string
}

// memswName is the control that the second row of the table is evidence for.
const swapControl = "swap"

func (s setting) control() string {
	if s.v1 == "memory.memsw.limit_in_bytes" {
		return swapControl
	}
	return string(s.controller)
}

// holds compares a value as it was read back: memory is kept in whole pages.
func holds(got string, want int64) bool {
	v, err := strconv.ParseInt(strings.TrimPrefix(strings.TrimSpace(got), "default "), 10, 64) // weights of IO are by disk
	page := int64(os.Getpagesize())
	return err == nil && (v == want || v == want/page*page)
}

// apply writes the rows for group, which is open at dir, whose controllers the hierarchy has.
func (h *hierarchy) apply(dir dirFD, group string, l workspace.Limits) error {
	for _, s := range settings {
		name := s.file(h.v1())
		if s.group != group || name == "" || !h.has(s.controller) {
			continue
		}
		err := dir.write(name, strconv.FormatInt(s.value(l, h.v1()), 10))
		if err != nil && !(s.optional && isNotExist(err)) {
			return fmt.Errorf("cannot set %s of %s in %s: %w", name, group, h.path, err)
		}
	}
	return nil
}
