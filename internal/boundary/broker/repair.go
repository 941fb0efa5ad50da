package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// Repair drops the lines of a ledger that cannot be read, and says which. The ledger as it was is kept
// beside it. What is lost with the lines, the next start of the broker learns from the host: see Found.
// A broker that runs has the ledger locked.
func Repair(_ context.Context, o Options, out io.Writer) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("cannot repair the ledger as uid %d: it is root's", os.Geteuid())
	}
	settings, err := ReadSettings(o.Settings)
	if err != nil {
		return err
	}
	d, err := openDirs(settings, true)
	if err != nil {
		return err
	}
	defer d.close()
	dir, err := beneath(d.data, "broker")
	if err != nil {
		return err
	}
	kept, dropped, err := RepairLedger(dir)
	for _, line := range dropped {
		fmt.Fprintf(out, "dropped: %.200q\n", line)
	}
	switch {
	case err != nil:
		return fmt.Errorf("cannot repair the broker's ledger: %w", err)
	case kept == "":
		fmt.Fprintln(out, "The broker's ledger can be read; there is nothing to repair.")
	default:
		fmt.Fprintf(out, "The broker's ledger can be read again; as it was, it is %s.\n", kept)
	}
	return nil
}

// RepairLedger is Repair for the ledger in dir, which it takes over. kept is where the ledger is as it was,
// "" if nothing was dropped.
func RepairLedger(dir *os.File) (kept string, dropped []string, err error) {
	l := newLedger(dir)
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.takeLock(); err != nil {
		return "", nil, err
	}
	if l.file, err = openAt(dir, ledgerName, unix.O_RDWR|unix.O_CREAT, 0o600); err != nil {
		return "", nil, err
	}
	text, err := io.ReadAll(l.file)
	if err != nil {
		return "", nil, err
	}
	var good []byte
	for line := range bytes.Lines(text) {
		l.lines++
		var x ledgerLine
		if !bytes.HasSuffix(line, []byte("\n")) || len(line) > maxLedgerLine || strictjson.Unmarshal(line, &x) != nil || l.take(x) != nil {
			dropped = append(dropped, string(line))
			continue
		}
		good = append(good, line...)
	}
	if len(dropped) == 0 {
		return "", nil, nil
	}
	f, err := openAt(dir, ledgerNew, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return "", dropped, err
	}
	_, err = f.Write(good)
	if err = errors.Join(err, syncFile(f), f.Close()); err != nil {
		return "", dropped, err
	}
	old := ledgerName + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	err = withFD(dir, func(fd int) error {
		// A second name first, so that there is a ledger at any time.
		if err := unix.Linkat(fd, ledgerName, fd, old, 0); err != nil {
			return err
		}
		return unix.Renameat(fd, ledgerNew, fd, ledgerName)
	})
	return dir.Name() + "/" + old, dropped, errors.Join(err, syncFile(dir))
}
