package userbroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// What is kept, below the state directory:
//
//	ledger/                  the ledger
//	homes/NAME               0700, homes
//	tmp/NAME/{tmp,var-tmp}   0700, private temporary directories
//	retained/NAME.NUMBER     homes of destroyed workspaces
//
// All of it is the user's own. What a workspace leaves in its home can be set-uid to the user
// outside, so nobody else can enter any of it.
const ledgerDir = "ledger"

var (
	kept      = []string{ledgerDir, "homes", "tmp", "retained"}
	temporary = []string{"tmp", "var-tmp"}
)

func (h *host) makeState() error {
	for _, d := range kept {
		path := filepath.Join(h.cfg.State, d)
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make %s: %w", path, err)
		}
	}
	return nil
}

// Home is part of broker.Effects.
func (h *host) Home(name id.Workspace) string { return h.at("homes", string(name)) }

func (h *host) at(parts ...string) string {
	return filepath.Join(append([]string{h.cfg.State}, parts...)...)
}

func keptName(name id.Workspace, ids workspace.IDs) string {
	return fmt.Sprintf("%s.%d", name, ids.Executor)
}

// MakeDirs is part of broker.Effects.
func (h *host) MakeDirs(name id.Workspace, _ workspace.IDs) error {
	if err := os.Mkdir(h.Home(name), 0o700); err != nil {
		return fmt.Errorf("cannot make the home of %s: %w", name, err)
	}
	crashpoint.Here("userbroker.create.home-made")
	return h.makeTemporary(name)
}

func (h *host) makeTemporary(name id.Workspace) error {
	for _, d := range temporary {
		if err := os.MkdirAll(h.at("tmp", string(name), d), 0o700); err != nil {
			return fmt.Errorf("cannot make the temporary directories of %s: %w", name, err)
		}
	}
	return nil
}

// UnmakeDirs is part of broker.Effects. A home into which something was put stays, and the
// name with it.
func (h *host) UnmakeDirs(ctx context.Context, name id.Workspace, _ workspace.IDs) error {
	err := os.Remove(h.Home(name))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("cannot remove the home of %s: %w", name, err)
	}
	return errors.Join(err, h.RemoveTemporary(ctx, name))
}

// KeepHome is part of broker.Effects.
func (h *host) KeepHome(name id.Workspace, ids workspace.IDs) (string, error) {
	to := h.at("retained", keptName(name, ids))
	if _, err := os.Lstat(to); err == nil {
		return to, nil
	}
	err := os.Rename(h.Home(name), to)
	crashpoint.Here("userbroker.destroy.home-renamed")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil // there is nothing to keep
	case err != nil:
		return "", fmt.Errorf("cannot keep the home of %s at %s: %w", name, to, err)
	}
	return to, nil
}

// TakeHome is part of broker.Effects.
func (h *host) TakeHome(name id.Workspace, ids workspace.IDs) error {
	if _, err := os.Lstat(h.Home(name)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot take the home of %s back: something is at %s: %w", name, h.Home(name), errdefs.ErrFailedPrecondition)
	}
	if err := os.Rename(h.at("retained", keptName(name, ids)), h.Home(name)); err != nil {
		return fmt.Errorf("cannot take the home of %s back: %w", name, err)
	}
	crashpoint.Here("userbroker.revive.home-renamed")
	return h.makeTemporary(name)
}

// HomeEmpty is part of broker.Effects.
func (h *host) HomeEmpty(name id.Workspace, _ workspace.IDs) (bool, error) {
	f, err := os.Open(h.Home(name))
	if err == nil {
		defer f.Close()
		_, err = f.ReadDir(1)
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look into the home of %s: %w", name, err)
	}
	return false, nil
}

// ForgetHome is part of broker.Effects.
func (h *host) ForgetHome(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	return removeAll(ctx, h.at("retained"), keptName(name, ids))
}

// PurgeHome is part of broker.Effects.
func (h *host) PurgeHome(ctx context.Context, name id.Workspace, _ workspace.IDs) error {
	return removeAll(ctx, h.at("homes"), string(name))
}

// RemoveTemporary is part of broker.Effects.
func (h *host) RemoveTemporary(ctx context.Context, name id.Workspace) error {
	return removeAll(ctx, h.at("tmp"), string(name))
}

func removeAll(ctx context.Context, parent, name string) error {
	path := filepath.Join(parent, name)
	if err := removal.Path(ctx, path); err != nil {
		return fmt.Errorf("cannot remove %s: %w", path, err)
	}
	return nil
}
