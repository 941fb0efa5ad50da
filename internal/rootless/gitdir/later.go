package gitdir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// Note is a Repo that another process takes up later.
type Note struct {
	Work string       `json:"work"`
	At   string       `json:"at"`
	Name id.Workspace `json:"name"`
	// Before are the refs that the workspace began with.
	Before map[string]string `json:"before"`
}

// Note returns what Reopen needs.
func (r *Repo) Note() Note { return Note{r.Work, r.at, r.name, r.before} }

// Reopen is the Repo of a note that carrel wrote.
func Reopen(n Note) (r *Repo, err error) {
	r = &Repo{Work: n.Work, name: n.Name, at: n.At, before: n.Before}
	if r.program, err = program([]string{n.Work}); err != nil {
		return nil, fmt.Errorf("cannot find git: %w", err)
	}
	return r, nil
}

// Hold says which paths of the work tree are read-only inside.
func (r *Repo) Hold(paths ...string) { r.held = append(r.held, paths...) }

// Pending names what the workspace did to branches, tags and HEAD that was not taken.
func (r *Repo) Pending() (names []string, err error) {
	own, err := os.OpenRoot(r.Own())
	if err != nil {
		return nil, err
	}
	defer own.Close()
	now, _, err := readRefs(own)
	if err != nil || now["HEAD"] == "" {
		return nil, err
	}
	for _, c := range r.changes(now) {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(c.name, "refs/"), "heads/"))
	}
	return names, nil
}

// Moved is a branch of the host that Take moved. Before is "" if it is new.
type Moved struct {
	Ref    string `json:"ref"`
	Before string `json:"before,omitempty"`
	Now    string `json:"now"`
}

// Moved are the branches that Take moved.
func (r *Repo) Moved() []Moved { return r.moved }

// Now are the refs that Take found.
func (r *Repo) Now() map[string]string { return r.now }

// MoveBack moves branches of the repository work back that Take moved, all or none, and the index with the one that is checked out. One
// that is elsewhere now is an error. at is a directory that does not exist yet.
func MoveBack(ctx context.Context, work, at string, list []Moved) error {
	return moveBack(ctx, work, at, list, false)
}

// MayMoveBack says why MoveBack would fail.
func MayMoveBack(ctx context.Context, work, at string, list []Moved) error {
	return moveBack(ctx, work, at, list, true)
}

func moveBack(ctx context.Context, work, at string, list []Moved, try bool) (err error) {
	if len(list) == 0 {
		return nil
	}
	r := &Repo{Work: work, at: at}
	if r.program, err = program([]string{work}); err != nil {
		return fmt.Errorf("cannot find git: %w", err)
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	defer func() { _ = removal.Path(context.WithoutCancel(ctx), at) }() // repositories without objects
	root, err := os.OpenRoot(at)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := r.makeRepositories(root); err != nil {
		return err
	}
	head, err := os.ReadFile(filepath.Join(r.HostGit(), "HEAD"))
	if err != nil {
		return err
	}
	var do strings.Builder
	var index *Moved
	for i, m := range list {
		switch {
		case try:
			fmt.Fprintf(&do, "verify %s %s\n", m.Ref, m.Now)
		case m.Before == "":
			fmt.Fprintf(&do, "delete %s %s\n", m.Ref, m.Now)
		default:
			fmt.Fprintf(&do, "update %s %s %s\n", m.Ref, m.Before, m.Now)
		}
		if strings.TrimSpace(string(head)) == "ref: "+m.Ref && m.Before != "" {
			index = &list[i]
		}
	}
	if _, err := r.git(ctx, call{
		dir: put, stdin: strings.NewReader(do.String()), args: []string{"update-ref", "-m", "carrel undo", "--stdin"},
	}); err != nil {
		return fmt.Errorf("cannot move the branches back: %w", err)
	}
	if index == nil || try || r.underWay() {
		return nil
	}
	if _, err := r.git(ctx, call{dir: put, index: true, args: []string{"read-tree", "-m", "-i", index.Now, index.Before}}); err != nil {
		_, err = r.git(ctx, call{dir: put, index: true, args: []string{"read-tree", index.Before}})
		return err
	}
	return nil
}

// maxBlob bounds a file that Committed returns, in bytes.
const maxBlob = 8 << 20

// Committed returns a file as it was in the commit that the workspace began with, if it was.
func (r *Repo) Committed(ctx context.Context, path string) ([]byte, bool) {
	commit := r.before["HEAD"]
	if name, symbolic := strings.CutPrefix(commit, "ref: "); symbolic {
		commit = r.before[name]
	}
	if !object().MatchString(commit) {
		return nil, false
	}
	if err := os.MkdirAll(r.at, 0o700); err != nil {
		return nil, false
	}
	root, err := os.OpenRoot(r.at)
	if err != nil {
		return nil, false
	}
	defer root.Close()
	if err := r.makeRepositories(root); err != nil {
		return nil, false
	}
	text, err := r.git(ctx, call{dir: put, args: []string{"cat-file", "blob", commit + ":" + path}})
	return []byte(text), err == nil && len(text) <= maxBlob
}
