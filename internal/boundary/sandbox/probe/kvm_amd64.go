package probe

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/kvm.h and asm/kvm.h for x86: the sizes of struct kvm_regs and kvm_sregs are in the numbers.
const (
	kvmSetRegs  = 0x4090ae82
	kvmGetSregs = 0x8138ae83
	kvmSetSregs = 0x4138ae84
	exitHLT     = 5
	// guestTime bounds the one instruction.
	guestTime = 100 * time.Millisecond
)

// hlt is the one instruction.
var hlt = []byte{0xf4}

// runCode runs instructions in a guest until a HLT. The processor begins in real mode, at the first byte of its memory.
func runCode(kvm int, code []byte) error {
	g, err := makeGuest(kvm)
	if err != nil {
		return err
	}
	defer g.close()
	copy(g.memory, code)
	var sregs [0x138]byte
	if _, err := prepare(g.cpu, kvmGetSregs, uintptr(unsafe.Pointer(&sregs))); err != nil {
		return fmt.Errorf("KVM_GET_SREGS: %w", err)
	}
	clear(sregs[:8])    // the base of the code segment
	clear(sregs[12:14]) // and its selector
	if _, err := prepare(g.cpu, kvmSetSregs, uintptr(unsafe.Pointer(&sregs))); err != nil {
		return fmt.Errorf("KVM_SET_SREGS: %w", err)
	}
	var regs [18]uint64 // all 0, and so is the address of the instruction
	regs[17] = 2        // of the flags the bit that is always 1
	if _, err := prepare(g.cpu, kvmSetRegs, uintptr(unsafe.Pointer(&regs))); err != nil {
		return fmt.Errorf("KVM_SET_REGS: %w", err)
	}
	// A signal ends the call, should the guest not come back.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	late := time.AfterFunc(guestTime, func() {
		g.run[1] = 1 // immediate_exit
		_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
	})
	_, err = ioctl(g.cpu, kvmRun, 0)
	if !late.Stop() && err != nil {
		return fmt.Errorf("KVM_RUN: no answer within %v", guestTime)
	}
	if err != nil {
		return fmt.Errorf("KVM_RUN: %w", err)
	}
	if reason := binary.LittleEndian.Uint32(g.run[8:]); reason != exitHLT {
		return fmt.Errorf("KVM_RUN ended for reason %d, not for HLT", reason)
	}
	return nil
}
