package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sampleEvery is how often the host is looked at.
const sampleEvery = 5 * time.Second

// inotifyWanted is how many inotify instances root is to get at any time.
const inotifyWanted = 16

// gauge is the least and the most that was seen of something.
type gauge struct {
	Name  string `json:"name"`
	First int64  `json:"first"`
	Min   int64  `json:"min"`
	Max   int64  `json:"max"`
}

// monitor looks at what all programs of the host share.
type monitor struct {
	sources []source
	mu      sync.Mutex
	seen    []gauge
}

type source struct {
	name string
	read func() (int64, error)
}

func newMonitor(h *host) *monitor {
	return &monitor{sources: []source{
		{"memory available, MiB", func() (int64, error) { n, err := field("/proc/meminfo", "MemAvailable:", 1); return n >> 10, err }},
		{"memory of the daemon, MiB", func() (int64, error) { return resident(h.daemon.Load()) }},
		{"memory of the broker, MiB", func() (int64, error) { return resident(h.broker.Load()) }},
		{"terminals", func() (int64, error) { return field("/proc/sys/kernel/pty/nr", "", 0) }},
		{fmt.Sprint("inotify instances that root gets, of ", inotifyWanted), inotify},
		{"signals and timers counted for root", func() (int64, error) { return field("/proc/self/status", "SigQ:", 1) }},
		{"processes and threads", func() (int64, error) { return field("/proc/loadavg", "", 3) }},
		{"open files of the host", func() (int64, error) { return field("/proc/sys/fs/file-nr", "", 0) }},
		{"asynchronous writes", func() (int64, error) { return field("/proc/sys/fs/aio-nr", "", 0) }},
		{"disk free, MiB", func() (int64, error) { return free(h.dir) }},
		{"record, MiB", func() (int64, error) { return sizeOf(h.data+"/daemon/audit") >> 20, nil }},
		{"logs, MiB", func() (int64, error) { return sizeOf(h.data+"/log") >> 20, nil }},
		{"archives, MiB", func() (int64, error) { return sizeOf(h.data+"/daemon/archives") >> 20, nil }},
		{"daemon's directory, MiB", func() (int64, error) { return sizeOf(h.data+"/daemon") >> 20, nil }},
	}}
}

// run samples until ctx ends.
func (m *monitor) run(ctx context.Context) {
	for {
		m.sample()
		if !pause(ctx, sampleEvery) {
			return
		}
	}
}

func (m *monitor) sample() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range m.sources {
		n, err := s.read()
		if err != nil {
			n = -1 // as of a process that was just killed
		}
		if len(m.seen) == i {
			m.seen = append(m.seen, gauge{s.name, n, n, n})
		}
		if g := &m.seen[i]; n >= 0 {
			g.Min, g.Max = min(g.Min, n), max(g.Max, n)
		}
	}
}

func (m *monitor) gauges() []gauge {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// field is a number of the first line of a file that begins with a word. What follows a slash,
// or comes before one in "running/all", is not part of it.
func field(file, begins string, index int) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, begins) || len(words) <= index {
			continue
		}
		before, after, _ := strings.Cut(words[index], "/")
		if begins == "" && after != "" {
			before = after
		}
		return strconv.ParseInt(before, 10, 64)
	}
	return 0, fmt.Errorf("%s has no %s", file, begins)
}

func resident(pid int64) (int64, error) {
	n, err := field(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:", 1)
	return n >> 10, err
}

// inotify makes instances as root and gives them back.
func inotify() (n int64, err error) {
	for ; n < inotifyWanted; n++ {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			return n, err
		}
		defer unix.Close(fd)
	}
	return n, nil
}

func free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize >> 20, nil
}
