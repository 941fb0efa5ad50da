package asking

import "github.com/carrel-dev/carrel/internal/approval"

// Admitter admits questions that may wait, from none on.
func Admitter() func(*approval.Approval, int64) error {
	w := newWaiting()
	return func(a *approval.Approval, size int64) error {
		_, err := w.admit(a, size)
		return err
	}
}
