package copies

import (
	"context"
	"os"
	"strings"

	"github.com/carrel-dev/carrel/internal/files/staged"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
)

// gitPrefix begins the paths of the git directory at the top.
const gitPrefix = ".git/"

// inGit classes a change of the git directory at the top that lies in the copy itself: refs and objects are taken by git.
func (c *Copy) inGit(ch staged.Change, fresh bool) bool {
	if ch.Path == ".git" {
		return fresh
	}
	rel, ok := strings.CutPrefix(ch.Path, gitPrefix)
	return ok && (fresh || gitdir.IsState(rel))
}

// isFresh reports whether a copy has a repository that the directory has not.
func isFresh(list []staged.Change) bool {
	made, head := false, false
	for _, ch := range list {
		made = made || ch.Path == ".git" && ch.Old.Type == staged.Absent && ch.New.Type == staged.Dir
		head = head || ch.Path == gitPrefix+"HEAD" && ch.New.Type == staged.File
	}
	return made && head
}

// refsOf names the branches and tags that changes of the git directory are about.
func refsOf(list []staged.Change, fresh bool) (names []string) {
	if fresh {
		names = append(names, "a new repository")
	}
	for _, ch := range list {
		name, ok := strings.CutPrefix(ch.Path, gitPrefix+"refs/")
		if !ok || ch.New.Type != staged.File || strings.HasPrefix(name, "remotes/") {
			continue
		}
		names = append(names, strings.TrimPrefix(name, "heads/"))
	}
	return names
}

// assemble makes the git directory of a copy that has none of its own, from what was changed in it. It is nil if nothing was.
func (c *Copy) assemble(ctx context.Context, s staged.Copy, seen Seen) (repo *gitdir.Repo, notes []string, err error) {
	var list []gitdir.Changed
	var all []staged.Change
	for _, i := range seen.Items {
		all = append(all, i.Change)
		rel, ok := strings.CutPrefix(i.Path, gitPrefix)
		if !ok {
			continue
		}
		x := gitdir.Changed{Rel: rel}
		if i.New.Type == staged.File {
			x.Open = func() (*os.File, error) { return openBelow(s.Upper, i.Path) }
		}
		list = append(list, x)
	}
	n := gitdir.Note{Work: c.Source, Name: c.Run}
	switch {
	case len(list) == 0:
		return nil, nil, nil
	case c.Git != nil:
		n = *c.Git
	case !isFresh(all):
		return nil, nil, nil // a repository of a kind that is not known in full
	}
	repo, notes, err = gitdir.Assemble(ctx, n, c.GitDir(), list)
	if err != nil || n.Before != nil {
		return repo, notes, err
	}
	if text, ok := readBelow(s.Upper, gitPrefix+"config"); ok {
		for _, words := range gitdir.Remotes(text) {
			notes = append(notes, c.Source+": "+words+" takes over a remote")
		}
	}
	return repo, notes, nil
}
