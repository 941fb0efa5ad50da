package gitdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// IgnoreFile is the name of the file with a directory's patterns.
const IgnoreFile = ".gitignore"

// ignoreTime bounds a question to git about many paths.
const ignoreTime = 30 * time.Second

// Ignored reports which of paths git ignores in a repository of the host, work: by patterns, the texts of the files .gitignore by
// their directory ("" is the top), by info/exclude, and by the file of the user. What the index has is not ignored. Directories are
// paths that end with a slash. at is a directory that does not exist yet. Without git nothing is ignored.
func Ignored(ctx context.Context, work, at string, patterns map[string][]byte, paths []string) (ignored map[string]bool, err error) {
	git, err := program([]string{work})
	if err != nil || len(paths) == 0 {
		return nil, nil //nolint:nilerr // see above
	}
	ctx, cancel := context.WithTimeout(ctx, ignoreTime)
	defer cancel()
	defer func() { err = errors.Join(err, removal.Path(context.WithoutCancel(ctx), at)) }()
	if err := scratch(at, work, patterns); err != nil {
		return nil, err
	}
	args := []string{
		"--git-dir=" + filepath.Join(at, "repo"), "--work-tree=" + filepath.Join(at, "tree"),
		"-c", "core.excludesFile=" + excludes(ctx, git, work), "check-ignore", "-z", "--stdin",
	}
	ask := func(args []string, more ...string) ([]byte, error) {
		c := exec.CommandContext(ctx, git, args...)
		c.Dir, c.Env, c.WaitDelay = "/", append(slices.Clone(plain), more...), time.Second
		c.Stdin = strings.NewReader(strings.Join(asked(paths), "\x00") + "\x00")
		var out, said bytes.Buffer
		c.Stdout, c.Stderr = &out, &said
		err := c.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
			return nil, nil // none is
		}
		if err != nil {
			err = fmt.Errorf("git check-ignore: %.200s: %w", strings.TrimSpace(said.String()), err)
		}
		return out.Bytes(), err
	}
	out, err := ask(args, "GIT_INDEX_FILE="+filepath.Join(work, ".git", "index"))
	if err != nil { // an index that is split, or of a kind that this repository does not have
		if out, err = ask(append(args, "--no-index")); err != nil {
			return nil, err
		}
	}
	ignored = map[string]bool{}
	for p := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if dir, child := strings.CutSuffix(p, "/"+probe); child {
			p = dir + "/"
		}
		ignored[p] = true
	}
	return ignored, nil
}

// probe is a name that a directory is asked about with: git would have to see the directory itself.
const probe = "carrel-probe"

// asked are the paths as git is asked about them.
func asked(paths []string) (all []string) {
	for _, p := range paths {
		if strings.HasSuffix(p, "/") {
			p += probe
		}
		all = append(all, p)
	}
	return all
}

// scratch makes a repository of carrel's own, and a work tree with the patterns alone.
func scratch(at, work string, patterns map[string][]byte) error {
	for _, dir := range []string{"repo/objects", "repo/refs", "repo/info", "tree"} {
		if err := os.MkdirAll(filepath.Join(at, dir), 0o700); err != nil {
			return err
		}
	}
	exclude, err := os.ReadFile(filepath.Join(work, ".git", "info", "exclude"))
	if err != nil {
		exclude = nil // there is none
	}
	bare := strings.Replace(config, "bare = true", "bare = false", 1)
	for name, text := range map[string][]byte{
		"repo/HEAD": []byte("ref: refs/heads/none\n"), "repo/config": []byte(bare), "repo/info/exclude": exclude,
	} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o600); err != nil {
			return err
		}
	}
	tree, err := os.OpenRoot(filepath.Join(at, "tree"))
	if err != nil {
		return err
	}
	defer tree.Close()
	for dir, text := range patterns {
		if dir != "" {
			if err := tree.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
		if err := tree.WriteFile(filepath.Join(dir, IgnoreFile), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// excludes is the file of the user's own patterns, by the host's configuration for a directory.
func excludes(ctx context.Context, git, work string) string {
	out, err := exec.CommandContext(ctx, git, "-C", work, "config", "--path", "--get", "core.excludesFile").Output()
	if path := strings.TrimSuffix(string(out), "\n"); err == nil && filepath.IsAbs(path) {
		return path
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return os.DevNull
	}
	return filepath.Join(dir, "git", "ignore")
}
