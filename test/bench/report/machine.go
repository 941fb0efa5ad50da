package report

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where a run took place.
type Machine struct {
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memory_mib"`
	OS        string `json:"os"`
	Kernel    string `json:"kernel"`
	// Cgroup is v1, hybrid or v2.
	Cgroup string `json:"cgroup"`
	// FileSystem of the data directory, as statfs numbers it.
	FileSystem string `json:"file_system"`
	Go         string `json:"go"`
	// Idle is the share of processor time that nobody used just before one of the
	// figures, the least of them: 1 is a quiet machine. LoadBefore and LoadAfter are the
	// load averages of a minute; the second one holds the run itself.
	Idle       float64 `json:"idle"`
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

func (m Machine) String() string {
	return fmt.Sprintf("%s × %d, %d MiB, %s, Linux %s, cgroup %s, %s, %s; %.0f %% idle",
		m.CPU, m.CPUs, m.MemoryMiB, m.OS, m.Kernel, m.Cgroup, m.FileSystem, m.Go, 100*m.Idle)
}

// Label names the kind of machine in a file name.
func (m Machine) Label() string {
	s := fmt.Sprintf("%s-%dcpu", m.CPU, m.CPUs)
	s = strings.NewReplacer("(R)", "", "(r)", "", "(TM)", "", "@", "").Replace(s)
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, strings.Join(strings.Fields(s), "-")), "-")
}

// quiet is the share of idle time from which on a verdict can be trusted.
const quiet = 0.9

// Quiet says whether nobody else used the machine to speak of.
func (m Machine) Quiet() bool { return m.Idle >= quiet }

// ThisMachine looks at the machine. dir is where data will be.
func ThisMachine(dir string) (Machine, error) {
	m := Machine{CPUs: runtime.NumCPU(), CPU: runtime.GOARCH, Cgroup: cgroups(), Go: runtime.Version()}
	if v := field("/proc/cpuinfo", "model name"); v != "" {
		m.CPU = v
	}
	kib, _, _ := strings.Cut(field("/proc/meminfo", "MemTotal"), " ")
	n, _ := strconv.ParseInt(kib, 10, 64) // 0 says that it is not known
	m.MemoryMiB = n >> 10
	m.OS = strings.Trim(fieldBy("/etc/os-release", "PRETTY_NAME", "="), `"`)
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("cannot ask for the kernel's release: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var err error
	if m.FileSystem, err = FileSystem(dir); err != nil {
		return m, err
	}
	m.LoadBefore = Load()
	m.Idle = Idle(time.Second)
	return m, nil
}

// Idle watches the processors for d and returns the share of time that nobody used.
func Idle(d time.Duration) float64 {
	idle, total := ticks()
	time.Sleep(d)
	idle2, total2 := ticks()
	if total2 <= total {
		return 0
	}
	return float64(idle2-idle) / float64(total2-total)
}

// FileSystem names the file system of dir. "tmpfs" means that nothing there is durable.
func FileSystem(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("cannot look at the file system of %s: %w", dir, err)
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.XFS_SUPER_MAGIC: "xfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
	}
	if n := names[int64(s.Type)]; n != "" {
		return n, nil
	}
	return fmt.Sprintf("%#x", s.Type), nil
}

// Load is the load average of the last minute.
func Load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

func cgroups() string {
	var s unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v2"
	}
	if unix.Statfs("/sys/fs/cgroup/unified", &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
		return "hybrid"
	}
	return "v1"
}

func field(path, name string) string { return fieldBy(path, name, ":") }

// fieldBy is the value of the first line of path that has name before sep.
func fieldBy(path, name, sep string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), sep); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// ticks reads how long the processors idled and existed, in clock ticks: fields 4 and 5,
// and 1 to 8, of the line "cpu" (proc_stat(5)).
func ticks() (idle, total int64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, s := range strings.Fields(line) {
		if i == 0 || i > 8 {
			continue
		}
		v, _ := strconv.ParseInt(s, 10, 64)
		total += v
		if i == 4 || i == 5 {
			idle += v
		}
	}
	return idle, total
}
