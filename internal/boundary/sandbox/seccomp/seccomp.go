// Package seccomp builds and loads the system call filter of a workspace: an
// allow-list with ENOSYS for the rest, rules on the arguments of a few calls, and
// a check of the architecture before anything else.
//
// The filter is classic BPF assembled here and not by a library because the
// argument rules must compare the low 32 bits only: the kernel ignores the upper
// half of an int argument, so a 64-bit compare lets ioctl(fd, TIOCSTI|1<<32) pass.
// A foreign architecture and x32 numbers are refused first, as their numbers mean
// other calls.
//
// It must not know what a workspace is; Options says what to open.
package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options opens what the default filter refuses. Each is reported as weaker.
type Options struct {
	// IOUring allows the io_uring calls.
	IOUring bool
	// UserNS allows the calls that make and enter namespaces, Mounts those that mount in them.
	UserNS, Mounts bool
	// NoSetID refuses to set the set-uid and set-gid bits of a file, and the one call
	// whose mode the filter cannot read (openat2, which programs do without). Unlike the
	// others it closes.
	NoSetID bool
	// OneID: commands have the id of their executor, which is pid 1. It refuses the ways to
	// reach it that an own id stands in the way of otherwise. This one closes too.
	OneID bool
	// NoUnix refuses to make Unix sockets, by path and abstract alike, with which services of the host are reached: a
	// read-only mount does not keep anybody from connecting to one. Connected pairs, of streams and of packets with
	// a connection, can reach nobody else and stay. It closes as well.
	NoUnix bool
	// NoIP refuses to make IP sockets, so that nothing can be asked over the network that is in sight.
	NoIP bool
}

// Return values of a filter, from linux/seccomp.h.
const (
	retAllow = 0x7fff0000
	retErrno = 0x00050000
)

// Offsets in struct seccomp_data.
const (
	offNR   = 0
	offArch = 4
	offArg0 = 16
)

func arg(n int) uint32 { return uint32(offArg0 + 8*n) } // low half on little endian

// rule is one condition on one argument's low 32 bits. If it matches, the call
// gets the errno; if no rule of a call matches, it is allowed. Errno 0 tells the caller that the
// call was made, and it was not.
type rule struct {
	arg   int
	high  bool   // the upper half instead
	mask  uint32 // applied before comparing
	op    op
	value []uint32
	errno unix.Errno
	// when restricts the rule to calls whose argument whenArg equals whenIs.
	when    bool
	whenArg int
	whenIs  uint32
	// with restricts the rule to calls that have one of these bits in argument withArg.
	with     uint32
	withArg  int
	withHigh bool // in its upper half instead
}

type op int

const (
	anyOf  op = iota // (arg & mask) equals one of value
	noneOf           // (arg & mask) equals none of value
	nonzero
)

// Filter returns the program for the architecture this binary was built for.
func Filter(o Options) ([]unix.SockFilter, error) {
	allowed := slices.Clone(common)
	allowed = append(allowed, native...)
	if o.IOUring {
		allowed = append(allowed, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER)
	}
	rules := argumentRules(o)
	if o.UserNS {
		allowed = append(allowed, nesting...)
	}
	if o.Mounts {
		allowed = append(allowed, mounting...)
	}
	if o.NoSetID {
		allowed = slices.DeleteFunc(allowed, func(nr int) bool { return nr == unix.SYS_OPENAT2 })
	}
	return assemble(allowed, rules)
}

// assemble orders the program so that the kernel can cache what depends on the
// number alone: architecture, x32, then the numbers as sorted ranges, then the
// calls with argument rules.
func assemble(allowed []int, rules map[int][]rule) ([]unix.SockFilter, error) {
	var p []unix.SockFilter
	stmt := func(code uint16, k uint32) { p = append(p, unix.SockFilter{Code: code, K: k}) }
	jump := func(code uint16, k uint32, jt, jf uint8) {
		p = append(p, unix.SockFilter{Code: code, K: k, Jt: jt, Jf: jf})
	}
	const (
		ld  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jge = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		jgt = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		ret = unix.BPF_RET | unix.BPF_K
	)
	errno := func(e unix.Errno) uint32 { return retErrno | uint32(e) }

	stmt(ld, offArch)
	jump(jeq, auditArch, 1, 0)
	stmt(ret, errno(unix.ENOSYS))
	stmt(ld, offNR)
	if x32Bit != 0 {
		jump(jge, x32Bit, 0, 1)
		stmt(ret, errno(unix.ENOSYS))
	}

	// The calls with argument rules come before the ranges, so that a number that
	// stands in both is judged by its rules.
	numbers := make([]int, 0, len(rules))
	for nr := range rules {
		numbers = append(numbers, nr)
	}
	slices.Sort(numbers)
	for _, nr := range numbers {
		var body []unix.SockFilter
		for _, r := range rules[nr] {
			body = append(body, r.compile()...)
		}
		body = append(body, unix.SockFilter{Code: ret, K: retAllow})
		if len(body) > 255 {
			return nil, fmt.Errorf("cannot build a system call filter: the rules of call %d need %d instructions", nr, len(body))
		}
		jump(jeq, uint32(nr), 0, uint8(len(body)))
		p = append(p, body...)
	}

	slices.Sort(allowed)
	allowed = slices.Compact(allowed)
	for i := 0; i < len(allowed); {
		j := i
		for j+1 < len(allowed) && allowed[j+1] == allowed[j]+1 {
			j++
		}
		if i == j {
			jump(jeq, uint32(allowed[i]), 0, 1)
		} else {
			jump(jge, uint32(allowed[i]), 0, 2)
			jump(jgt, uint32(allowed[j]), 1, 0)
		}
		stmt(ret, retAllow)
		i = j + 1
	}
	stmt(ret, errno(unix.ENOSYS))
	if len(p) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("cannot build a system call filter: %d instructions, the kernel takes %d", len(p), unix.BPF_MAXINSNS)
	}
	return p, nil
}

// compile turns a rule into instructions that return its errno on a match and
// fall through otherwise. The accumulator is free to use: nothing after a call's
// rules reads the number again.
func (r rule) compile() []unix.SockFilter {
	const (
		ld  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret = unix.BPF_RET | unix.BPF_K
	)
	var p []unix.SockFilter
	at := arg(r.arg)
	if r.high {
		at += 4
	}
	p = append(p, unix.SockFilter{Code: ld, K: at})
	if r.mask != 0 {
		p = append(p, unix.SockFilter{Code: and, K: r.mask})
	}
	n := len(r.value)
	switch r.op {
	case nonzero:
		p = append(p, unix.SockFilter{Code: jeq, K: 0, Jt: 1, Jf: 0})
	case anyOf:
		for i, v := range r.value {
			// A match jumps over the remaining compares and the skip below them.
			p = append(p, unix.SockFilter{Code: jeq, K: v, Jt: uint8(n - i), Jf: 0})
		}
		p = append(p, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: 1})
	case noneOf:
		for i, v := range r.value {
			p = append(p, unix.SockFilter{Code: jeq, K: v, Jt: uint8(n - i), Jf: 0})
		}
	}
	p = append(p, unix.SockFilter{Code: ret, K: retErrno | uint32(r.errno)})
	if r.when {
		guard := []unix.SockFilter{
			{Code: ld, K: arg(r.whenArg)},
			{Code: jeq, K: r.whenIs, Jt: 0, Jf: uint8(len(p))},
		}
		p = append(guard, p...)
	}
	if r.with != 0 {
		at := arg(r.withArg)
		if r.withHigh {
			at += 4
		}
		guard := []unix.SockFilter{
			{Code: ld, K: at},
			{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: r.with, Jt: 0, Jf: uint8(len(p))},
		}
		p = append(guard, p...)
	}
	return p
}

// Load installs the filter on every thread of the process, for good. It needs
// no_new_privs to be set.
func Load(p []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	tid, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("cannot load the system call filter: %w", e)
	}
	if tid != 0 {
		return fmt.Errorf("cannot load the system call filter: thread %d has another one", tid)
	}
	return nil
}
