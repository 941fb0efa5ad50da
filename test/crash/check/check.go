// Package check says what an instance of carrel has left on the host that it should not
// have, and what it has lost. It is what the crash tests decide by, and it looks for
// itself: at /etc, /proc, /sys and the instance's files, through none of the code that
// made them.
//
// It must not change anything.
package check

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kind is what was found out of place.
type Kind string

// The kinds.
const (
	User      Kind = "user"      // a line of passwd or shadow
	Group     Kind = "group"     // a line of group or gshadow
	Lock      Kind = "lock"      // a lock or unfinished copy of the user database, of a process that has ended
	Account   Kind = "account"   // what up makes for the daemon, with no instance there
	Home      Kind = "home"      // below homes/
	Retained  Kind = "retained"  // below retained/, of no destroyed workspace
	Tmp       Kind = "tmp"       // below tmp/
	Image     Kind = "image"     // below images/
	Device    Kind = "device"    // a loop device on a file of the instance
	Cgroup    Kind = "cgroup"    // a control group in any hierarchy
	Mount     Kind = "mount"     // a mount below the instance's directories
	Namespace Kind = "namespace" // a process in a user namespace that maps ids of the range
	Process   Kind = "process"   // a process with an id of the range
	Socket    Kind = "socket"    // an executor's socket
	Temporary Kind = "temporary" // a file half-written, or a proof of what does not run
	Lost      Kind = "lost"      // database, ledger and host do not agree that a workspace is there
	Audit     Kind = "audit"     // the record does not hold, or has an intent without outcome
	Twice     Kind = "twice"     // a command ran twice
	Directory Kind = "directory" // what up made is there though the instance is gone
)

// Kinds are all kinds.
var Kinds = []Kind{
	User, Group, Lock, Account, Home, Retained, Tmp, Image, Device, Cgroup, Mount, Namespace, Process, Socket, Temporary, Lost, Audit, Twice,
	Directory,
}

// Left is one thing out of place.
type Left struct {
	Kind Kind
	What string
}

func (l Left) String() string { return string(l.Kind) + ": " + l.What }

// Instance is where to look.
type Instance struct {
	Data, Runtime string
	// Cgroup is the name of the instance's group in every hierarchy.
	Cgroup string
	// First and IDs are the range of ids.
	First, IDs uint32
	// Prefixes begin the workspaces' names.
	Prefixes []string
	// Settle is the time from the first look to the last: what a first look finds and a later
	// one does not was on its way out and never left. 0 is 900 ms.
	Settle time.Duration
	// Before is what was out of place before the instance was there.
	Before []Left
	// Except are kinds that are not looked for.
	Except []Kind
}

// Read learns of an instance from its broker's settings.
func Read(data string, prefixes ...string) (Instance, error) {
	var s struct {
		DataDir    string `json:"data_dir"`
		RuntimeDir string `json:"runtime_dir"`
		UIDFirst   uint32 `json:"uid_first"`
		UIDCount   uint32 `json:"uid_count"`
		CgroupName string `json:"cgroup_name"`
	}
	b, err := os.ReadFile(filepath.Join(data, "broker.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return Instance{}, fmt.Errorf("cannot read the instance's settings: %w", err)
	}
	return Instance{Data: s.DataDir, Runtime: s.RuntimeDir, Cgroup: s.CgroupName, First: s.UIDFirst, IDs: s.UIDCount, Prefixes: prefixes}, nil
}

// Expect is what should be there.
type Expect struct {
	// Live names the workspaces that should be there; what the ledger says of them says
	// which of them run. Nil is none.
	Live []string
	// Any takes those that the ledger has for those that should be there.
	Any bool
	// Gone: the instance was purged.
	Gone bool
	// Tokens are files to which every command appended a line of its own.
	Tokens []string
	// Retained are the paths of kept homes, as the API lists them: of the oldest destroyed workspaces the ledger knows nothing any more.
	Retained []string
}

// looks are the parts, in percent, of the time to settle that pass after each look. Most of what
// is on its way out goes within milliseconds.
var looks = []time.Duration{3, 10, 30, 57, 0}

// Look returns everything that is out of place, in order.
func (in Instance) Look(ctx context.Context, want Expect) ([]Left, error) {
	var left []Left
	settle := cmp.Or(in.Settle, 900*time.Millisecond)
	for try, share := range looks {
		now, err := in.look(ctx, want)
		if err != nil {
			return nil, err
		}
		now = slices.DeleteFunc(now, func(l Left) bool { return slices.Contains(in.Before, l) || slices.Contains(in.Except, l.Kind) })
		if try > 0 {
			now = slices.DeleteFunc(now, func(l Left) bool { return !slices.Contains(left, l) })
		}
		if left = now; len(left) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(settle * share / 100):
		}
	}
	slices.SortFunc(left, func(a, b Left) int { return strings.Compare(a.String(), b.String()) })
	return left, nil
}

// look is one look. What it is about to report is collected in a view.
func (in Instance) look(ctx context.Context, want Expect) ([]Left, error) {
	v := &view{in: in, want: want}
	ledger, err := in.ledger()
	if err != nil {
		return nil, err
	}
	v.ledger = ledger
	if v.foreign, v.strange, err = in.others(); err != nil {
		return nil, err
	}
	if want.Any {
		for name, e := range ledger {
			if e.State != destroyed {
				v.want.Live = append(v.want.Live, name)
			}
		}
	}
	for _, look := range []func(context.Context) error{
		v.users, v.locks, v.account, v.homes, v.images, v.devices, v.groups, v.processes, v.mounts, v.files, v.lost, v.audit, v.twice,
		v.directories,
	} {
		if err := look(ctx); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(v.left, func(a, b Left) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(v.left), nil
}

type view struct {
	in     Instance
	want   Expect
	ledger map[string]entry
	// foreign are ids of workspaces of other instances, whose range may be the same.
	foreign map[uint64]bool
	// strange are their names.
	strange map[string]bool
	left    []Left
}

func (v *view) found(k Kind, format string, a ...any) {
	v.left = append(v.left, Left{k, fmt.Sprintf(format, a...)})
}

func (v *view) live(name string) bool { return slices.Contains(v.want.Live, name) }

// runs reports whether a workspace should have an executor.
func (v *view) runs(name string) bool {
	s := v.ledger[name].State
	return v.live(name) && (s == "running" || s == "paused")
}

// mine reports whether id is in the range; owner names the workspace that should be
// there with it.
func (v *view) mine(id uint64) bool {
	return id >= uint64(v.in.First) && id < uint64(v.in.First)+uint64(v.in.IDs) && !v.foreign[id]
}

func (v *view) owner(id uint64) string {
	for _, name := range v.want.Live {
		if first := uint64(v.ledger[name].IDs.Executor); first != 0 && id >= first && id < first+3 {
			return name
		}
	}
	return ""
}

// named reports whether a name has the form of one of the instance's workspaces.
func (v *view) named(name string) bool {
	return slices.ContainsFunc(v.in.Prefixes, func(p string) bool { return strings.HasPrefix(name, p+"-") })
}

// names lists a directory; one that is not there is empty.
func names(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look into %s: %w", dir, err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return all, nil
}
