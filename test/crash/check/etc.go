package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lines yields the fields of a file of the user database.
func lines(file string) ([][]string, error) {
	b, err := os.ReadFile("/etc/" + file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the users of this host: %w", err)
	}
	var all [][]string
	for line := range strings.Lines(string(b)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(f) > 1 {
			all = append(all, f)
		}
	}
	return all, nil
}

// others lists the ids and the names that workspaces of other instances have.
func (in Instance) others() (ids map[uint64]bool, names map[string]bool, err error) {
	all, err := lines("passwd")
	if err != nil {
		return nil, nil, err
	}
	ids, names = map[uint64]bool{}, map[string]bool{}
	for _, f := range all {
		if len(f) < 6 || f[4] != "carrel workspace" || strings.HasPrefix(f[5], in.Data+"/") {
			continue
		}
		names[f[0]] = true
		if uid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			ids[uid-1], ids[uid], ids[uid+1] = true, true, true
		}
	}
	return ids, names, nil
}

func (v *view) users(context.Context) error {
	for _, db := range []struct {
		file string
		kind Kind
		id   int // the field with the id, 0 for none
	}{{"passwd", User, 2}, {"shadow", User, 0}, {"group", Group, 2}, {"gshadow", Group, 0}, {"subuid", User, 0}, {"subgid", Group, 0}} {
		all, err := lines(db.file)
		if err != nil {
			if (db.file == "subuid" || db.file == "subgid") && errors.Is(err, os.ErrNotExist) {
				continue
			}
			return err
		}
		seen := map[string]bool{}
		for _, f := range all {
			ours := v.named(f[0])
			if db.id != 0 && len(f) > db.id {
				id, err := strconv.ParseUint(f[db.id], 10, 32)
				ours = ours || err == nil && v.mine(id)
			}
			if ours && (!v.live(f[0]) || strings.HasPrefix(db.file, "sub") || seen[f[0]]) {
				v.found(db.kind, "/etc/%s: %s", db.file, f[0])
			}
			seen[f[0]] = true
			if db.kind == Group && len(f) == 4 {
				for member := range strings.SplitSeq(f[3], ",") {
					if v.named(member) && !v.live(member) {
						v.found(db.kind, "/etc/%s: %s has the member %s", db.file, f[0], member)
					}
				}
			}
		}
		for _, name := range v.want.Live {
			if !seen[name] && db.file != "subuid" && db.file != "subgid" {
				v.found(Lost, "/etc/%s has no line for %s", db.file, name)
			}
		}
	}
	return nil
}

// locks looks for what a tool leaves that is killed while it changes the user database:
// NAME.lock and NAME.PID, which say whose they are, and NAME+, an unfinished copy.
func (v *view) locks(context.Context) error {
	for _, db := range []string{"passwd", "shadow", "group", "gshadow", "subuid", "subgid"} {
		found, err := filepath.Glob("/etc/" + db + ".[0-9]*")
		if err != nil {
			return err
		}
		for _, path := range found {
			if pid, err := strconv.Atoi(strings.TrimPrefix(path, "/etc/"+db+".")); err == nil && !alive(pid) {
				v.found(Lock, "%s: process %d has ended", path, pid)
			}
		}
		lock := "/etc/" + db + ".lock"
		b, err := os.ReadFile(lock)
		held := err == nil
		if held {
			if pid, err := strconv.Atoi(strings.Trim(string(b), "\x00\n ")); err != nil || !alive(pid) {
				v.found(Lock, "%s: its process has ended", lock)
				held = false
			}
		}
		if _, err := os.Lstat("/etc/" + db + "+"); err == nil && !held {
			v.found(Lock, "/etc/%s+", db)
		}
	}
	return nil
}

func alive(pid int) bool { return pid > 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// account looks for the daemon's user, group and lock, once no instance needs them.
func (v *view) account(context.Context) error {
	const lock = "/run/carrel-account.lock"
	if f, err := os.Open(lock); err == nil {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			v.found(Account, "%s: nobody holds it", lock)
		}
	}
	if !v.want.Gone {
		return nil
	}
	passwd, err := lines("passwd")
	if err != nil {
		return err
	}
	group, err := lines("group")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(passwd, func(f []string) bool { return f[0] == "carrel" })
	j := slices.IndexFunc(group, func(f []string) bool { return f[0] == "carrel" })
	if i >= 0 {
		f := passwd[i]
		other := slices.ContainsFunc(passwd, func(f []string) bool { return len(f) > 4 && f[4] == "carrel workspace" })
		uid, err := strconv.ParseUint(f[2], 10, 32)
		if err == nil && strings.Contains(f[4], "carrel up") && !other && !uidRuns(uid) && !accountHeld() {
			v.found(Account, "/etc/passwd: carrel")
		}
	} else if j >= 0 && group[j][len(group[j])-1] == "" && !accountHeld() {
		v.found(Account, "/etc/group: carrel without a user")
	}
	return nil
}

// accountHeld reports whether another instance comes or goes at this moment.
func accountHeld() bool {
	f, err := os.Open("/run/carrel-account.lock")
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

func uidRuns(uid uint64) bool {
	runs := false
	_ = eachProcess(func(p process) error { // what has ended does not run
		runs = runs || slices.Contains(p.ids, uid)
		return nil
	})
	return runs
}
