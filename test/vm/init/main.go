// Command init is PID 1 of the guest that test/vm boots. It makes the guest look like
// a small Debian host, runs the jobs of its plan one after the other, reports each, and
// powers off. A guest with systemd is handed over to that, which runs it again for the jobs.
//
// It must not judge: it reports what happened, and the host side says what that means.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/vm/job"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "-jobs":
		err = underSystemd()
	case os.Getpid() == 1:
		err = run()
	default:
		fmt.Fprintln(os.Stderr, "init: cannot run: this is PID 1 of a test guest and nothing else; run go run ./test/vm")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err) // to the console, which the host logs
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// Without a way to power off, a restart ends a machine started with -no-reboot.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// run goes from the initramfs to the last job. Order: the modules give the disk and the
// port; the disk is the root; the file systems come before the port, which is found in
// /sys.
func run() error {
	plan, err := readPlan("/plan.json")
	if err != nil {
		return err
	}
	self, err := os.ReadFile("/init")
	if err != nil {
		return err
	}
	for _, m := range plan.Modules {
		if err := load("/modules/" + m); err != nil {
			return err
		}
	}
	if err := enterRoot(); err != nil {
		return err
	}
	if plan.Cgroup == job.Systemd {
		text, err := json.Marshal(plan)
		if err != nil {
			return err
		}
		return handOver(self, text)
	}
	if err := mountAll(plan.Cgroup); err != nil {
		return err
	}
	if err := settle(); err != nil {
		return err
	}
	return report(plan, func(r *reporter) func(job.Job) { return newRunner(r).run })
}

// report runs each job of a plan and sends what happens through the port.
func report(plan job.Plan, runner func(*reporter) func(job.Job)) error {
	port, err := openPort()
	if err != nil {
		return err
	}
	defer port.Close()
	r := &reporter{to: json.NewEncoder(port)}
	r.send(job.Event{Kind: job.Boot, Text: describe(plan.Cgroup)})
	run := runner(r)
	for _, j := range plan.Jobs {
		run(j)
	}
	r.send(job.Event{Kind: job.Done})
	return nil
}

// reporter writes events from several goroutines.
type reporter struct {
	mu sync.Mutex
	to *json.Encoder
}

func (r *reporter) send(e job.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.to.Encode(e); err != nil {
		fmt.Fprintln(os.Stderr, "init: cannot report:", err)
	}
}

// openPort finds the virtio port by its name: its number depends on the machine.
func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err == nil && strings.TrimSpace(string(b)) == job.Port {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_WRONLY, 0)
		}
	}
	return nil, fmt.Errorf("cannot find the port %s among %v", job.Port, names)
}

// describe says what was booted, for the log.
func describe(l job.Layout) string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info)
	text := fmt.Sprintf("Linux %s, %d MiB, cgroup %s", unix.ByteSliceToString(u.Release[:]), info.Totalram>>20, l)
	file := "/sys/fs/cgroup/cgroup.subtree_control"
	if l == job.V1 {
		file = "/proc/cgroups"
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return text + ": " + err.Error()
	}
	if l != job.V1 {
		return text + " handing down " + strings.TrimSpace(string(b))
	}
	var have []string
	for line := range strings.Lines(string(b)) {
		// #subsys_name hierarchy num_cgroups enabled
		if f := strings.Fields(line); len(f) == 4 && f[1] != "0" && f[0][0] != '#' {
			have = append(have, f[0])
		}
	}
	return text + " with " + strings.Join(have, " ")
}
