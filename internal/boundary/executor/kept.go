package executor

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// The executor's control group has 64 MiB (cgroup.SupMemoryBytes), and above that everything in the
// workspace ends with the executor. This is how they are spent at most:
//
//	24 MiB  keptBytes: kept and captured output, and input that is not written yet. It is mapped
//	        outside Go's heap, so that it needs no room for the collector, and in use to the page
//	24 MiB  memoryLimit of Go: 1,024 commands with a first buffer for each stream and the stacks
//	        of those who read them; one reply of two full captures at a time (see largeReply), which
//	        takes 4 MiB while it is assembled and encoded; 4 MiB of screens of sessions (see maxCells)
//	 5 MiB  pipes of execapi.MaxFollowers clients that do not read, followerBuffer each
//	 4 MiB  maxPeers connections with full socket buffers
//	 7 MiB  the kernel's own for pipes, threads and page tables
//
// Pages of a pipe belong to the group of the process that wrote them: output that is not read yet
// counts in the commands' group, and input in the executor's.
const (
	keptBytes = 24 << 20
	chunkSize = 8 << 10
	keptCount = keptBytes / chunkSize
	// ringsRoom is what captured output and input leave to the output of detached commands.
	ringsRoom = 4 << 20 / chunkSize
	// firstBuffer is how much of a captured stream, or of input, is not counted.
	firstBuffer = 4 << 10
)

// A chunk is a piece of the mapping by its number.
type chunk int32

const noChunk chunk = -1

// kept has the memory for all output that the executor keeps, in chunks. When it is used up, the
// output of ended detached commands is dropped, the one that ended first before others, and then
// the oldest output of the running command that has most. Nothing waits for room: without any,
// output is counted and lost.
//
// Its lock guards all rings and followers too, because one ring takes from another. It is held
// for system calls that do not block.
type kept struct {
	mu     sync.Mutex
	memory []byte  // mapped when first needed
	free   []chunk // given back
	fresh  chunk   // those from here on were never used
	lent   int     // for captures and input
	// rings are those of detached commands, ended the ones among them that have ended, in order.
	rings, ended []*ring
	followers    int
}

func (k *kept) bytes(c chunk) []byte { return k.memory[int(c)*chunkSize : (int(c)+1)*chunkSize] }

// take returns a chunk, or noChunk.
func (k *kept) take() chunk {
	if k.memory == nil {
		m, err := unix.Mmap(-1, 0, keptBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return noChunk
		}
		_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // a kernel without them has no such advice
		k.memory = m
	}
	if len(k.free) == 0 && k.fresh < keptCount {
		k.fresh++
		return k.fresh - 1
	}
	if len(k.free) == 0 {
		k.makeRoom()
	}
	if len(k.free) == 0 {
		return noChunk
	}
	c := k.free[len(k.free)-1]
	k.free = k.free[:len(k.free)-1]
	return c
}

// makeRoom drops output of detached commands.
func (k *kept) makeRoom() {
	for len(k.ended) > 0 {
		r := k.ended[0]
		k.ended = slices.Delete(k.ended, 0, 1)
		if len(r.chunks) > 0 {
			r.dropAll()
			return
		}
	}
	var largest *ring
	for _, r := range k.rings {
		if len(r.chunks) > 1 && (largest == nil || len(r.chunks) > len(largest.chunks)) {
			largest = r
		}
	}
	if largest != nil {
		largest.dropOldest()
	}
}

// give takes a chunk back, and its pages from the process.
func (k *kept) give(c chunk) {
	_ = unix.Madvise(k.bytes(c), unix.MADV_DONTNEED) // it only costs memory if it fails
	k.free = append(k.free, c)
}

// lend returns n chunks for a captured stream or for input, or nil: rings give way, but not all.
func (k *kept) lend(n int) []chunk {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lent+n > keptCount-ringsRoom {
		return nil
	}
	got := make([]chunk, 0, n)
	for range n {
		c := k.take()
		if c == noChunk {
			break
		}
		got = append(got, c)
	}
	k.lent += len(got)
	if len(got) < n {
		k.back(got)
		return nil
	}
	return got
}

// giveBack ends a loan.
func (k *kept) giveBack(lent []chunk) {
	if len(lent) == 0 {
		return
	}
	k.mu.Lock()
	k.back(lent)
	k.mu.Unlock()
}

func (k *kept) back(lent []chunk) {
	for _, c := range lent {
		k.give(c)
	}
	k.lent -= len(lent)
}

// ring keeps the newest output of a detached command. The lock of kept guards it.
type ring struct {
	k     *kept
	limit int64
	// chunks hold the output from offset base on, which is a multiple of chunkSize. Of that, the
	// bytes from start to end are kept.
	chunks           []chunk
	base, start, end int64
	ended            bool
	followers        []*follower
}

func (k *kept) newRing(limit int64) *ring {
	if limit == 0 {
		limit = execapi.DefaultOutput
	}
	r := &ring{k: k, limit: limit}
	k.mu.Lock()
	k.rings = append(k.rings, r)
	k.mu.Unlock()
	return r
}

func (r *ring) dropOldest() {
	r.k.give(r.chunks[0])
	r.chunks = r.chunks[1:]
	r.base += chunkSize
	r.start = max(r.start, r.base)
}

func (r *ring) dropAll() {
	for len(r.chunks) > 0 {
		r.dropOldest()
	}
	r.start = r.end
}

// room returns where the next output goes, or nil.
func (r *ring) room() []byte {
	switch {
	case len(r.chunks) == 0:
		r.base, r.start = r.end-r.end%chunkSize, r.end
	case r.end-r.base < int64(len(r.chunks))*chunkSize:
		return r.k.bytes(r.chunks[len(r.chunks)-1])[r.end%chunkSize:]
	}
	var c chunk
	if r.base+chunkSize <= r.end-r.limit { // the oldest holds nothing that is kept
		c, r.chunks = r.chunks[0], r.chunks[1:]
		r.base += chunkSize
	} else if c = r.k.take(); c == noChunk { // which may have dropped chunks of this ring too
		return nil
	}
	r.chunks = append(r.chunks, c)
	return r.k.bytes(r.chunks[len(r.chunks)-1])[r.end%chunkSize:]
}

// readFrom keeps output that the descriptor has, as read(2) returns it.
func (r *ring) readFrom(fd int) (int, error) {
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	b := r.room()
	if b == nil {
		n, err := discard(fd)
		r.end += int64(max(n, 0))
		r.start = r.end
		return n, err
	}
	n, err := unix.Read(fd, b)
	if n > 0 {
		r.end += int64(n)
		r.start = max(r.start, r.end-r.limit)
		r.wake()
	}
	return n, err
}

// keep keeps output that was read elsewhere.
func (r *ring) keep(b []byte) {
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	for len(b) > 0 {
		room := r.room()
		if room == nil {
			r.end += int64(len(b))
			r.start = r.end
			break
		}
		n := copy(room, b)
		b = b[n:]
		r.end += int64(n)
		r.start = max(r.start, r.end-r.limit)
	}
	r.wake()
}

// at returns kept output from an offset on, which must not be before start.
func (r *ring) at(offset int64) []byte {
	in := offset - r.base
	i := in / chunkSize
	return r.k.bytes(r.chunks[i])[in%chunkSize : min(chunkSize, r.end-r.base-i*chunkSize)]
}

// finish says that there is no more output to come. From now on others may take its room.
func (r *ring) finish() {
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	if r.ended { // and forgotten
		return
	}
	r.ended = true
	r.k.rings = slices.DeleteFunc(r.k.rings, func(o *ring) bool { return o == r })
	r.k.ended = append(r.k.ended, r)
	r.wake()
}

// forget drops all. Who follows is at the end then. It may be called on nil.
func (r *ring) forget() {
	if r == nil {
		return
	}
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	r.ended = true
	r.dropAll()
	same := func(o *ring) bool { return o == r }
	r.k.rings, r.k.ended = slices.DeleteFunc(r.k.rings, same), slices.DeleteFunc(r.k.ended, same)
	r.wake()
}
