package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/steps"
	"github.com/carrel-dev/carrel/internal/vitals"
)

const (
	// settingsName is the file of the agent's settings in the user's configuration directory.
	settingsName = "agent.yaml"
	// vitalsTime bounds how long this machine is measured: a question waits for it.
	vitalsTime = 2 * time.Second
)

// settings are the user's of the agent, and the file's name; empty where they have none.
func settings() (name string, b []byte, err error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", nil, nil // a user without a home has set none
	}
	name = filepath.Join(dir, "carrel", settingsName)
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for its writer
	if errors.Is(err, fs.ErrNotExist) {
		return name, nil, nil
	}
	if err != nil {
		return name, nil, fmt.Errorf("cannot read the agent's settings: %w", err)
	}
	defer f.Close()
	if b, err = io.ReadAll(io.LimitReader(f, vitals.MaxFile+1)); err != nil {
		err = fmt.Errorf("cannot read the agent's settings: %w", err)
	}
	return name, b, err
}

// thresholds are those of the user, or the usual ones.
func thresholds() (vitals.Thresholds, error) {
	name, b, err := settings()
	if err != nil {
		return vitals.Thresholds{}, err
	}
	return vitals.Parse(name, b)
}

// vitals measures this machine; nothing where it is not offered to the agent.
func (k *asker) vitals(ctx context.Context) []vitals.Reading {
	if k.served.Local == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vitalsTime)
	defer cancel()
	failed := steps.FailedServices(k.served.Local, vitalsTime)
	return vitals.Measure(ctx, vitals.Source{Proc: "/proc", Statfs: unix.Statfs, Failed: failed}, k.limits)
}
