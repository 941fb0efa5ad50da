// Package fanout says in which order one step reaches several hosts: on how many at once, in which batches, and after how
// many failures no further host begins. The words are Ansible's: forks, serial, max_fail_percentage.
//
// It is pure: it runs nothing, and knows hosts by their place alone.
package fanout

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Bounds and defaults.
const (
	DefaultForks = 8
	MaxForks     = 100
	// MaxHosts bounds the numbers of hosts that Serial and MaxFailures name.
	MaxHosts = 4096
)

// Order is how a person wants steps to reach several hosts. The zero Order has one host go first and alone, then the others,
// eight at once.
type Order struct {
	// Forks is on how many hosts a step runs at once, up to MaxForks. 0 is DefaultForks.
	Forks int
	// Serial is how many hosts are one batch: a number as "5", a share of the step's hosts as "20%" rounded down to at least
	// one, or "" for all. A batch begins when the one before it has ended.
	Serial string
	// MaxFailures is how many hosts of a step may fail: a number, or a share of them as "10%" rounded down. Once more have, no
	// further host begins. With "" a host that fails has no further batch begin.
	MaxFailures string
	// NoCanary: no host goes first and alone.
	NoCanary bool
}

// Check says what is wrong with an order, as an invalid argument.
func (o Order) Check() error {
	if o.Forks < 0 || o.Forks > MaxForks {
		return fmt.Errorf("cannot use %d forks: give 1 to %d, or leave it out for %d: %w", o.Forks, MaxForks, DefaultForks,
			errdefs.ErrInvalidArgument)
	}
	if _, err := batchOf(o.Serial, 1); err != nil {
		return err
	}
	_, err := failures(o.MaxFailures, 1)
	return err
}

// batchOf is how many hosts of n a batch has.
func batchOf(serial string, n int) (int, error) {
	if serial == "" {
		return max(n, 1), nil
	}
	k, ok := share(serial, 1, n)
	if !ok {
		return 0, fmt.Errorf("cannot use serial %.40q: give a number of hosts from 1 to %d, or a share of them from 1%% to 100%%: %w", serial,
			MaxHosts, errdefs.ErrInvalidArgument)
	}
	return max(k, 1), nil
}

// failures is how many hosts of n may fail; -1 if nothing says so.
func failures(most string, n int) (int, error) {
	if most == "" {
		return -1, nil
	}
	k, ok := share(most, 0, n)
	if !ok {
		return 0, fmt.Errorf("cannot use max failures %.40q: give a number of hosts from 0 to %d, or a share of them from 0%% to 100%%: %w", most,
			MaxHosts, errdefs.ErrInvalidArgument)
	}
	return k, nil
}

// share reads a number of at least least, or a share of n. Of each value there is one way to write it.
func share(s string, least, n int) (int, bool) {
	digits, percent := strings.CutSuffix(s, "%")
	k, err := strconv.Atoi(digits)
	if err != nil || strconv.Itoa(k) != digits || k < least || k > MaxHosts || percent && k > 100 {
		return 0, false
	}
	if percent {
		k = n * k / 100
	}
	return k, true
}

// Way is how one step reaches its hosts.
type Way struct {
	hosts, forks, batch int
	// most is how many hosts may fail, anyNumber if nothing says so. ends: once one has, no further batch begins.
	most         int
	canary, ends bool
}

// anyNumber is more hosts than there are.
const anyNumber = math.MaxInt

// Of is the way of a step on so many hosts. The error is that of Check.
func (o Order) Of(hosts int) (w Way, err error) {
	if err := o.Check(); err != nil {
		return w, err
	}
	w = Way{hosts: hosts, forks: o.Forks, canary: !o.NoCanary && hosts > 1}
	if w.forks == 0 {
		w.forks = DefaultForks
	}
	if w.batch, err = batchOf(o.Serial, hosts); err != nil {
		return w, err
	}
	if w.most, err = failures(o.MaxFailures, hosts); w.most < 0 {
		w.most, w.ends = anyNumber, true
	}
	return w, err
}

// and is the way that is as strict as both, which are for the same hosts.
func (w Way) and(o Way) Way {
	w.forks, w.batch, w.most = min(w.forks, o.forks), min(w.batch, o.batch), min(w.most, o.most)
	w.canary, w.ends = w.canary || o.canary, w.ends || o.ends
	return w
}

// Forks is on how many hosts the step runs at once.
func (w Way) Forks() int { return w.forks }

// Next is the batch that begins at a host: those up to end, which is not in it. The canary is a batch of its own.
func (w Way) Next(from int) (end int) {
	if w.canary && from == 0 {
		return 1
	}
	return min(from+w.batch, w.hosts)
}

// Canary reports whether the first host is alone in its batch, and nothing else begins if it fails.
func (w Way) Canary() bool { return w.canary }

// Less is the way where some of the hosts are left out, because they have failed before.
func (w Way) Less(hosts int) Way {
	w.hosts = hosts
	return w
}

// Over reports whether no further host begins, once so many have failed. between: no host of the batch runs any more.
func (w Way) Over(failed int, between bool) bool {
	return failed > w.most || w.ends && failed > 0 && between
}

// Passed reports whether the step counts as done, once all have ended that were to begin, so many of them well.
func (w Way) Passed(failed, well int) bool {
	return failed == 0 || !w.ends && failed <= w.most && well > 0
}

// String is the way in words.
func (w Way) String() string {
	var parts []string
	rest := w.hosts
	if w.canary {
		parts, rest = append(parts, "the first host alone"), rest-1
	}
	if w.batch < rest {
		parts = append(parts, fmt.Sprintf("batches of %d, %d at once", w.batch, min(w.forks, w.batch)))
	} else {
		who := map[bool]string{true: "the others", false: "all hosts"}[w.canary]
		parts = append(parts, fmt.Sprintf("%s, %d at once", who, min(w.forks, rest)))
	}
	text := strings.Join(parts, ", then ")
	switch {
	case w.most == 0:
		return text + "; if one fails, no further host"
	case w.ends:
		text += "; if one fails, no further batch"
	}
	if w.most == anyNumber {
		return text
	}
	return text + fmt.Sprintf("; if more than %d fail, no further host", w.most)
}
