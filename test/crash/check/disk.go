package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// images looks at what lies in images.
func (v *view) images(context.Context) error {
	dir := filepath.Join(v.in.Data, "images")
	all, err := names(dir)
	if err != nil {
		return err
	}
	for _, file := range all {
		name, ok := strings.CutSuffix(file, ".img")
		switch {
		case strings.HasSuffix(file, ".new"):
			v.found(Temporary, "%s/%s", dir, file)
		case !ok || !v.live(name) || v.ledger[name].Limits.DiskBytes == 0:
			v.found(Image, "%s/%s", dir, file)
		}
	}
	for _, name := range v.want.Live {
		if e := v.ledger[name]; e.Limits.DiskBytes > 0 {
			var st unix.Stat_t
			path := filepath.Join(dir, name+".img")
			if err := unix.Lstat(path, &st); err != nil || st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 || st.Gid != e.IDs.Executor {
				v.found(Lost, "%s is no image of %s", path, name)
			}
		}
	}
	return nil
}

// devices looks at what loop devices are attached to.
func (v *view) devices(context.Context) error {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("cannot list the loop devices: %w", err)
	}
	var attached []string
	for _, f := range all {
		b, _ := os.ReadFile(f) // it may have been detached
		path := strings.TrimSuffix(string(b), "\n")
		if !strings.HasPrefix(path, v.in.Data+"/") {
			continue
		}
		// The kernel adds " (deleted)" to a file that has been removed.
		name, ok := strings.CutSuffix(filepath.Base(path), ".img")
		if !ok || !v.runs(name) || path != filepath.Join(v.in.Data, "images", name+".img") || slices.Contains(attached, name) {
			v.found(Device, "%s on %s", strings.Split(f, "/")[3], path)
		}
		attached = append(attached, name)
	}
	for _, name := range v.want.Live {
		if v.runs(name) && v.ledger[name].Limits.DiskBytes > 0 && !slices.Contains(attached, name) {
			v.found(Lost, "%s is %s and its image is on no device", name, v.ledger[name].State)
		}
	}
	return nil
}
