package removal

import "golang.org/x/sys/unix"

// WithoutOpenat2 has the kernel not know the call, as in a workspace without root.
func WithoutOpenat2() {
	openat2 = func(int, string, *unix.OpenHow) (int, error) { return -1, unix.ENOSYS }
}
