package apitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
)

// Archive implements api.Gate: what it makes is the text "archive of KEY", again and
// again, 1 MiB long.
func (g *Gate) Archive(_ context.Context, p principal.Principal, ref string, want workspace.ArchiveWanted, out io.Writer,
	progress func(workspace.Progress),
) (a workspace.Archive, err error) {
	if err := g.permit(p, operation.ArchiveWorkspace); err != nil {
		return workspace.Archive{}, err
	}
	_, err = g.with(p, ref, "workspace.archive", func(d *entry) error {
		text := []byte("archive of " + string(d.Key) + "\n")
		text = bytes.Repeat(text, 1<<20/len(text))
		sum := sha256.Sum256(text)
		a = workspace.Archive{
			ID: string(d.Name) + "-1", Workspace: d.Name, Key: d.Key, Owner: d.Owner, Limits: d.Limits, SHA256: hex.EncodeToString(sum[:]),
			Size: int64(len(text)), Entries: 3, Bytes: 7, CreatedAt: time.Unix(1_700_000_000, 0),
		}
		progress(workspace.Progress{Entries: 1, Bytes: 2})
		if out != nil {
			_, err := out.Write(text)
			return err
		}
		g.archives = append(g.archives, kept{a, text})
		return nil
	})
	return a, err
}

// kept is an archive with its text.
type kept struct {
	workspace.Archive
	text []byte
}

// Restore implements api.Gate: the workspace gets what was restored as its profile.
func (g *Gate) Restore(ctx context.Context, p principal.Principal, want workspace.RestoreWanted, in io.Reader,
	progress func(workspace.Progress),
) (api.Workspace, error) {
	if err := g.permit(p, operation.RestoreWorkspace); err != nil {
		return api.Workspace{}, err
	}
	var text []byte
	var err error
	if want.From == "" {
		if text, err = io.ReadAll(in); err != nil {
			return api.Workspace{}, err
		}
	} else {
		var buf bytes.Buffer
		if _, err := g.ReadArchive(ctx, p, want.From, &buf); err != nil {
			return api.Workspace{}, err
		}
		text = buf.Bytes()
	}
	progress(workspace.Progress{Entries: 3, Bytes: int64(len(text))})
	sum := sha256.Sum256(text)
	w, _, err := g.Create(ctx, p, workspace.Wanted{Key: want.Key, Profile: hex.EncodeToString(sum[:])})
	return w, err
}

// ListArchives implements api.Gate.
func (g *Gate) ListArchives(_ context.Context, p principal.Principal) ([]workspace.Archive, error) {
	if err := g.permit(p, operation.ListArchives); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []workspace.Archive
	for _, k := range g.archives {
		if p.MayReach(k.Owner) {
			out = append(out, k.Archive)
		}
	}
	return out, nil
}

// ReadArchive implements api.Gate.
func (g *Gate) ReadArchive(_ context.Context, p principal.Principal, ref string, out io.Writer) (workspace.Archive, error) {
	if err := g.permit(p, operation.ReadArchive); err != nil {
		return workspace.Archive{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.archives {
		if k.ID == ref {
			_, err := out.Write(k.text)
			return k.Archive, err
		}
	}
	return workspace.Archive{}, fmt.Errorf("cannot find an archive %q: %w", ref, errdefs.ErrNotFound)
}

// RemoveArchive implements api.Gate.
func (g *Gate) RemoveArchive(ctx context.Context, p principal.Principal, ref string) error {
	if err := g.permit(p, operation.RemoveArchive); err != nil {
		return err
	}
	_, err := g.ReadArchive(ctx, p, ref, io.Discard)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.archives = nil
	return err
}
