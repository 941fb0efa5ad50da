package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/archive"
)

// skeleton is the initial content of the homes of a profile: the files of a directory, and a
// git repository with a first commit of them. It is packed into an archive once, because
// making a repository takes longer than everything else that a new workspace needs.
type skeleton struct {
	dir     string // "" for none
	git     bool
	scratch string // a directory of the daemon that exists while the archive is made

	mu   sync.Mutex
	text []byte
}

// maxSkeleton bounds the archive in bytes: it is kept in memory.
const maxSkeleton = 32 << 20

// open returns the archive, for one use.
func (s *skeleton) open(ctx context.Context) (io.Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == nil {
		text, err := s.bake(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot make the initial files of new workspaces: %w", err)
		}
		s.text = text
	}
	return bytes.NewReader(s.text), nil
}

func (s *skeleton) bake(ctx context.Context) (_ []byte, err error) {
	if err := os.RemoveAll(s.scratch); err != nil { // left by a daemon that was killed
		return nil, err
	}
	if err := os.Mkdir(s.scratch, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.scratch)) }()
	if s.dir != "" {
		if err := os.CopyFS(s.scratch, os.DirFS(s.dir)); err != nil {
			return nil, fmt.Errorf(
				"cannot copy the directory %s (chat.skeleton in the daemon's settings), which the daemon's user must be able to read: %w", s.dir, err,
			)
		}
	}
	if s.git {
		if err := s.commit(ctx); err != nil {
			return nil, err
		}
	}
	d, err := os.Open(s.scratch)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var out bytes.Buffer
	if _, err := archive.Write(ctx, &out, d, archive.Limits{Bytes: 4 * maxSkeleton}, archive.Options{}); err != nil {
		return nil, err
	}
	if out.Len() > maxSkeleton {
		return nil, fmt.Errorf("it is %d MiB packed, and at most %d are allowed; leave large files out: %w",
			out.Len()>>20, maxSkeleton>>20, errdefs.ErrResourceExhausted)
	}
	return out.Bytes(), nil
}

// commit makes the repository, without the host's git configuration.
func (s *skeleton) commit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"init", "-q", "--initial-branch=main", "--template="},
		{"add", "-A"},
		{"commit", "-q", "--allow-empty", "-m", "init"},
		{"gc", "-q", "--prune=now"}, // fewer files to make in each workspace
	} {
		c := exec.CommandContext(ctx, "git", args...)
		c.Dir = s.scratch
		c.Env = []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C",
			"GIT_AUTHOR_NAME=carrel", "GIT_AUTHOR_EMAIL=carrel@localhost", "GIT_COMMITTER_NAME=carrel", "GIT_COMMITTER_EMAIL=carrel@localhost",
		}
		out, err := c.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("git is not installed; apt-get install git, or set chat.git to false: %w", errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(out))
		}
	}
	return nil
}
