package staged

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Choice says which changes are made.
type Choice struct {
	// All are all changes but those that are refused and the links that lead out.
	All bool
	// Paths choose the changes of these paths and of all that is below them. A link that leads out must be named itself.
	Paths []string
	// But, if set, says why a change that is chosen so is not made after all, "" if it is.
	But func(path string) (why string)
}

// Refusal is a change that was not made.
type Refusal struct{ Path, Why string }

// chooser decides about each change.
type chooser struct {
	all    []Change
	choice Choice
	named  map[string]bool
	at     map[string]int // the index of each path
	chosen []bool
	why    map[int]string
}

// choose returns which changes are made and which of the chosen ones are refused. A directory that is made for something that
// is chosen is chosen too. One that is removed while something in it stays is refused with all that is in it.
func choose(all []Change, choice Choice) (chosen []bool, refused []Refusal, err error) {
	c := &chooser{all, choice, map[string]bool{}, map[string]int{}, make([]bool, len(all)), map[int]string{}}
	for _, p := range choice.Paths {
		c.named[p] = true
	}
	for i := range all {
		c.at[all[i].Path] = i
	}
	if err := c.known(); err != nil {
		return nil, nil, err
	}
	for i := range all {
		if c.wants(all[i].Path) {
			if err := c.consider(i); err != nil {
				return nil, nil, err
			}
		}
	}
	c.above()
	c.keepFull()
	for i := range all {
		if why := c.why[i]; why != "" {
			refused = append(refused, Refusal{all[i].Path, why})
		}
	}
	return c.chosen, refused, nil
}

// known checks that each path that is named chooses something.
func (c *chooser) known() error {
	used := map[string]bool{}
	for i := range c.all {
		for p := c.all[i].Path; p != ""; p, _ = split(p) {
			used[p] = true
		}
	}
	for _, p := range c.choice.Paths {
		if !used[p] {
			return fmt.Errorf("cannot choose %q: the run did not change it; list the changes: %w", p, errdefs.ErrNotFound)
		}
	}
	return nil
}

// wants reports whether a path is chosen, by itself or by a directory that it is in.
func (c *chooser) wants(path string) bool {
	for p := path; p != "" && !c.choice.All; p, _ = split(p) {
		if c.named[p] {
			return true
		}
	}
	return c.choice.All
}

// consider chooses a change or refuses it. One that is named itself and refused is an error.
func (c *chooser) consider(i int) error {
	ch := &c.all[i]
	why := ch.Refused
	if why == "" && ch.LeadsOut && !c.named[ch.Path] {
		why = "the link leads out of the directory, or may; name it to have it made"
	}
	if why != "" && c.named[ch.Path] {
		return fmt.Errorf("cannot make the change of %q: %s; leave it out: %w", ch.Path, why, errdefs.ErrPermissionDenied)
	}
	if why == "" && c.choice.But != nil {
		why = c.choice.But(ch.Path)
	}
	c.chosen[i] = why == ""
	if why != "" {
		c.why[i] = why
	}
	return nil
}

// makesDir reports whether a change makes a directory.
func (ch *Change) makesDir() bool { return ch.New.Type == Dir && ch.Old.Type != Dir }

// removesDir reports whether a change removes a directory.
func (ch *Change) removesDir() bool { return ch.Old.Type == Dir && ch.New.Type != Dir }

// above chooses the directories that what is chosen needs. What needs one that is refused is refused.
func (c *chooser) above() {
	for i := range c.all {
		if !c.chosen[i] {
			continue
		}
		for p, _ := split(c.all[i].Path); p != ""; p, _ = split(p) {
			at, ok := c.at[p]
			if !ok || !c.all[at].makesDir() || c.chosen[at] {
				continue
			}
			if why := c.all[at].Refused; why != "" {
				c.refuse(i, "the directory that it is in is not made: "+why)
				break
			}
			c.chosen[at] = true
		}
	}
}

func (c *chooser) refuse(i int, why string) { c.chosen[i], c.why[i] = false, why }

// keepFull refuses to remove a directory in which something stays.
func (c *chooser) keepFull() {
	stays := map[string]string{} // by directory, something that stays in it
	for i := len(c.all) - 1; i >= 0; i-- {
		ch := &c.all[i]
		if what := stays[ch.Path]; what != "" && c.chosen[i] && ch.removesDir() {
			why := fmt.Sprintf("it is not removed, since %q in it stays", what)
			c.refuse(i, why)
			for j := i + 1; j < len(c.all) && isBelow(c.all[j].Path, ch.Path); j++ {
				if c.chosen[j] {
					c.refuse(j, fmt.Sprintf("the directory that it is in stays with %q", what))
				}
			}
		}
		if !c.chosen[i] && ch.Old.Type != Absent && ch.New.Type == Absent {
			for p, _ := split(ch.Path); p != "" && stays[p] == ""; p, _ = split(p) {
				stays[p] = ch.Path
			}
		}
	}
}
