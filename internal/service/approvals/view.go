package approvals

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// view is what people see of the questions that can still be answered, so that looking at them takes
// neither the database nor a decoder, however many look. The store is the truth: the view is read from it at a start, and
// changes after it has, under one lock. Everything is found by who may see it, so that nobody's look reads
// the questions of others.
type view struct {
	mu sync.Mutex
	// open are the open questions by name, and by whose they are: of who asked, of whom the workspace belongs
	// to, and of all, which is "". Lists are the oldest first.
	open map[id.Approval]*question
	of   map[string][]*question
	// recent are the newest of those that were open, for who is just being told of their end; ends has their
	// names in order, and ended is what they take.
	recent map[id.Approval]*question
	ends   []id.Approval
	ended  int64
	// held is what is held of open questions, of each owner and of all, which is "".
	held     map[string]int64
	watchers map[string]map[*watcher]struct{}
}

// What is held in memory. What a question says that is longer, or beyond these, is read from the store when
// somebody looks.
const (
	maxHeldOfOne   = 32 << 10
	maxHeldOfOwner = 16 << 20
	maxHeld        = 64 << 20
	maxRecent      = 4 << 20
	maxRecentNames = 1024
	// heldBeside is about what a question takes beside its texts.
	heldBeside = 1 << 10
	// maxBehind is how many changes those who watch may be behind. Beyond that they get all that is open anew.
	maxBehind = 1024
)

// question is a question in the view. It is never changed: another takes its place.
type question struct {
	name      id.Approval
	asked     int64 // Unix nanoseconds, as until
	until     int64
	requester string
	owner     string // of the workspace
	workspace id.Workspace
	key       id.Key // of the workspace, when it was asked
	from      string // whose question it is
	size      int64
	view      *approval.View // nil if it is not held
}

func questionIn(v *approval.View, size int64) *question {
	return &question{
		name: v.ID, asked: v.AskedAt.UnixNano(), until: v.Until.UnixNano(), requester: v.Subject.By, owner: v.Question.Owner,
		workspace: v.Subject.Workspace, key: v.Key, from: v.Approval.Owner, size: size + heldBeside, view: v,
	}
}

func newView() view {
	return view{
		open: map[id.Approval]*question{}, of: map[string][]*question{}, recent: map[id.Approval]*question{}, held: map[string]int64{},
		watchers: map[string]map[*watcher]struct{}{},
	}
}

// whose are under what names a question is found.
func (x *question) whose() []string {
	if x.requester == x.owner {
		return []string{"", x.owner}
	}
	return []string{"", x.owner, x.requester}
}

// seenBy are under what names those are found that p may see; Reaches decides of each.
func seenBy(p principal.Principal) []string {
	switch {
	case p.Can(principal.Any):
		return []string{""}
	case p.String() == p.Owner():
		return []string{p.Owner()}
	}
	return []string{p.Owner(), p.String()}
}

// compare orders questions by age.
func (x *question) compare(asked int64, name id.Approval) int {
	return cmp.Or(cmp.Compare(x.asked, asked), strings.Compare(string(x.name), string(name)))
}

// place is where a question is, or belongs, in a list.
func place(list []*question, asked int64, name id.Approval) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(x *question, name id.Approval) int { return x.compare(asked, name) })
}

// put shows a question as it is now. Those who watch are told; a start has none.
func (v *view) put(x *question) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(x.name)
	if x.view.State == approval.Pending {
		v.add(x)
	} else {
		v.remember(x)
	}
	for _, name := range x.whose() {
		for w := range v.watchers[name] {
			w.tell(x.name)
		}
	}
}

// add and remove change what is open. v.mu is held.
func (v *view) add(x *question) {
	if x.size > maxHeldOfOne || v.held[x.from]+x.size > maxHeldOfOwner || v.held[""]+x.size > maxHeld {
		x.size, x.view = 0, nil
	}
	v.hold(x.from, x.size)
	v.hold("", x.size)
	v.open[x.name] = x
	for _, name := range x.whose() {
		i, _ := place(v.of[name], x.asked, x.name)
		v.of[name] = slices.Insert(v.of[name], i, x)
	}
}

func (v *view) remove(name id.Approval) {
	x := v.open[name]
	if x == nil {
		return
	}
	delete(v.open, name)
	v.hold(x.from, -x.size)
	v.hold("", -x.size)
	for _, name := range x.whose() {
		list := v.of[name]
		if i, there := place(list, x.asked, x.name); there {
			list = slices.Delete(list, i, i+1)
		}
		if v.of[name] = list; len(list) == 0 {
			delete(v.of, name)
		}
	}
}

func (v *view) hold(whose string, size int64) {
	if v.held[whose] += size; v.held[whose] == 0 {
		delete(v.held, whose)
	}
}

// remember keeps a question that is over, in the place of the oldest such. v.mu is held.
func (v *view) remember(x *question) {
	if x.size > maxHeldOfOne {
		x.size, x.view = 0, nil
	}
	if was := v.recent[x.name]; was != nil {
		v.ended -= was.size
	} else {
		v.ends = append(v.ends, x.name)
	}
	v.recent[x.name] = x
	v.ended += x.size
	for len(v.ends) > maxRecentNames || v.ended > maxRecent {
		v.ended -= v.recent[v.ends[0]].size
		delete(v.recent, v.ends[0])
		v.ends = slices.Delete(v.ends, 0, 1)
	}
}

// find returns a question that is open, or was a moment ago; nil if the store is to be asked.
func (v *view) find(name id.Approval) *question {
	v.mu.Lock()
	defer v.mu.Unlock()
	if x := v.open[name]; x != nil {
		return x
	}
	return v.recent[name]
}

// page returns up to so many open questions that p may see, the newest first, older than the one with which the
// page before ended, and that a filter chooses.
func (v *view) page(p principal.Principal, f store.ApprovalFilter, limit int) (list []*question, err error) {
	asked, after := int64(0), id.Approval("")
	if f.After != "" {
		if asked, after, err = store.ParseMark(f.After); err != nil {
			return nil, err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := f.Now.UnixNano()
	for _, name := range seenBy(p) {
		all := v.of[name]
		if f.After != "" {
			i, _ := place(all, asked, after)
			all = all[:i]
		}
		n := 0
		for _, x := range slices.Backward(all) {
			if n == limit {
				break
			}
			if f.Workspace != "" && x.workspace != f.Workspace || f.Requester != "" && x.requester != f.Requester || x.until <= now {
				continue
			}
			list = append(list, x)
			n++
		}
	}
	slices.SortFunc(list, func(a, b *question) int { return b.compare(a.asked, a.name) })
	list = slices.Compact(list) // what is there under two names
	return list[:min(limit, len(list))], nil
}

// names returns the open questions that p may see, the oldest first.
func (v *view) names(p principal.Principal) (all []id.Approval) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []*question
	for _, name := range seenBy(p) {
		list = append(list, v.of[name]...)
	}
	slices.SortFunc(list, func(a, b *question) int { return a.compare(b.asked, b.name) })
	for _, x := range slices.Compact(list) {
		all = append(all, x.name)
	}
	return all
}

// watcher is somebody who is told which questions have changed.
type watcher struct {
	names   []string
	changed []id.Approval
	behind  map[id.Approval]struct{} // the same
	lost    bool
	more    chan struct{}
}

// watch has p told from now on, until leave is called.
func (v *view) watch(p principal.Principal) (w *watcher, leave func()) {
	w = &watcher{names: seenBy(p), behind: map[id.Approval]struct{}{}, more: make(chan struct{}, 1)}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range w.names {
		if v.watchers[name] == nil {
			v.watchers[name] = map[*watcher]struct{}{}
		}
		v.watchers[name][w] = struct{}{}
	}
	return w, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, name := range w.names {
			if delete(v.watchers[name], w); len(v.watchers[name]) == 0 {
				delete(v.watchers, name)
			}
		}
	}
}

// tell notes a change. The lock of the view is held.
func (w *watcher) tell(name id.Approval) {
	if _, known := w.behind[name]; known || w.lost {
		return
	}
	if len(w.changed) == maxBehind {
		w.changed, w.lost = nil, true
		clear(w.behind)
	} else {
		w.changed = append(w.changed, name)
		w.behind[name] = struct{}{}
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// news returns what changed since it was called last. lost says that more did than is kept.
func (v *view) news(w *watcher) (list []id.Approval, lost bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	list, lost = w.changed, w.lost
	w.changed, w.lost = nil, false
	clear(w.behind)
	return list, lost
}
