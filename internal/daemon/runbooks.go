package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// openRunbooks returns what reads the runbooks, once. An administrator's are read at once, so that what is wrong with them is
// said; where there are none, a daemon that no agent uses does not have all that judging them takes in memory.
func openRunbooks(dir string, e *rules.Engine, log *slog.Logger) func() []*runbooks.Runbook {
	read := sync.OnceValue(func() []*runbooks.Runbook { return loadRunbooks(dir, e, log) })
	if found, err := filepath.Glob(filepath.Join(dir, "*.yaml")); err != nil || len(found) > 0 {
		read()
	}
	return read
}

// loadRunbooks reads the runbooks of carrel and of the administrator. One that cannot be read, or that says wrongly that a
// step only reads, is left out. An administrator's takes the place of carrel's of the same name.
func loadRunbooks(dir string, e *rules.Engine, log *slog.Logger) []*runbooks.Runbook {
	all, err := runbooks.Builtin()
	if err != nil {
		log.Warn("carrel's own runbooks cannot be used", "error", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the runbooks cannot be read", "dir", dir, "error", err)
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".yaml" {
			continue
		}
		file := filepath.Join(dir, entry.Name())
		b, err := config.ReadTrusted(file, "runbook", runbooks.MaxFile)
		var r *runbooks.Runbook
		if err == nil {
			r, err = runbooks.Parse(file, b)
		}
		switch {
		case err != nil:
			log.Warn("a runbook is left out", "file", file, "error", err)
		case len(all) >= runbooks.MaxRunbooks:
			log.Warn("a runbook is left out, because there are too many", "file", file, "most", runbooks.MaxRunbooks)
		default:
			all = slices.DeleteFunc(all, func(other *runbooks.Runbook) bool { return other.Name == r.Name })
			all = append(all, r)
		}
	}
	return slices.DeleteFunc(all, func(r *runbooks.Runbook) bool {
		err := r.Check(e)
		if err != nil {
			log.Warn("a runbook is left out", "file", r.File, "error", err)
		}
		return err != nil
	})
}
