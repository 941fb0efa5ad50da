package rootless_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// opensBelow is what carrel's programs on the host open below a writable mount, but for directories, for the host's .git, which commands
// cannot write, and for descriptors that read nothing. $ stands for any letters and digits.
var opensBelow = []string{
	".new-$", // --report, a new file that is put into its place
	"inc",    // a configuration that the host's includes, read by git before the run, and read-only in it
}

// Of what a command could write, carrel opens what is listed, and starts nothing.
func TestPathsBelowMounts(t *testing.T) {
	if !has("strace") || !has("git") {
		t.Skip("skipped: needs strace and git: apt-get install strace git")
	}
	u := newUser(t)
	u.sh("cd project; git checkout -q -b main; git config include.path ../inc; touch inc; printf '#!/bin/sh\\ncat' > clean; chmod +x clean; " +
		"git config filter.x.clean ./clean; echo 'f filter=x' > .gitattributes; echo 1 > f; git add -A; " +
		"git -c user.name=a -c user.email=a@b commit -qm one; mkdir ../tr sub; git init -q sub/repo")
	const script = `export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; echo 2 > f; git commit -qam two; git tag v1;
		git checkout -q -b side; echo 3 > f; git commit -qam three; mkfifo wait; ln -s /etc/passwd out; echo x > .npmrc; mkdir -p .yarn/plugins; echo y > .yarn/plugins/z.cjs;
		echo z > main.go; cp /bin/true git; mkdir .cargo; echo a > .cargo/config.toml`
	r := finish(u.command("project", "strace", "-ff", "-y", "-o", u.home+"/tr/t", "-e", "trace=open,openat,openat2,creat,execve,execveat,clone,clone3,fork,vfork",
		filepath.Join(programs, "carrel"), "run", "--here", "--report", "proof.json", "--", "sh", "-c", script), "")
	if r.code != 0 || !strings.Contains(r.err, "main moved from") || !strings.Contains(r.err, "held back") {
		t.Fatalf("%+v", r)
	}
	calls := map[string][]string{}
	files, err := filepath.Glob(u.home + "/tr/t.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		calls[strings.TrimPrefix(filepath.Ext(f), ".")] = strings.Split(string(b), "\n")
	}
	born := regexp.MustCompile(`^(?:clone3?|v?fork)\(.* = (\d+)`)
	// carrel's own processes are those that descend from the first and not from an executor, whose children have ids of another namespace.
	outside, executors := map[string]bool{}, 0
	var follow func(pid string)
	follow = func(pid string) {
		if slices.ContainsFunc(calls[pid], func(l string) bool { return strings.HasPrefix(l, "exec") && strings.Contains(l, `["carrel-executor"`) }) {
			executors++
			return
		}
		outside[pid] = true
		for _, line := range calls[pid] {
			if m := born.FindStringSubmatch(line); m != nil && !outside[m[1]] {
				follow(m[1])
			}
		}
	}
	for pid, lines := range calls {
		if strings.HasPrefix(lines[0], `execve("`+filepath.Join(programs, "carrel")+`", `) {
			follow(pid)
		}
	}
	if executors != 1 || len(outside) < 5 || len(outside) == len(calls)-1 {
		t.Fatalf("of %d processes %d are carrel's and %d executors", len(calls), len(outside), executors)
	}
	opened := regexp.MustCompile(`^(?:open|openat|openat2|creat|execve|execveat)\((?:AT_FDCWD(?:<([^>]*)>)?, |\d+<([^>]*)>, )?"([^"]*)"(.*)$`)
	digits := regexp.MustCompile(`\$`)
	var seen []string
	for pid, lines := range calls {
		for _, line := range lines {
			m := opened.FindStringSubmatch(line)
			if !outside[pid] || m == nil || !strings.HasPrefix(line, "exec") && (strings.Contains(m[4], "O_PATH") || strings.Contains(m[4], "O_DIRECTORY")) {
				continue
			}
			path := m[3]
			if !filepath.IsAbs(path) {
				path = filepath.Join(m[1]+m[2], path)
			}
			rel, err := filepath.Rel(u.home+"/project", path)
			if err != nil || strings.HasPrefix(rel, "..") || rel == "." || rel == ".git" || strings.HasPrefix(rel, ".git/") {
				continue
			}
			if !slices.ContainsFunc(opensBelow, func(p string) bool {
				return regexp.MustCompile("^" + digits.ReplaceAllString(strings.ReplaceAll(p, ".", `\.`), "[A-Za-z0-9]+") + "$").MatchString(rel)
			}) {
				t.Errorf("a program of carrel's opens %s: %s", rel, line)
			}
			seen = append(seen, rel)
		}
	}
	if !slices.Contains(seen, "inc") {
		t.Errorf("what is opened is not seen: %q", seen)
	}
}
