package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// userPrefix begins the names of the users that are made beside carrel's.
const userPrefix = "cbench-"

// users makes and removes users as an administrator does.
type users struct {
	prefix string // of this run alone
	homes  string
	made   *atomic.Int64
}

// newUsers gives this run names of its own. What is left of them is removed at its end.
func newUsers(b *bench) users {
	_, run, _ := strings.Cut(filepath.Base(b.dir), "bench-")
	u := users{prefix: userPrefix + run + "-", homes: filepath.Join(b.dir, "users"), made: new(atomic.Int64)}
	b.later(u.removeAll)
	return u
}

// add makes a user with a home, with default settings except for the path of the home.
func (u users) add() (name string, err error) {
	if err := os.Mkdir(u.homes, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	name = fmt.Sprint(u.prefix, u.made.Add(1))
	return name, tool("useradd", "--create-home", "--base-dir", u.homes, name)
}

func (u users) home(name string) string { return filepath.Join(u.homes, name) }

// remove removes a user and its home.
func (u users) remove(name string) error { return tool("userdel", "--remove", name) }

// removeAll removes what an operation left that did not come to its end.
func (u users) removeAll(context.Context) error {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(passwd)) {
		if name, _, _ := strings.Cut(line, ":"); strings.HasPrefix(name, u.prefix) {
			errs = append(errs, u.remove(name))
		}
	}
	return errors.Join(errs...)
}

// tool runs a program that changes the user database. A Ctrl-C is not for it: it would
// leave its locks behind.
func tool(name string, args ...string) error {
	var stderr bytes.Buffer
	c := exec.CommandContext(context.Background(), name, args...)
	c.Stderr, c.SysProcAttr = &stderr, &syscall.SysProcAttr{Setpgid: true}
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, lastLine(stderr.Bytes()))
	}
	return nil
}

// The files of a home that has seen little use, and the size of each.
const smallFiles, smallSize = 40, 4 << 10

// fillHome makes the files of a small home, for whom the home belongs to.
func fillHome(home string) error {
	var st unix.Stat_t
	if err := unix.Stat(home, &st); err != nil {
		return err
	}
	text := bytes.Repeat([]byte("carrel "), smallSize/7)
	for i := range smallFiles {
		dir := filepath.Join(home, fmt.Sprintf("dir-%d", i%4))
		if err := os.Mkdir(dir, 0o700); err == nil {
			err = os.Lchown(dir, int(st.Uid), int(st.Gid))
			if err != nil {
				return err
			}
		} else if !errors.Is(err, os.ErrExist) {
			return err
		}
		file := filepath.Join(dir, fmt.Sprintf("file-%d", i))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		if err := os.Lchown(file, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	return nil
}
