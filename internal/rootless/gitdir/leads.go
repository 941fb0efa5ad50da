package gitdir

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Lead is a place to which the host's git is led by its configuration, or by what is .git in a directory.
type Lead struct {
	// Path is absolute and clean. Links are not resolved, and there need be nothing.
	Path string
	// By is the key or the file that leads there, for people.
	By string
	// Absent says what to put there if there is nothing: an empty file, at which git does not stop as at a directory, an
	// empty directory, or nothing, as the text may be no path.
	Absent Absent
}

// Absent is what holds a place where there is nothing.
type Absent int

// The ways to hold one.
const (
	Nothing Absent = iota
	Directory
	File
)

// leadTime bounds the question to git: a file that its configuration includes may be a FIFO.
const leadTime = 5 * time.Second

// maxConfig is how much of a configuration is read, in bytes.
const maxConfig = 4 << 20

// Leads asks the host's git, before a run, where its configuration leads for a directory. writable are the
// directories of the host that commands can write.
func Leads(ctx context.Context, work string, writable []string) ([]Lead, error) {
	git, err := program(writable)
	if err != nil {
		return nil, nil //nolint:nilerr // nobody's git is led anywhere
	}
	ctx, cancel := context.WithTimeout(ctx, leadTime)
	defer cancel()
	c := exec.CommandContext(ctx, git, "-C", work, "config", "--list", "--show-origin", "-z", "--includes")
	c.WaitDelay = time.Second
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("git config: %.200s: %w", strings.TrimSpace(said.String()), err)
	}
	if len(out) > maxConfig {
		return nil, fmt.Errorf("git config: it has more than %d bytes", maxConfig)
	}
	top := Top(work)
	var all []Lead
	for entry := range entries(string(out)) {
		all = append(all, entry.leads(top)...)
	}
	return all, nil
}

// Top is the directory of the work tree that work lies in, or work itself.
func Top(work string) string {
	for dir := work; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return work
		}
	}
}

// entry is a setting and the file that has it, "" if it is no file.
type entry struct{ origin, key, value string }

// entries parses the output of git config --list --show-origin -z: origin NUL key LF value NUL (git-config(1)).
func entries(out string) func(yield func(entry) bool) {
	return func(yield func(entry) bool) {
		for out != "" {
			var origin, setting string
			origin, out, _ = strings.Cut(out, "\x00")
			setting, out, _ = strings.Cut(out, "\x00")
			key, value, _ := strings.Cut(setting, "\n")
			file, ok := strings.CutPrefix(origin, "file:")
			if !ok {
				file = ""
			}
			if !yield(entry{file, key, value}) {
				return
			}
		}
	}
}

// meaning says what the value of a key is.
type meaning int

// other: nothing is known of it. A value is a path of a file or directory, a file that is included, the text of a command, or an
// address, which may be a path.
const (
	other meaning = iota
	aPath
	included
	command
	address
)

// meanings lists keys of git 2.51 (git-config(1)) and git-lfs 3.7 as git prints them, with * for any part. The
// first that matches counts.
var meanings = []struct {
	pattern string
	is      meaning
}{
	{"include.path", included},
	{"includeif.*.path", included},
	{"core.hookspath", aPath},
	{"core.attributesfile", aPath},
	{"core.excludesfile", aPath},
	{"commit.template", aPath},
	{"init.templatedir", aPath},
	{"gpg.ssh.allowedsignersfile", aPath},
	{"gpg.ssh.revocationfile", aPath},
	{"mailmap.file", aPath},
	{"blame.ignorerevsfile", aPath},
	{"user.signingkey", aPath},
	{"http.*", address},
	{"remote.*.url", address},
	{"remote.*.pushurl", address},
	{"url.*.*insteadof", other},
	{"alias.*", command},
	{"core.fsmonitor", command},
	{"core.sshcommand", command},
	{"core.editor", command},
	{"core.pager", command},
	{"core.askpass", command},
	{"core.gitproxy", command},
	{"core.alternaterefscommand", command},
	{"sequence.editor", command},
	{"diff.external", command},
	{"diff.*.command", command},
	{"diff.*.textconv", command},
	{"filter.*.clean", command},
	{"filter.*.smudge", command},
	{"filter.*.process", command},
	{"merge.*.driver", command},
	{"gpg.program", command},
	{"gpg.*.program", command},
	{"gpg.ssh.defaultkeycommand", command},
	{"credential.helper", command},
	{"credential.*.helper", command},
	{"hook.*.command", command},
	{"trailer.*.command", command},
	{"trailer.*.cmd", command},
	{"pager.*", command},
	{"interactive.difffilter", command},
	{"uploadpack.packobjectshook", command},
	{"remote.*.uploadpack", command},
	{"remote.*.receivepack", command},
	{"*tool.*.cmd", command},
	{"*tool.*.path", command},
	{"man.*.cmd", command},
	{"man.*.path", command},
	{"browser.*.cmd", command},
	{"browser.*.path", command},
	{"sendemail.*cmd", command},
	{"sendemail.smtpserver", command},
	{"imap.tunnel", command},
	{"lfs.customtransfer.*.path", command},
	{"lfs.extension.*", command},
}

func meaningOf(key string) meaning {
	// A subsection may have slashes, which * of package path does not match.
	key = strings.ReplaceAll(strings.ToLower(key), "/", "\x01")
	for _, m := range meanings {
		if ok, err := path.Match(m.pattern, key); err == nil && ok {
			return m.is
		}
	}
	return other
}

// leads are the places that an entry leads to. top is where git runs programs and finds relative paths.
func (e entry) leads(top string) (all []Lead) {
	origin := e.origin
	if origin != "" && !filepath.IsAbs(origin) {
		origin = filepath.Join(top, origin)
	}
	if origin != "" {
		all = append(all, Lead{filepath.Clean(origin), "its configuration", Nothing})
	}
	add := func(text, base string, absent Absent) {
		if p, ok := absolute(text, base); ok && (absent != Nothing || exists(p)) {
			all = append(all, Lead{p, e.key, absent})
		}
	}
	switch meaningOf(e.key) {
	case included:
		add(e.value, filepath.Dir(origin), File)
	case aPath:
		add(e.value, top, Directory)
	case address:
		add(strings.TrimPrefix(e.value, "file://"), top, Nothing)
	case command:
		for i, word := range words(e.value) {
			switch slash := strings.Contains(word, "/"); {
			case slash && (i == 0 || anchored(word)):
				add(word, top, Directory)
			case slash || i > 0: // the first word without a slash is looked up in PATH
				add(word, top, Nothing)
			}
		}
	case other:
		for _, word := range words(e.value) {
			if anchored(word) {
				add(word, top, Nothing)
			}
		}
	}
	return all
}

// anchored reports whether a word is written as a path and as nothing else.
func anchored(word string) bool {
	return strings.HasPrefix(word, "/") || strings.HasPrefix(word, "~/") || strings.HasPrefix(word, "./") || strings.HasPrefix(word, "../")
}

// words are the parts of the text of a command that may be paths.
func words(text string) []string {
	return strings.FieldsFunc(strings.TrimPrefix(text, "!"), func(r rune) bool { return strings.ContainsRune(" \t\n'\"`;&|<>(){}=,", r) })
}

// absolute is a path of a configuration as one of the host.
func absolute(text, base string) (string, bool) {
	home, err := os.UserHomeDir()
	for _, prefix := range []string{"~/", "$HOME/", "${HOME}/"} {
		if rest, ok := strings.CutPrefix(text, prefix); ok && err == nil {
			text = home + "/" + rest
		}
	}
	switch {
	case text == "" || strings.HasPrefix(text, "~") || strings.ContainsRune(text, 0):
		return "", false
	case filepath.IsAbs(text):
		return filepath.Clean(text), true
	case base == "":
		return "", false
	}
	return filepath.Join(base, text), true
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Followed is a .git, if there is one, with what git is led to by it: a link's target, or the directory that a file names, and the
// common one of that.
func Followed(at string) []Lead {
	if !exists(at) {
		return nil
	}
	all := []Lead{{Path: at, By: "git"}}
	dir, err := filepath.EvalSymlinks(at)
	if err != nil {
		return all
	}
	if fi, err := os.Lstat(dir); err == nil && fi.Mode().IsRegular() {
		text, err := firstLine(dir)
		name, ok := strings.CutPrefix(text, "gitdir: ")
		if err != nil || !ok {
			return all
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(dir), name)
		}
		dir = name
	}
	all = append(all, Lead{Path: filepath.Clean(dir), By: at})
	if common, err := firstLine(filepath.Join(dir, "commondir")); err == nil && common != "" {
		if !filepath.IsAbs(common) {
			common = filepath.Join(dir, common)
		}
		all = append(all, Lead{Path: filepath.Clean(common), By: at})
	}
	return all
}

// firstLine reads the first line of a small regular file.
func firstLine(path string) (string, error) {
	fi, err := os.Lstat(path)
	if err != nil || !fi.Mode().IsRegular() {
		return "", errors.Join(err, fs.ErrInvalid)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, maxRefBytes).ReadSlice('\n')
	if len(line) > 0 {
		err = nil
	}
	return strings.TrimRight(string(line), "\r\n"), err
}
