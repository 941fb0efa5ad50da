package cgroup

import (
	"context"
	"strconv"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// reclaimTime bounds Reclaim, up to one step more; reclaimStep is what the kernel is asked for at a time.
const (
	reclaimTime = 250 * time.Millisecond
	reclaimStep = 16 << 20
)

// Reclaim has the kernel give up the memory that it keeps for a workspace whose processes have ended:
// files that it read, mostly. While there is such memory, the kernel keeps a group that was removed, with its
// counters for each processor, and goes through it with all others when memory is short.
//
// What is left after reclaimTime is left to that. Nothing depends on it, so there is no error.
func (in *Instance) Reclaim(ctx context.Context, name id.Workspace) {
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	for _, h := range in.all() {
		if !h.has(Memory) {
			continue
		}
		_ = h.within(string(name), func(own dirFD) error {
			for _, group := range []string{cmd, sup} {
				if d, err := own.open(group); err == nil {
					h.reclaim(ctx, d)
					d.close()
				}
			}
			return nil
		})
	}
}

// reclaim goes on until nothing is left, the kernel finds no more or ctx ends.
func (h *hierarchy) reclaim(ctx context.Context, d dirFD) {
	current, order := "memory.current", "memory.reclaim" // Linux 5.19
	if h.v1() {
		current, order = "memory.usage_in_bytes", "memory.limit_in_bytes"
	}
	for ctx.Err() == nil {
		used := d.number(current, "")
		if used <= 0 {
			return
		}
		amount := int64(reclaimStep)
		if h.v1() {
			amount = max(used-reclaimStep, 0) // a lower limit: nothing runs here any more that it could end
		}
		if err := d.write(order, strconv.FormatInt(amount, 10)); err != nil {
			return
		}
	}
}
