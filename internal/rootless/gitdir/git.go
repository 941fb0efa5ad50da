package gitdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// patience bounds each call of git: a workspace chooses how much there is to take.
const patience = 5 * time.Minute

// config is the configuration of both repositories that carrel makes. Git reads no other: the host's may include
// files of the tree, name programs there, or have a URL of carrel's replaced by another.
const config = `[core]
	repositoryformatversion = 0
	bare = true
	logAllRefUpdates = true
	hooksPath = /dev/null
[gc]
	auto = 0
[maintenance]
	auto = false
[user]
	name = carrel
	email = carrel@localhost
	useConfigOnly = true
`

// call is one call of git on a repository that carrel made.
type call struct {
	// dir is in, with the workspace's objects, or put, with the host's refs.
	dir    string
	stdin  io.Reader
	stdout io.Writer
	// index is the host's index, for read-tree.
	index bool
	args  []string
}

// plain is the environment of git. It is made here: variables of the caller may name configurations, libraries and programs that lie
// in the tree.
var plain = []string{
	"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C",
	"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1",
	"GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL=none",
}

// git runs a call and returns its output, unless that goes to stdout.
func (r *Repo) git(ctx context.Context, c call) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at := filepath.Join(r.at, c.dir)
	cmd := exec.CommandContext(ctx, r.program, append([]string{"--git-dir=" + at, "--no-pager"}, c.args...)...)
	cmd.Dir, cmd.Stdin = "/", c.stdin
	cmd.Env = slices.Clone(plain)
	if c.dir == put {
		cmd.Env = append(cmd.Env, "GIT_OBJECT_DIRECTORY="+filepath.Join(r.HostGit(), "objects"))
	}
	if c.index {
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+filepath.Join(r.HostGit(), "index"))
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = c.stdout, &said
	if c.stdout == nil {
		cmd.Stdout = &out
	}
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("git %s: %.500s: %w", c.args[0], strings.TrimSpace(said.String()), err)
	}
	return out.String(), err
}

// The repositories that carrel makes beside own.
const (
	in  = "in"
	put = "put"
)

// makeRepositories makes both. Refs, their logs and packed refs of put are links to the host's, so that git locks and writes
// those as ever.
func (r *Repo) makeRepositories(root *os.Root) error {
	head, err := os.ReadFile(filepath.Join(r.HostGit(), "HEAD"))
	if err != nil {
		return err
	}
	for _, dir := range []string{"in/objects/info", "in/objects/pack", "in/refs", "put"} {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"in/HEAD": "ref: refs/heads/none\n", "in/config": config, "in/objects/info/alternates": r.HostGit() + "/objects\n",
		"put/HEAD": string(head), "put/config": config,
	} {
		if err := root.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	links := []string{"put/refs", "put/logs", "put/packed-refs"}
	if _, err := os.Lstat(filepath.Join(r.HostGit(), "shallow")); err == nil {
		links = append(links, "in/shallow", "put/shallow")
	}
	shared, err := filepath.Glob(filepath.Join(r.HostGit(), "sharedindex.*"))
	if err != nil {
		return err
	}
	for _, s := range shared {
		links = append(links, "put/"+filepath.Base(s))
	}
	for _, l := range links {
		if err := root.Symlink(filepath.Join(r.HostGit(), filepath.Base(l)), l); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// program finds git where no writable mount can have put one: PATH may lead into the tree.
func program(writable []string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path, err := exec.LookPath(filepath.Join(dir, "git"))
		if err != nil || !filepath.IsAbs(path) {
			continue
		}
		real, err := filepath.EvalSymlinks(path)
		if err == nil && !slices.ContainsFunc(writable, func(w string) bool { return within(real, w) || within(path, w) }) {
			return real, nil
		}
	}
	return "", exec.ErrNotFound
}

// within reports whether path is dir or lies in it. Both are absolute and without symbolic links.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
