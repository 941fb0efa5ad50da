// Package machine makes and runs the guests of test/vm: Debian's kernel under QEMU's
// microvm machine, emulated, so that it needs no KVM and no rights on the host but
// those of making the disk.
//
//	kernel     Debian's linux-image-cloud-amd64, downloaded and unpacked, not installed
//	initramfs  test/vm/init, the plan and the virtio modules
//	disk       ext4 with a small Debian userland, carrel's binaries and the tests
//	port       events from the guest, one JSON object a line, on QEMU's stdout
//	serial     the guest's console, kept as a log
//
// It must not write outside the directories it is given, and must not leave a QEMU
// behind, however it ends.
package machine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/carrel-dev/carrel/test/vm/job"
)

// Config is one guest. All fields are required.
type Config struct {
	QEMU                 string
	Kernel, Initrd, Disk string
	// Dir is where the console log and what the guest writes to its disk go. The disk's
	// file itself is never written.
	Dir       string
	CPUs      int
	MemoryMiB int
}

// Console is the name of the console's log in Config.Dir.
const Console = "console.log"

func (c Config) args() []string {
	return []string{
		"-machine", "microvm,acpi=on", "-accel", "tcg,thread=multi",
		// Five levels of page tables cost an emulated walk one more step each.
		"-cpu", "max,la57=off",
		"-smp", fmt.Sprint(c.CPUs), "-m", fmt.Sprint(c.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", c.Kernel, "-initrd", c.Initrd,
		"-append", fmt.Sprintf("console=ttyS0 loglevel=5 panic=-1 tsc_early_khz=%d random.trust_cpu=on", tscKHz()),
		"-serial", "file:" + filepath.Join(c.Dir, Console),
		"-drive", "id=root,if=none,format=raw,snapshot=on,file=" + c.Disk,
		"-device", "virtio-blk-device,drive=root",
		"-device", "virtio-serial-device",
		"-chardev", "stdio,id=events,signal=off",
		"-device", "virtserialport,chardev=events,name=" + job.Port,
	}
}

// Run boots the guest and hands each event to on, in order, until the guest has powered
// off. It fails if ctx ends first and if the guest ends without having said that it is
// done; both errors carry the end of the console's log.
func Run(ctx context.Context, c Config, on func(job.Event)) error {
	cmd := exec.CommandContext(ctx, c.QEMU, c.args()...)
	cmd.Env = append(os.Environ(), "TMPDIR="+c.Dir) // where snapshot=on writes
	// Its own group, so that an interrupt at the terminal reaches only us, who end it;
	// and if we are killed ourselves, the kernel does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// At the end of its stdin QEMU takes the port for closed, and the guest's writes wait.
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints

	// Pdeathsig is about the thread that forked, which must then not end before us.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start QEMU: %w", errors.Join(context.Cause(ctx), err))
	}
	done, readErr := readEvents(out, on)
	if readErr != nil {
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("it was ended early: %w", context.Cause(ctx))
	case readErr != nil:
		err = readErr
	case err != nil:
		err = fmt.Errorf("cannot run QEMU: %w: %s", err, strings.TrimSpace(complaints.String()))
	case !done:
		err = errors.New("cannot tell how it went: the guest ended before its plan did")
	default:
		return nil
	}
	return fmt.Errorf("%w; the end of its console (%s):\n%s", err, filepath.Join(c.Dir, Console), tail(filepath.Join(c.Dir, Console), 15))
}

// readEvents reads to the end of r. It reports whether the last event came.
func readEvents(r io.Reader, on func(job.Event)) (done bool, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e job.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return false, fmt.Errorf("cannot read an event of the guest: %w: %.200q", err, lines.Text())
		}
		on(e)
		done = done || e.Kind == job.Done
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		return false, fmt.Errorf("cannot read the guest's events: %w", err)
	}
	return done, nil
}

func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(b), "\r", "")), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-n):], "\n    ")
}
