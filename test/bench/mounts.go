package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unmountBelow unmounts what is mounted at dir or below it, the last first, as podman leaves
// its overlay mounted on itself. What is in use is taken out of the tree: its user keeps it.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range slices.Backward(mountsBelow(string(b), dir)) {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // gone with another
			errs = append(errs, fmt.Errorf("cannot unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// mountsBelow reads mountinfo, whose fifth field is where something is mounted (proc(5)).
func mountsBelow(mountinfo, dir string) (paths []string) {
	for line := range strings.Lines(mountinfo) {
		const at = 4
		fields := strings.Fields(line)
		if len(fields) <= at {
			continue
		}
		if path := unescape(fields[at]); path == dir || strings.HasPrefix(path, dir+"/") {
			paths = append(paths, path)
		}
	}
	return paths
}

// unescape undoes the three octal digits in which the kernel writes blanks and backslashes.
func unescape(s string) string {
	const digits = 3
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+digits < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+1+digits], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += digits
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
