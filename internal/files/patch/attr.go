package patch

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Bounds of the extended attributes of a file, in bytes. A name list of Linux has 64 KiB at most, a value too.
const (
	maxAttrs = 64 << 10
	maxAttr  = 64 << 10
)

// capability is what gives a program rights of root's when it is run.
const capability = "security.capability"

// own reports whether the kernel keeps an attribute by itself: what it says is of one file and its content.
func own(name string) bool {
	return name == "security.ima" || name == "security.evm" || strings.HasPrefix(name, "btrfs.") ||
		strings.HasPrefix(name, "trusted.overlay.")
}

// attrs returns the extended attributes of an open file, among them its access list. A file system without any has none.
func attrs(fd int) (map[string][]byte, error) {
	// Most files have none, and need no memory for them.
	n, err := unix.Flistxattr(fd, nil)
	if err == nil && n == 0 {
		return nil, nil
	}
	names := make([]byte, maxAttrs)
	n, err = unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("its extended attributes cannot be listed: %w", err)
	}
	var all map[string][]byte
	total := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" || own(name) {
			continue
		}
		if name == capability {
			return nil, fmt.Errorf("it runs with capabilities: %w", errdefs.ErrPermissionDenied)
		}
		value := make([]byte, maxAttr)
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("its extended attribute %q cannot be read: %w", name, err)
		}
		if total += n; total > 1<<20 {
			return nil, fmt.Errorf("it has more than 1 MiB of extended attributes: %w", errdefs.ErrInvalidArgument)
		}
		if all == nil {
			all = map[string][]byte{}
		}
		all[name] = append([]byte{}, value[:n]...)
	}
	return all, nil
}

// setAttrs gives an open file these attributes and no others, as those that it has from its directory.
func setAttrs(fd int, want map[string][]byte) error {
	have, err := attrs(fd)
	if err != nil {
		return err
	}
	for name, value := range want {
		if h, ok := have[name]; ok && string(h) == string(value) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return fmt.Errorf("its extended attribute %q cannot be kept: %w", name, err)
		}
	}
	for name := range have {
		if _, ok := want[name]; ok || name == "security.selinux" {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil {
			return fmt.Errorf("the extended attribute %q cannot be removed: %w", name, err)
		}
	}
	return nil
}
