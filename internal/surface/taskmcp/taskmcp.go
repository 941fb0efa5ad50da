// Package taskmcp gives the programs of tasks carrel's tools, by the Model Context Protocol:
//
//	program ──stdio──► bridge ──socket of the workspace──► Server: bounds ──► mcp.Server ──► api.Inside ──► gate
//
// What comes from the socket is a program's that nobody trusts. All that is done for it is asked for over the API, by the
// task's principal, who is bound to the workspace. An agent in the place of carrel's own has other tools, and none of these: what
// it reads and proposes goes to its task (tasks.Seat), as what carrel's own agent proposes does.
//
// It must not reach the gate in another way than its clients do, but to put the bridge into the workspace.
package taskmcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// Files works on files of a workspace, as a surface asks for it.
type Files interface {
	OnFiles(ctx context.Context, p principal.Principal, ref string, r fileapi.Request, s fileapi.Streams) (fileapi.Result, error)
}

// Config holds the dependencies of New. All are required.
type Config struct {
	// Program returns carrel-archive, which is the bridge too, for Tools to close.
	Program func() (*os.File, error)
	Version string
	Log     *slog.Logger
}

// Tools serve tasks. Its methods may be called from any goroutine.
type Tools struct {
	cfg     Config
	files   Files
	surface *api.Server

	read    sync.Once
	name    string // of the bridge, with a digest of what it is
	size    int64
	readErr error

	counts counts
}

var _ tasks.Tools = (*Tools)(nil)

// New returns tools, which are served once Bind was called.
func New(cfg Config) *Tools { return &Tools{cfg: cfg, counts: counts{of: map[string]int{}}} }

// Bind says over what they work. It is called once, before any task is run.
func (t *Tools) Bind(files Files, surface *api.Server) { t.files, t.surface = files, surface }

// Open implements tasks.Tools.
func (t *Tools) Open(ctx context.Context, o tasks.Opening) (argv []string, end func(), err error) {
	if t.surface == nil {
		return nil, nil, fmt.Errorf("cannot give a task tools: they are not served yet: %w", errdefs.ErrUnavailable)
	}
	program, err := t.bridge(ctx, o.By, o.On)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot put the bridge to carrel's tools into workspace %s: %w", o.On, err)
	}
	l, err := listen(ctx, o.Runtime, o.Permit, o.Task)
	if err != nil {
		return nil, nil, err
	}
	s, err := t.serve(l, o)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return []string{program, "mcp", execapi.Listening(o.Task)}, s.end, nil
}

func listen(ctx context.Context, rt runtime.Runtime, p permit.Permit, task id.Command) (listener, error) {
	l, err := rt.Listen(ctx, p, task)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// bridgeDir is where the bridge is in a workspace, from the home.
const bridgeDir = ".carrel/mcp/"

// bridge has the bridge in the workspace, and returns its path there. Whoever can write in that workspace can change it: it has no
// rights beyond those of the workspace.
func (t *Tools) bridge(ctx context.Context, by principal.Principal, on id.Workspace) (string, error) {
	t.read.Do(func() { t.name, t.size, t.readErr = t.digest() })
	if t.readErr != nil {
		return "", t.readErr
	}
	path := bridgeDir + t.name
	res, err := t.files.OnFiles(ctx, by, string(on), fileapi.Request{Op: fileapi.Stat, Path: []byte(path)}, fileapi.Streams{})
	switch {
	case err == nil && res.File != nil && res.File.Type == "file" && res.File.Size == t.size:
		return workspace.Home + "/" + path, nil
	case err != nil && !errdefs.IsNotFound(err):
		return "", err
	}
	f, err := t.cfg.Program()
	if err != nil {
		return "", err
	}
	defer f.Close()
	// It gets its name once nobody writes it any more: it could not be run before, and another task may come meanwhile.
	mode, part := uint32(0o755), bridgeDir+".new-"+string(id.NewCommand())
	in := io.NopCloser(io.NewSectionReader(f, 0, t.size))
	if _, err := t.files.OnFiles(ctx, by, string(on), fileapi.Request{
		Op: fileapi.Write, Path: []byte(part), Mode: &mode, Parents: true,
	}, fileapi.Streams{In: in}); err != nil {
		return "", err
	}
	if _, err := t.files.OnFiles(ctx, by, string(on), fileapi.Request{
		Op: fileapi.Move, Path: []byte(part), To: []byte(path),
	}, fileapi.Streams{}); err != nil {
		return "", err
	}
	return workspace.Home + "/" + path, nil
}

// digest reads the program once.
func (t *Tools) digest() (name string, size int64, err error) {
	f, err := t.cfg.Program()
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	// The descriptor shares its offset with those of others.
	size, err = io.Copy(h, io.NewSectionReader(f, 0, math.MaxInt64))
	if err != nil {
		return "", 0, fmt.Errorf("cannot read the bridge to carrel's tools: %w", err)
	}
	return "carrel-mcp-" + hex.EncodeToString(h.Sum(nil)[:8]), size, nil
}
