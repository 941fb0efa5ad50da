package probe

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of linux/kvm.h that every architecture has.
const (
	kvmGetAPIVersion   = 0xae00
	kvmCreateVM        = 0xae01
	kvmGetVCPUMmapSize = 0xae04
	kvmCreateVCPU      = 0xae41
	kvmSetUserMemory   = 0x4020ae46
	kvmRun             = 0xae80
	kvmDevice          = "/dev/kvm"
	guestPage          = 4096
)

const noKVM = "in a virtual machine: ask for nested virtualisation; on hardware: enable it in the firmware, then " +
	"modprobe kvm_intel || modprobe kvm_amd"

func ioctl(fd int, op, arg uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), op, arg)
	return int(n), orNil(errno)
}

// prepare is ioctl for what comes before the guest runs, which a signal of the Go runtime may interrupt.
func prepare(fd int, op, arg uintptr) (n int, err error) {
	for range 100 {
		if n, err = ioctl(fd, op, arg); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return n, err
}

// tryKVM says yes only if a guest has run an instruction: a device that opens, and a machine that can be made,
// promise nothing.
func tryKVM(*Config) (State, string, string) {
	fd, err := unix.Open(kvmDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return No, "opening " + kvmDevice + ": " + err.Error(), mayOpen(kvmDevice)
	case err != nil:
		return No, "opening " + kvmDevice + ": " + err.Error(), noKVM
	}
	defer unix.Close(fd)
	version, err := ioctl(fd, kvmGetAPIVersion, 0)
	if err != nil {
		return No, "KVM_GET_API_VERSION: " + err.Error(), noKVM
	}
	if err := runCode(fd, hlt); err != nil {
		return No, fmt.Sprintf("API version %d, but no guest runs: %v", version, err), noKVM
	}
	return Yes, fmt.Sprintf("API version %d, a guest ran an instruction", version), ""
}

// mayOpen is how the caller gets the right to open a device.
func mayOpen(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Gid != 0 && st.Mode&0o060 == 0o060 {
		if g, err := user.LookupGroupId(strconv.Itoa(int(st.Gid))); err == nil {
			return fmt.Sprintf("sudo usermod -aG %s $USER, and log in again", g.Name)
		}
	}
	return "run carrel doctor as root; in a container, pass " + path + " in"
}

// guest is a virtual machine with one page of memory and one processor.
type guest struct {
	vm, cpu     int
	memory, run []byte
}

func (g *guest) close() {
	for _, m := range [][]byte{g.run, g.memory} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	for _, fd := range []int{g.cpu, g.vm} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func makeGuest(kvm int) (g *guest, err error) {
	g = &guest{vm: -1, cpu: -1}
	step := func(name string, err error) error {
		if err != nil {
			g.close()
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	g.vm, err = prepare(kvm, kvmCreateVM, 0)
	if err := step("KVM_CREATE_VM", err); err != nil {
		return nil, err
	}
	g.memory, err = unix.Mmap(-1, 0, guestPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err := step("mmap", err); err != nil {
		return nil, err
	}
	region := struct { // struct kvm_userspace_memory_region
		slot, flags               uint32
		guest, size, userspaceAdr uint64
	}{size: uint64(guestPage), userspaceAdr: uint64(uintptr(unsafe.Pointer(&g.memory[0])))}
	_, err = prepare(g.vm, kvmSetUserMemory, uintptr(unsafe.Pointer(&region)))
	if err := step("KVM_SET_USER_MEMORY_REGION", err); err != nil {
		return nil, err
	}
	g.cpu, err = prepare(g.vm, kvmCreateVCPU, 0)
	if err := step("KVM_CREATE_VCPU", err); err != nil {
		return nil, err
	}
	size, err := prepare(kvm, kvmGetVCPUMmapSize, 0)
	if err == nil {
		g.run, err = unix.Mmap(g.cpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	return g, step("KVM_GET_VCPU_MMAP_SIZE", err)
}
