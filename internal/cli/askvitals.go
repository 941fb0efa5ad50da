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

	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/agent/settings"
	"github.com/carrel-dev/carrel/internal/agent/vitals"
)

const (
	// settingsName is the file of the agent's settings in the user's configuration directory.
	settingsName = "agent.yaml"
	// vitalsTime bounds how long this machine is measured: a question waits for it.
	vitalsTime = 2 * time.Second
)

// ownSettings are the user's settings of the agent, or the usual ones.
func ownSettings() (settings.Settings, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return settings.Default(), nil // a user without a home has set none
	}
	name := filepath.Join(dir, "carrel", settingsName)
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for its writer
	if errors.Is(err, fs.ErrNotExist) {
		return settings.Default(), nil
	}
	if err != nil {
		return settings.Settings{}, fmt.Errorf("cannot read the agent's settings: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, settings.MaxFile+1))
	if err != nil {
		return settings.Settings{}, fmt.Errorf("cannot read the agent's settings: %w", err)
	}
	return settings.Parse(name, b)
}

// vitals measures this machine; nothing where it is not offered to the agent.
func (k *asker) vitals(ctx context.Context) []vitals.Reading {
	if k.served.Local == nil {
		return nil
	}
	return readings(ctx, k.own.Thresholds, k.served.Local)
}

// readings measures this machine. Without run it is not asked which services have failed.
func readings(ctx context.Context, limits vitals.Thresholds, run steps.Run) []vitals.Reading {
	ctx, cancel := context.WithTimeout(ctx, vitalsTime)
	defer cancel()
	failed := func(context.Context) (int, error) { return 0, errors.New("no command is run for it") }
	if run != nil {
		failed = steps.FailedServices(run, vitalsTime)
	}
	return vitals.Measure(ctx, vitals.Source{Proc: "/proc", Statfs: unix.Statfs, Failed: failed}, limits)
}
