package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// checkDisk reports whether the daemon's disk is full, and whether a workspace can fill it. m is nil if the
// daemon does not answer.
func (i *instance) checkDisk(m *carrelv1.VersionResponse, results []probe.Result) (probe.Result, bool) {
	r := probe.Result{ID: "disk_room", Needed: "the record, and whatever is made or run", State: probe.Yes}
	var fs unix.Statfs_t
	if unix.Statfs(i.data, &fs) != nil {
		return r, false // there is nothing yet
	}
	free := int64(fs.Bavail) * fs.Bsize
	r.Found = fmt.Sprintf("%d MiB are free on the file system of %s", free>>20, i.data)
	if m.GetDiskFull() != "" {
		r.State, r.Found = probe.No, printable(m.GetDiskFull())
		r.Remedy = "carrel destroy --purge what fills it, or make room: df -h " + shellQuote([]string{i.data})
		return r, true
	}
	if m == nil {
		return r, true
	}
	if found, remedy := i.unlimited(m.GetDiskLimit(), results); found != "" {
		r.State, r.Found, r.Remedy = probe.Partly, r.Found+"; "+found, remedy
	}
	return r, true
}

// unlimited says that workspaces without a disk limit can fill the file system of the record, and what to do; ""
// if they cannot. limit is what the daemon gives those that ask for none.
func (i *instance) unlimited(limit int64, results []probe.Result) (found, remedy string) {
	var s struct {
		HomeRoot  string `json:"home_root"`
		LimitsMax struct {
			DiskBytes int64 `json:"disk_bytes"`
		} `json:"limits_max"`
	}
	if b, err := os.ReadFile(i.settings()); err == nil {
		_ = json.Unmarshal(b, &s) // the broker says what is wrong with it
	}
	var homes, record unix.Stat_t
	if limit > 0 || s.LimitsMax.DiskBytes > 0 || unix.Stat(cmp.Or(s.HomeRoot, filepath.Join(i.data, "homes")), &homes) != nil ||
		unix.Stat(i.daemonDir(), &record) != nil || homes.Dev != record.Dev {
		return "", ""
	}
	found = "homes and the record are on one file system, which a workspace without a disk limit can fill; then nothing is made or run " +
		"until there is room"
	remedy = "set limits.disk in the daemon's settings, which gives every workspace a limit; or mount a file system of its own at " +
		i.daemonDir()
	if at := slices.IndexFunc(results, func(r probe.Result) bool { return r.ID == "disk_image" }); at >= 0 && results[at].State == probe.No {
		remedy = "this host holds no disk limits (" + results[at].Found + "): mount a file system of its own at " + i.daemonDir()
	}
	return found, remedy
}
