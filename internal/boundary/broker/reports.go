package broker

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// keepReport writes the report for a broker that comes after this one. It need not
// survive a crash of the host, as the workspace does not either, nor appear at once:
// nobody reads it before the ledger says that the workspace runs.
func (h *Host) keepReport(name id.Workspace, r workspace.Report) error {
	err := h.writeReport(string(name), r)
	crashpoint.Here("broker.report.written")
	if err != nil {
		return fmt.Errorf("cannot keep the report of %s: %w", name, err)
	}
	return nil
}

// replaceReport replaces a report that a later broker may have to read at any moment.
func (h *Host) replaceReport(name id.Workspace, r workspace.Report) error {
	file := string(name) + unfinished
	err := h.writeReport(file, r)
	crashpoint.Here("broker.report.replaced")
	if err == nil {
		err = withFD(h.reports, func(fd int) error { return unix.Renameat(fd, file, fd, string(name)) })
	}
	if err != nil {
		return fmt.Errorf("cannot keep the report of %s: %w", name, err)
	}
	return nil
}

func (h *Host) writeReport(file string, r workspace.Report) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := openAt(h.reports, file, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func (h *Host) dropReport(name id.Workspace) error {
	return errors.Join(removeAt(h.reports, string(name)+unfinished), removeAt(h.reports, string(name)))
}

// Report is part of Effects.
func (h *Host) Report(name id.Workspace) (r workspace.Report, err error) {
	f, err := openAt(h.reports, string(name), unix.O_RDONLY, 0)
	if err == nil {
		defer f.Close()
		err = json.NewDecoder(f).Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("cannot read the report of %s: %w; stop and start the workspace to have it proved again: %w",
			name, err, errdefs.ErrFailedPrecondition)
	}
	return r, nil
}
