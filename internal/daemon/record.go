package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/state/store"
)

func auditPath(cfg *config.Config) string {
	return filepath.Join(stateDir(cfg), "audit", "audit.jsonl")
}

// The record holds recordRoom bytes of the disk, or one part in recordPart of a small one, for what is done
// while it is full; that is enough for some ten thousand ends of workspaces. Checkpoints and their tree
// have one part in checkpointPart of that each.
const (
	recordRoom     = 16 << 20
	recordPart     = 32
	checkpointPart = 16
)

// openReserve opens the file that gives room where the file system cannot hold any inside other files; nil where it can.
func openReserve(cfg *config.Config) (*diskreserve.Reserve, error) {
	fail := func(err error) (*diskreserve.Reserve, error) {
		return nil, fmt.Errorf("cannot open the reserve of the disk: %w", err)
	}
	path := filepath.Join(stateDir(cfg), "reserve")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if diskreserve.Full(err) {
		return nil, nil // there is nothing to be held
	}
	if err != nil {
		return fail(err)
	}
	r, err := diskreserve.NewReserve(f, diskreserve.Share(stateDir(cfg), 2*recordRoom, recordPart))
	if err == nil && r == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fail(err)
	}
	return r, nil
}

// openRecord opens the audit log and its checkpoints. A damaged log is moved aside if
// --accept-audit-damage was given.
func openRecord(
	ctx context.Context, cfg *config.Config, o options, db *store.Store, reserve *diskreserve.Reserve, signing audit.CheckpointOptions,
	log *slog.Logger,
) (*audit.Log, *audit.Checkpoints, error) {
	mark, known, err := audits.LoadMark(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	opening := audit.Options{
		Path: auditPath(cfg), Since: mark, Known: known, AcceptDamage: o.acceptDamage, MaxSize: cfg.AuditMaxSize, MaxAge: cfg.AuditMaxAge,
		Room: diskreserve.Share(stateDir(cfg), recordRoom, recordPart), Reserve: reserve,
		Reopened: func(ctx context.Context, m audit.Mark) error {
			log.Warn("the audit log goes on behind the end of an earlier version, which wrote more than it should; a record says so",
				"found", m.Late.Text())
			return audits.KeepMark(ctx, db, m)
		},
	}
	signing.Room = opening.Room / checkpointPart
	record, err := audit.Open(ctx, opening)
	if err != nil {
		return nil, nil, explainDamage(err)
	}
	checkpoints, err := audit.OpenCheckpoints(ctx, record, signing)
	if errors.Is(err, audit.ErrDamaged) && o.acceptDamage {
		if cerr := record.Close(); cerr != nil {
			return nil, nil, errors.Join(err, cerr)
		}
		if record, err = audit.SetAside(ctx, opening, err); err != nil {
			return nil, nil, err
		}
		checkpoints, err = audit.OpenCheckpoints(ctx, record, signing)
	}
	if err != nil {
		return nil, nil, errors.Join(explainDamage(err), record.Close())
	}
	audits.Watch(db, record)
	return record, checkpoints, nil
}

func explainDamage(err error) error {
	if errors.Is(err, audit.ErrDamaged) {
		return fmt.Errorf(
			"%w; \"carreld --verify-audit\" names the first bad record; restore the files, or start once with --accept-audit-damage to keep them "+
				"aside and begin a new log that says so", err,
		)
	}
	return err
}

// maxKey bounds a file with a public key, in bytes.
const maxKey = 1 << 10

// verifyAudit verifies the log without a running daemon: against its checkpoints, the anchor, what the daemon's database
// knows and, as root, the broker's last signature. Its verdict on what was written since the daemon's mark is a start's.
func verifyAudit(ctx context.Context, w io.Writer, cfg *config.Config) error {
	path := auditPath(cfg)
	t := audit.Trust{Anchor: cfg.AuditAnchor}
	own, err := untrustedfile.Read(filepath.Join(filepath.Dir(path), "checkpoint.pub"), maxKey)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot read the log's public key: %w", err)
	}
	// Root's directory is trusted more than what the daemon stored.
	state := filepath.Join(cfg.DataDir, "broker")
	byBroker, err := untrustedfile.Read(filepath.Join(state, "audit.pub"), maxKey)
	said := "against the broker's last signature"
	if err == nil {
		t.Countersigned, err = audit.BrokerState(filepath.Join(state, "audit.json"))
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		said = "not against the broker's last signature, which root can read"
		byBroker, err = untrustedfile.Read(filepath.Join(filepath.Dir(path), "broker.pub"), maxKey)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("cannot read what the broker signed: %w", err)
	}
	if t.Keys, err = checkpoint.ParseKeys(string(own), string(byBroker)); err != nil {
		return err
	}
	if busy, err := audit.InUse(path); err != nil {
		return err
	} else if busy {
		said += ", not against the database, which a daemon has open"
	} else {
		m, err := readMarks(ctx, cfg)
		if err != nil {
			return err
		}
		t.Since, t.Known = m.Since, m.Known
	}
	v, err := audit.VerifyLog(ctx, path, t)
	if err != nil {
		return err
	}
	if v.Bad != nil {
		return fmt.Errorf("the audit log %s does not hold: %s at record %d (%s, line %d, byte %d): %s: %w",
			path, v.Bad.Harm, v.Bad.Seq, v.Bad.File, v.Bad.Line, v.Bad.Offset, v.Bad.Detail, errdefs.ErrDataLoss)
	}
	if v.Removed > 0 {
		if _, err := fmt.Fprintf(w, "records 1 to %d were removed by carrel as audit.retention says, which a signed record has; the log "+
			"begins with record %d\n", v.Removed, v.Removed+1); err != nil {
			return err
		}
	}
	if v.Late != nil {
		if _, err := fmt.Fprintf(w, "%s; the next start takes them over and records that\n", v.Late.Text()); err != nil {
			return err
		}
	}
	anchored := "not anchored"
	if v.Anchored > 0 {
		anchored = fmt.Sprintf("anchored to %d", v.Anchored)
	}
	_, err = fmt.Fprintf(w, "%s holds: %s, %s, head %s\n%s; signed to record %d, countersigned to %d, %s; verified %s\n",
		path, several(v.Records, "record"), several(v.Bytes, "byte"), v.Head.Hash, several(v.Checkpoints, "checkpoint"), v.Signed,
		v.Countersigned, anchored, said)
	return err
}

// several is a number of things.
func several(n int64, name string) string {
	if n == 1 {
		return "1 " + name
	}
	return fmt.Sprintf("%d %ss", n, name)
}
