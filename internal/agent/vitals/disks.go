package vitals

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxDisks bounds the file systems that are looked at, and maxNamed those that are named.
	maxDisks, maxNamed = 64, 4
)

// kinds are the kinds of file systems that fill up on this machine. A server of files may not answer, and is not asked.
var kinds = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "reiserfs", "overlay", "vfat"}

// disk is a file system.
type disk struct {
	place string
	// used and inodes are in percent.
	used, inodes float64
}

// asking bounds the questions to file systems that are not answered: each holds a thread, also when nobody waits for it any more.
var asking = make(chan struct{}, 4)

// disks are the file systems that can be written, each once.
func (s Source) disks(ctx context.Context) (all []*disk, err error) {
	mounts, err := s.read("self/mountinfo")
	if err != nil {
		return nil, err
	}
	places := placesOf(mounts)
	select {
	case asking <- struct{}{}:
	case <-ctx.Done():
		return nil, errors.New("the file systems do not answer")
	}
	answer := make(chan []*disk, 1)
	go func() {
		defer func() { <-asking }()
		var all []*disk
		for _, p := range places {
			var fs unix.Statfs_t
			if ctx.Err() != nil {
				return
			}
			if s.Statfs(p, &fs) == nil && fs.Blocks > 0 {
				all = append(all, diskOf(p, &fs))
			}
		}
		answer <- all
	}()
	select {
	case all = <-answer:
	case <-ctx.Done():
		return nil, errors.New("a file system does not answer")
	}
	if len(all) == 0 {
		return nil, errors.New("there is no file system of a kind that is measured")
	}
	return all, nil
}

// diskOf counts as df does: what only root may use counts as neither used nor free.
func diskOf(place string, fs *unix.Statfs_t) *disk {
	d := &disk{place: place}
	if used := float64(fs.Blocks - min(fs.Bfree, fs.Blocks)); used+float64(fs.Bavail) > 0 {
		d.used = 100 * used / (used + float64(fs.Bavail))
	}
	if fs.Files > 0 { // some kinds have no table of inodes
		d.inodes = 100 * float64(fs.Files-min(fs.Ffree, fs.Files)) / float64(fs.Files)
	}
	return d
}

// placesOf are the places of file systems in mountinfo (proc_pid_mountinfo(5)), each by its first one, without those that cannot be
// written.
func placesOf(mountinfo string) (places []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		own, of, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, kind := strings.Fields(own), strings.Fields(of)
		if !ok || len(f) < 6 || len(kind) < 3 || seen[f[2]] || len(places) == maxDisks {
			continue
		}
		readOnly := slices.Contains(strings.Split(f[5], ","), "ro") || slices.Contains(strings.Split(kind[2], ","), "ro")
		if !slices.Contains(kinds, kind[0]) || readOnly {
			continue
		}
		seen[f[2]] = true
		places = append(places, unescaped(f[4]))
	}
	return places
}

// unescaped is a path of mountinfo, which has blanks and backslashes in octal.
func unescaped(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

var plainPlace = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/[A-Za-z0-9/._+@-]{0,100}$`) })

// name is the place as it is told. Whoever mounts chooses it, so one of another form than most is not repeated.
func (d *disk) name() string {
	if plainPlace().MatchString(d.place) {
		return d.place
	}
	return "a file system with an unusual name"
}

// fullest says how full those file systems are that are over a threshold, or the one that is fullest.
func fullest(all []*disk, most float64, of func(*disk) float64) (text string, over bool) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *disk) int {
		switch {
		case of(a) > of(b):
			return -1
		case of(a) < of(b):
			return 1
		}
		return strings.Compare(a.place, b.place)
	})
	var parts []string
	for i, d := range sorted {
		if i > 0 && (of(d) <= most || i == maxNamed) {
			break
		}
		over = over || of(d) > most
		parts = append(parts, fmt.Sprintf("%.1f%% of %s", of(d), d.name()))
	}
	return strings.Join(parts, " and "), over
}
