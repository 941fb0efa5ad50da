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

// settings are those of the user, or the usual ones.
func settings() (vitals.Settings, error) {
	usual := vitals.Settings{Thresholds: vitals.Default()}
	dir, err := os.UserConfigDir()
	if err != nil {
		return usual, nil // a user without a home has set none
	}
	name := filepath.Join(dir, "carrel", settingsName)
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for its writer
	if errors.Is(err, fs.ErrNotExist) {
		return usual, nil
	}
	if err != nil {
		return usual, fmt.Errorf("cannot read the agent's settings: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, vitals.MaxFile+1))
	if err != nil {
		return usual, fmt.Errorf("cannot read the agent's settings: %w", err)
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
