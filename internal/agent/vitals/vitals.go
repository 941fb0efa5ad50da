// Package vitals says whether this machine is over the thresholds that a person has set: load, memory, file systems and
// services that failed. It measures once, when it is asked, and keeps nothing.
//
// It only reads, waits for nothing beyond its context, and starts no program: how many services failed is said by its caller.
package vitals

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Thresholds are what a machine may have, at most or at least.
type Thresholds struct {
	// LoadPerProcessor is the most of the load of the last five minutes, divided by the processors.
	LoadPerProcessor float64 `yaml:"load_per_processor"`
	// MemoryAvailable is the least of the memory that can be had, in percent.
	MemoryAvailable float64 `yaml:"memory_available"`
	// DiskUsed and InodesUsed are the most of each file system, in percent.
	DiskUsed   float64 `yaml:"disk_used"`
	InodesUsed float64 `yaml:"inodes_used"`
	// FailedServices is how many may have failed.
	FailedServices float64 `yaml:"failed_services"`
}

// Default is what holds where nothing else is set.
func Default() Thresholds {
	return Thresholds{LoadPerProcessor: 2, MemoryAvailable: 10, DiskUsed: 90, InodesUsed: 90}
}

// Check says what is wrong with thresholds.
func (t Thresholds) Check() error {
	for _, x := range []struct {
		name              string
		value, least, top float64
	}{
		{"load_per_processor", t.LoadPerProcessor, 0.01, 1000},
		{"memory_available", t.MemoryAvailable, 0, 100},
		{"disk_used", t.DiskUsed, 1, 100},
		{"inodes_used", t.InodesUsed, 1, 100},
		{"failed_services", t.FailedServices, 0, 10_000},
	} {
		if !(x.value >= x.least && x.value <= x.top) { // a NaN is neither
			return fmt.Errorf("thresholds.%s is %v; give a number from %v to %v", x.name, x.value, x.least, x.top)
		}
	}
	if t.FailedServices != math.Trunc(t.FailedServices) {
		return fmt.Errorf("thresholds.failed_services is %v; give a whole number", t.FailedServices)
	}
	return nil
}

// Source is where the figures come from. Failed is how many services have failed. All are required.
type Source struct {
	// Proc is the directory of the kernel's figures, as /proc.
	Proc   string
	Statfs func(path string, into *unix.Statfs_t) error
	Failed func(ctx context.Context) (int, error)
}

// Reading is one figure.
type Reading struct {
	// Name is that of the threshold. Value is the figure and Limit the threshold, in words.
	Name, Value, Limit string
	Over               bool
	// Missing is why there is no figure, "" if there is one.
	Missing string
}

// String is the reading in words.
func (r Reading) String() string {
	switch {
	case r.Missing != "":
		return "not measured: " + r.Missing
	case r.Over:
		return "over: " + r.Value + ", " + r.Limit
	}
	return "ok: " + r.Value + ", " + r.Limit
}

// Over are the readings that are over their threshold, a line each.
func Over(all []Reading) (lines []string) {
	for _, r := range all {
		if r.Over {
			lines = append(lines, r.Name+" is "+r.Value+", "+r.Limit)
		}
	}
	return lines
}

// Measure measures everything, until ctx ends: what is not known then is missing.
func Measure(ctx context.Context, s Source, t Thresholds) []Reading {
	all := []Reading{
		reading("load_per_processor", fmt.Sprintf("at most %g", t.LoadPerProcessor), func() (string, bool, error) {
			load, err := s.load()
			return fmt.Sprintf("%.2f", load), load > t.LoadPerProcessor, err
		}),
		reading("memory_available", fmt.Sprintf("at least %g%%", t.MemoryAvailable), func() (string, bool, error) {
			m, err := s.memory()
			return fmt.Sprintf("%.1f%%", m), m < t.MemoryAvailable, err
		}),
	}
	disks, err := s.disks(ctx)
	for _, x := range []struct {
		name string
		most float64
		of   func(*disk) float64
	}{
		{"disk_used", t.DiskUsed, func(d *disk) float64 { return d.used }},
		{"inodes_used", t.InodesUsed, func(d *disk) float64 { return d.inodes }},
	} {
		all = append(all, reading(x.name, fmt.Sprintf("at most %g%%", x.most), func() (string, bool, error) {
			text, over := fullest(disks, x.most, x.of)
			return text, over, err
		}))
	}
	return append(all, reading("failed_services", fmt.Sprintf("at most %g", t.FailedServices), func() (string, bool, error) {
		n, err := s.Failed(ctx)
		return strconv.Itoa(n), float64(n) > t.FailedServices, err
	}))
}

func reading(name, limit string, measure func() (string, bool, error)) Reading {
	value, over, err := measure()
	if err != nil {
		return Reading{Name: name, Limit: limit, Missing: err.Error()}
	}
	return Reading{Name: name, Value: value, Limit: limit, Over: over}
}

func (s Source) read(name string) (string, error) {
	f, err := os.Open(filepath.Join(s.Proc, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4<<20))
	return string(b), err
}

// load is the load of the last five minutes for each processor that is there.
func (s Source) load() (float64, error) {
	loads, err := s.read("loadavg")
	if err != nil {
		return 0, err
	}
	stat, err := s.read("stat")
	if err != nil {
		return 0, err
	}
	processors := 0
	for line := range strings.Lines(stat) {
		if rest, ok := strings.CutPrefix(line, "cpu"); ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			processors++
		}
	}
	fields := strings.Fields(loads)
	if len(fields) < 2 || processors == 0 {
		return 0, errors.New("the kernel's figures are of another form")
	}
	load, err := strconv.ParseFloat(fields[1], 64)
	return load / float64(processors), err
}

// memory is how much of it can be had, in percent.
func (s Source) memory() (float64, error) {
	text, err := s.read("meminfo")
	if err != nil {
		return 0, err
	}
	of := map[string]float64{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 {
			if n, err := strconv.ParseFloat(f[1], 64); err == nil {
				of[f[0]] = n
			}
		}
	}
	available, known := of["MemAvailable:"]
	if !known || of["MemTotal:"] <= 0 {
		return 0, errors.New("the kernel does not say it")
	}
	return 100 * available / of["MemTotal:"], nil
}
