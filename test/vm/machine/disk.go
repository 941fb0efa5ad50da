package machine

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// userland is the packages whose files make the guest's Debian; the host has all of
// them, because Debian calls them required (procps: important). The libraries they
// link are found.
var userland = []string{
	"base-files", "base-passwd", "bash", "coreutils", "dash", "diffutils", "e2fsprogs", "findutils",
	"grep", "gzip", "hostname", "libc-bin", "libc6", "login", "mount", "passwd", "perl-base",
	"procps", "sed", "tar", "util-linux",
}

// wherePresent are packages that the guest has if the host has them.
var wherePresent = []string{"uidmap", "libsystemd-shared", "systemd", "dpkg"}

// leftOut are directories that no program needs to run here.
var leftOut = []string{
	"/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/",
	"/usr/share/lintian/", "/usr/share/bash-completion/", "/usr/lib/x86_64-linux-gnu/gconv/",
	"/usr/share/bug/",
}

// libraryDirs are where Debian's dynamic linker looks, on amd64.
var libraryDirs = []string{"/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib", "/lib", "/usr/lib/x86_64-linux-gnu/systemd"}

// Tree is the directory that a disk is made from.
type Tree struct{ dir string }

// NewTree puts the userland into dir, which must be empty.
func NewTree(ctx context.Context, dir string) (*Tree, error) {
	t := &Tree{dir: dir}
	// A merged /usr, as Debian has had it since 12.
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(dir, "usr", d), 0o755); err != nil {
			return nil, err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(dir, d)); err != nil {
			return nil, err
		}
	}
	var status strings.Builder // of dpkg
	for i, p := range append(slices.Clone(userland), wherePresent...) {
		list, err := output(ctx, "dpkg-query", "-L", p)
		if err != nil && i >= len(userland) {
			continue
		}
		if err != nil {
			return nil, cannotHave("the guest's userland is copied from this host, which has no package %s: %w", p, err)
		}
		about, err := output(ctx, "dpkg-query", "-s", p)
		if err != nil {
			return nil, err
		}
		status.WriteString(about + "\n")
		for path := range strings.Lines(list) {
			if err := t.copyHost(strings.TrimSpace(path)); err != nil {
				return nil, fmt.Errorf("cannot copy %s of %s: %w", strings.TrimSpace(path), p, err)
			}
		}
	}
	if err := t.Write("var/lib/dpkg/status", []byte(status.String()), 0o644); err != nil {
		return nil, err
	}
	if err := t.configure(); err != nil {
		return nil, err
	}
	if _, err := output(ctx, "ldconfig", "-r", dir); err != nil {
		return nil, fmt.Errorf("cannot make the guest's ld.so.cache: %w", err)
	}
	return t, nil
}

// copyHost copies one path of a package, and the libraries that it needs. What is gone
// from the host, as documentation often is, is left out.
func (t *Tree) copyHost(path string) error {
	for _, l := range leftOut {
		if strings.HasPrefix(path+"/", l) {
			return nil
		}
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	to := filepath.Join(t.dir, path)
	if _, err := os.Lstat(to); err == nil {
		return nil // of a package before, or a directory that is there
	}
	switch {
	case info.IsDir():
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.Mode().IsRegular():
		if err := t.Add(path, path, 0); err != nil {
			return err
		}
		if err := t.libraries(path); err != nil {
			return err
		}
	default:
		return fmt.Errorf("it is a %s", info.Mode().Type())
	}
	st := info.Sys().(*syscall.Stat_t)
	// The owner first: changing it clears the set-id bits.
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return os.Chmod(to, info.Mode())
}

// libraries copies what the program or library at path links.
func (t *Tree) libraries(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return nil // not an ELF file
	}
	defer f.Close()
	needs, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, n := range needs {
		if err := t.library(n); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) library(name string) error {
	for _, d := range libraryDirs {
		if _, err := os.Lstat(filepath.Join(t.dir, d, name)); err == nil {
			return nil
		}
	}
	for _, d := range libraryDirs {
		path := filepath.Join(d, name)
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		if err := t.copyHost(real); err != nil {
			return err
		}
		return t.copyHost(path)
	}
	return fmt.Errorf("cannot find the library %s in %v", name, libraryDirs)
}

// configure writes what a Debian installer writes.
func (t *Tree) configure() error {
	var shadow, gshadow strings.Builder
	users, err := os.ReadFile(filepath.Join(t.dir, "usr/share/base-passwd/passwd.master"))
	if err != nil {
		return err
	}
	groups, err := os.ReadFile(filepath.Join(t.dir, "usr/share/base-passwd/group.master"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(users)) {
		name, _, _ := strings.Cut(line, ":")
		fmt.Fprintf(&shadow, "%s:*:20000:0:99999:7:::\n", name)
	}
	for line := range strings.Lines(string(groups)) {
		name, _, _ := strings.Cut(line, ":")
		fmt.Fprintf(&gshadow, "%s:*::\n", name)
	}
	for _, f := range []struct {
		path string
		mode fs.FileMode
		text string
	}{
		{"etc/passwd", 0o644, strings.ReplaceAll(string(users), ":*:", ":x:")},
		{"etc/group", 0o644, strings.ReplaceAll(string(groups), ":*:", ":x:")},
		{"etc/shadow", 0o640, shadow.String()},
		{"etc/gshadow", 0o640, gshadow.String()},
		{"etc/subuid", 0o644, ""},
		{"etc/subgid", 0o644, ""},
		{"etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nshadow: files\ngshadow: files\nhosts: files\n"},
		{"etc/hostname", 0o644, "guest\n"},
		{"etc/hosts", 0o644, "127.0.0.1 localhost\n127.0.1.1 guest\n"},
		{"etc/resolv.conf", 0o644, ""},
		{"etc/machine-id", 0o444, ""}, // init fills it
	} {
		if err := t.Write(f.path, []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	for _, d := range []string{
		"proc", "sys", "dev", "run", "tmp", "opt", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers",
	} {
		if err := os.MkdirAll(filepath.Join(t.dir, d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Add copies the host's file from into the tree, at the path to. A mode of 0 keeps that
// of the file.
func (t *Tree) Add(to, from string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if mode == 0 {
		info, err := in.Stat()
		if err != nil {
			return err
		}
		mode = info.Mode().Perm()
	}
	path := filepath.Join(t.dir, to)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Chmod(path, mode))
}

// AddDir copies the directory from into the tree, if there is one.
func (t *Tree) AddDir(to, from string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return t.Add(filepath.Join(to, rel), path, 0)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// AddUnpacked copies the files and links of unpacked packages into the tree, and the libraries that they need.
func (t *Tree) AddUnpacked(ctx context.Context, dir string) error {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		to := strings.TrimPrefix(path, dir)
		switch {
		case err != nil || d.IsDir():
			return err
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(t.dir, to)), 0o755); err != nil {
				return err
			}
			return os.Symlink(target, filepath.Join(t.dir, to)) //nolint:gosec // the tree is root's alone
		}
		files = append(files, path)
		return t.Add(to, path, 0)
	})
	for _, path := range files { // when all are there
		_ = t.libraries(path) // a program whose library the host lacks does not run there
	}
	if err == nil {
		_, err = output(ctx, "ldconfig", "-r", t.dir)
	}
	if err != nil {
		return fmt.Errorf("cannot add what is unpacked in %s: %w", dir, err)
	}
	return nil
}

// Write puts a file with the given text into the tree.
func (t *Tree) Write(to string, text []byte, mode fs.FileMode) error {
	path := filepath.Join(t.dir, to)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path, text, mode), os.Chmod(path, mode))
}

// Disk makes an ext4 image of the tree at path, sparse and with room to write.
func (t *Tree) Disk(ctx context.Context, path string) error {
	const size = "2G"
	cmd := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-F", "-L", "carrel-vm",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0", "-d", t.dir, path, size)
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make the guest's disk: %w: %s", err, strings.TrimSpace(string(b)))
	}
	return nil
}
