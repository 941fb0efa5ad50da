package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// loopBytes is the size of the file system in a file.
const loopBytes = 256 << 20

// journaled measures a durable append of an exec's intent on ext4 with its journal, in a file, beside a write and an fdatasync that
// makes a file longer: its change of the inode goes through the journal, and one into blocks that are there does not.
func (b *bench) journaled() error {
	if err := b.durable(); err != nil {
		b.Miss(report.AuditJournaled, err)
		return nil
	}
	if os.Geteuid() != 0 {
		b.Miss(report.AuditJournaled, errors.New("only root can mount a file system"))
		return nil
	}
	h, err := b.host()
	if err != nil {
		return err
	}
	l, err := h.execLines()
	if err != nil {
		return err
	}
	dir, err := b.ext4(filepath.Join(b.dir, "journaled"))
	if err != nil {
		b.Miss(report.AuditJournaled, err)
		return nil
	}
	denial := l.intent
	denial.Type = audit.Denial
	log, err := audit.Open(b.ctx, audit.Options{Path: filepath.Join(dir, "append.jsonl"), Room: 16 << 20})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "each"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	got := measure.Interleave(b.ctx, b.pace(0), []measure.Contestant{
		{Op: measure.Timed(func() error {
			_, err := log.Append(b.ctx, denial)
			return err
		})},
		{Name: report.OneSync, Op: measure.Timed(func() error {
			if _, err := f.Write(l.intentBytes); err != nil {
				return err
			}
			return unix.Fdatasync(int(f.Fd()))
		})},
	})
	// The file system is taken away at the end, and nothing of it may be open then.
	if err := errors.Join(f.Close(), log.Close()); err != nil {
		return err
	}
	got[0].Name = "audit append, one appender, ext4 in a file"
	return b.times(report.AuditJournaled, time.Millisecond, got[0], got[1:])
}

// ext4 mounts a new file system with a journal, which is in the file name.img, on name. It goes with the run.
func (b *bench) ext4(name string) (dir string, err error) {
	image := name + ".img"
	if err := os.Mkdir(name, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return "", err
	}
	if err := os.Truncate(image, loopBytes); err != nil {
		return "", err
	}
	for _, argv := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop,nodev,nosuid", image, name}} {
		if out, err := exec.CommandContext(b.ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %.200s", argv[0], err, out)
		}
	}
	b.later(func(context.Context) error { return unix.Unmount(name, 0) })
	return name, os.Chmod(name, 0o700) // the root of a new file system is open to everybody
}
