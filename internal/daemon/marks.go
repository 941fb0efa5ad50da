package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// The database and its write-ahead log in a process that --verify-audit starts.
const (
	marksDB  = 3
	marksWAL = 4
	// marksWithin bounds that process.
	marksWithin = time.Minute
)

// marks are what the database knows of the audit log.
type marks struct {
	Since audit.Mark `json:"since"`
	Known audit.Head `json:"known"`
}

// readMarks reads them without a running daemon. Root does not read a database that the daemon wrote: a process of the
// daemon's user does, which gets nothing but the open files.
func readMarks(ctx context.Context, cfg *config.Config) (m marks, err error) {
	path := filepath.Join(stateDir(cfg), "carrel.db")
	db, err := untrustedfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("cannot open the database: %w", err)
	}
	defer db.Close()
	wal, err := untrustedfile.Open(path + "-wal")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("cannot open the log of the database: %w", err)
	}
	if wal != nil {
		defer wal.Close()
	}
	fi, err := db.Stat()
	if err != nil {
		return m, fmt.Errorf("cannot look at the database: %w", err)
	}
	owner, ok := fi.Sys().(*syscall.Stat_t)
	if os.Geteuid() != 0 || !ok || owner.Uid == 0 {
		return peek(ctx, db, wal)
	}
	ctx, cancel := context.WithTimeout(ctx, marksWithin)
	defer cancel()
	c := exec.CommandContext(ctx, "/proc/self/exe", "--print-audit-marks")
	c.Dir, c.Env = "/", []string{}
	c.ExtraFiles = []*os.File{db}
	if wal != nil {
		c.ExtraFiles = append(c.ExtraFiles, wal)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid, Groups: []uint32{}}}
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err != nil {
		return m, fmt.Errorf("cannot read what the database knows of the audit log: %w: %s", err, said.Bytes()[:min(said.Len(), maxSaid)])
	}
	return m, nil
}

// maxSaid is how much is shown of what that process says.
const maxSaid = 1 << 10

// peek is readMarks for files that are open. wal may be nil.
func peek(ctx context.Context, db, wal *os.File) (m marks, err error) {
	var log io.Reader
	if wal != nil {
		log = wal
	}
	m.Since, m.Known, err = audits.PeekMark(ctx, db, log)
	return m, err
}

// printMarks is that process.
func printMarks(ctx context.Context, w io.Writer) error {
	db, wal := os.NewFile(marksDB, "database"), os.NewFile(marksWAL, "log")
	if _, err := wal.Stat(); err != nil {
		wal = nil
	}
	m, err := peek(ctx, db, wal)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(m)
}
