package approvals

import (
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Admitter admits questions that may wait, from none on.
func Admitter() func(*approval.Approval, int64) error {
	w := newWaiting()
	return func(a *approval.Approval, size int64) error {
		_, err := w.admit(a, size)
		return err
	}
}

// View is view.
type View struct{ v view }

// NewView returns a view of nothing.
func NewView() *View { return &View{newView()} }

// Put is view.put.
func (v *View) Put(x approval.View, size int64) { v.v.put(questionIn(&x, size)) }

// Page is view.page.
func (v *View) Page(p principal.Principal, f store.ApprovalFilter, limit int) (names []id.Approval, err error) {
	list, err := v.v.page(p, f, limit)
	for _, x := range list {
		names = append(names, x.name)
	}
	return names, err
}

// Names is view.names.
func (v *View) Names(p principal.Principal) []id.Approval { return v.v.names(p) }

// Find is view.find: whether it is there, and what is held of it.
func (v *View) Find(name id.Approval) (held *approval.View, there bool) {
	x := v.v.find(name)
	if x == nil {
		return nil, false
	}
	return x.view, true
}

// Held is how many bytes are held of open questions, and of those that are over.
func (v *View) Held() (open, over int64) {
	v.v.mu.Lock()
	defer v.v.mu.Unlock()
	return v.v.held[""], v.v.ended
}

// Empty reports whether nothing is left of what was open.
func (v *View) Empty() bool {
	v.v.mu.Lock()
	defer v.v.mu.Unlock()
	return len(v.v.open)+len(v.v.of)+len(v.v.held)+len(v.v.watchers) == 0
}

// Watch is view.watch: news returns what has changed, and whether there is any without waiting.
func (v *View) Watch(p principal.Principal) (news func() (names []id.Approval, lost, woken bool), leave func()) {
	w, leave := v.v.watch(p)
	return func() (names []id.Approval, lost, woken bool) {
		select {
		case <-w.more:
			woken = true
		default:
		}
		names, lost = v.v.news(w)
		return names, lost, woken
	}, leave
}
