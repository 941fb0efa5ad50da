package mcp

import (
	"slices"
	"sync"
)

// Bounds of output, in bytes.
const (
	// shownHead and shownTail are what a tool shows of each stream of a command.
	shownHead, shownTail = 4 << 10, 12 << 10
	// keptHead and keptTail are what is kept of each stream of an attached command, for command_output and resources.
	keptHead, keptTail = 128 << 10, 128 << 10
	// maxPart is the most that one call or one read of a resource returns.
	maxPart = 32 << 10
	// maxOutputs is how many commands of a session have their output kept.
	maxOutputs = 8
)

// kept is the output of a command on one stream: its beginning and its end.
type kept struct {
	mu      sync.Mutex
	head    []byte
	tail    []byte // what follows head, of which the last keptTail bytes count
	n       int64
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// Write keeps what there is room for. It never fails.
func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.n += int64(len(p))
	rest := p
	if room := keptHead - len(k.head); room > 0 {
		m := min(room, len(p))
		k.head = append(k.head, p[:m]...)
		rest = p[m:]
	}
	if len(rest) > 0 {
		if len(rest) > keptTail {
			rest = rest[len(rest)-keptTail:]
		}
		k.tail = append(k.tail, rest...)
		if len(k.tail) > 2*keptTail {
			k.tail = append(k.tail[:0], k.tail[len(k.tail)-keptTail:]...)
		}
	}
	k.wake()
	return len(p), nil
}

// wake tells those who wait. The lock is held.
func (k *kept) wake() {
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

// size is how many bytes there were.
func (k *kept) size() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n
}

// change returns a channel that is closed when more than the size n is there, or the command has ended.
func (k *kept) change(n int64) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	c := k.changed
	if k.n > n {
		k.wake()
	}
	return c
}

// at returns at most length bytes from an offset on. from is where they begin: behind the offset if what is there is no
// longer kept.
func (k *kept) at(offset int64, length int) (b []byte, from int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if offset < int64(len(k.head)) {
		b = k.head[offset:min(int64(len(k.head)), offset+int64(length))]
		// The tail goes on where the head ends only as long as nothing was dropped.
		if left := length - len(b); left > 0 && k.n-int64(len(k.head)) <= keptTail {
			tail := k.last()
			return append(slices.Clone(b), tail[:min(left, len(tail))]...), offset
		}
		return slices.Clone(b), offset
	}
	tail := k.last()
	from = max(offset, k.n-int64(len(tail)))
	if from >= k.n {
		return nil, k.n
	}
	b = tail[from-(k.n-int64(len(tail))):]
	return slices.Clone(b[:min(length, len(b))]), from
}

// last is what is kept of the tail. The lock is held.
func (k *kept) last() []byte { return k.tail[max(0, len(k.tail)-keptTail):] }

// output is what is kept of one attached command.
type output struct {
	workspace, id  string
	stdout, stderr kept
	mu             sync.Mutex
	ended          string // how it ended, "" while it runs
}

func (o *output) end(how string) {
	o.mu.Lock()
	o.ended = how
	o.mu.Unlock()
	for _, k := range []*kept{&o.stdout, &o.stderr} {
		k.mu.Lock()
		k.wake()
		k.mu.Unlock()
	}
}

func (o *output) how() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// outputs are the newest of a session. The zero value is ready.
type outputs struct {
	mu  sync.Mutex
	all []*output
}

// add keeps one more, and drops the oldest that has ended if there are too many. Those that run are bounded by the calls.
func (x *outputs) add(o *output) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, o)
	for len(x.all) > maxOutputs {
		i := slices.IndexFunc(x.all, func(o *output) bool { return o.how() != "" })
		if i < 0 {
			return
		}
		x.all = slices.Delete(x.all, i, i+1)
	}
}

// find returns the output of a command of a workspace, nil if none is kept.
func (x *outputs) find(workspace, command string) *output {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i := slices.IndexFunc(x.all, func(o *output) bool { return o.workspace == workspace && o.id == command }); i >= 0 {
		return x.all[i]
	}
	return nil
}
