package tools_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/tools"
)

// calls are calls of every tool, with each way that it has.
var calls = []tools.Call{
	{Tool: "read_file", Path: "/etc/hosts"},
	{Tool: "read_file", Path: "/etc/hosts", FirstLine: 2, Lines: 2000},
	{Tool: "list_dir", Path: "/etc"},
	{Tool: "search_files", Path: "/etc", Pattern: "root|admin"},
	{Tool: "search_files", Path: "/etc", Pattern: "x", Name: "*.conf"},
	{Tool: "search_logs", Pattern: "err"},
	{Tool: "search_logs", Pattern: "err", Path: "/var/log/syslog"},
	{Tool: "search_logs", Pattern: "err", Since: "2d", Unit: "ssh.service"},
	{Tool: "search_logs", Pattern: "-p", Path: "/var/log/a"},
	{Tool: "search_files", Path: "/etc", Pattern: "-p+", Name: "-p"},
	{Tool: "get_system_info"},
	{Tool: "journal"},
	{Tool: "journal", Unit: "ssh@a.service", Since: "90m", Lines: 5, Priority: "err"},
	{Tool: "processes"},
	{Tool: "processes", Sort: "memory"},
	{Tool: "processes", Sort: "age"},
	{Tool: "processes", Sort: "pid"},
	{Tool: "sockets"},
	{Tool: "services"},
	{Tool: "services", State: "failed"},
	{Tool: "services", Unit: "cron"},
	{Tool: "packages"},
	{Tool: "packages", Name: "libc*"},
}

func engine(t *testing.T) *rules.Engine {
	t.Helper()
	e, err := rules.New(rules.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func decide(e *rules.Engine, argv []string, p rules.Profile) rules.Decision {
	return e.Decide(rules.Question{Argv: argv, Profile: p, Source: rules.User, Home: "/home/alice", Dir: "/home/alice", Verified: true})
}

// Every tool reads, as the usual policy sees it, on every kind of target: none of them needs a question. One that reads a
// secret does not pass for it.
func TestPolicy(t *testing.T) {
	e := engine(t)
	seen := map[string]bool{}
	for _, c := range calls {
		seen[c.Tool] = true
		if all := c.Problems(); len(all) > 0 {
			t.Errorf("%s: %+v", c.String(), all)
			continue
		}
		for _, p := range []rules.Profile{rules.Host, rules.Remote, rules.Workspace} {
			if d := decide(e, c.Argv(), p); d.Level != rules.Safe || slices.Contains(d.Capabilities, "filesystem.write") {
				t.Errorf("%s on %s: %s, %q, %q", c.String(), p, d.Level, d.Capabilities, d.Reasons)
			}
		}
	}
	for _, name := range tools.Names() {
		if !seen[name] && !tools.Find(name).Written {
			t.Errorf("no call of %s is judged", name)
		}
	}
	for _, path := range []string{"/etc/shadow", "/home/alice/.ssh/id_ed25519", "/srv/app/.env", "/proc/1/environ", "/run/secrets/db"} {
		for _, c := range []tools.Call{{Tool: "read_file", Path: path}, {Tool: "search_logs", Path: path, Pattern: "a"}} {
			if d := decide(e, c.Argv(), rules.Host); d.Level == rules.Safe || !slices.Contains(d.Capabilities, "secret.read") {
				t.Errorf("%s: %s, %q", c.String(), d.Level, d.Capabilities)
			}
		}
	}
}

// run runs a call on this machine, with a directory in front of the PATH.
func run(t *testing.T, c tools.Call, first ...string) (out, errs string, code int) {
	t.Helper()
	if all := c.Problems(); len(all) > 0 {
		t.Fatalf("%s: %+v", c.String(), all)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := c.Argv()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(first, os.Getenv("PATH")), ":"), "LC_ALL=C")
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every tool does on this machine what it says, or says why not.
func TestTools(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir+"/a b/f.conf", "one\ntwo\nthree=3\nfour\n")
	write(t, dir+"/c/other.txt", "three here\n")
	write(t, dir+"/c/with\nline.conf", "three=9\n")
	write(t, dir+"/d/-x", "an -option\n")
	if err := os.Symlink(file, dir+"/c/link.conf"); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		c    tools.Call
		want string
	}{
		{tools.Call{Tool: "read_file", Path: file}, "one\ntwo\nthree=3\nfour\n"},
		{tools.Call{Tool: "read_file", Path: file, FirstLine: 2, Lines: 2}, "two\nthree=3\n"},
		{tools.Call{Tool: "search_files", Path: dir, Pattern: "^thr[e]+=", Name: "*.conf"}, file + ":3:three=3\n"},
		{tools.Call{Tool: "search_files", Path: dir, Pattern: "nothing of it"}, ""},
		{tools.Call{Tool: "search_files", Path: dir, Pattern: "three here"}, dir + "/c/other.txt:1:three here\n"},
		{tools.Call{Tool: "search_logs", Path: file, Pattern: "t(wo|hree)"}, "two\nthree=3\n"},
		{tools.Call{Tool: "search_files", Path: dir, Pattern: "-o+ption", Name: "-x"}, dir + "/d/-x:1:an -option\n"},
	} {
		if out, errs, code := run(t, x.c); out != x.want || errs != "" || code != 0 {
			t.Errorf("%s: %q, %q, %d", x.c.String(), out, errs, code)
		}
	}
	out, _, _ := run(t, tools.Call{Tool: "list_dir", Path: dir + "/c"})
	if !strings.Contains(out, "other.txt") || !strings.Contains(out, "link.conf -> ") {
		t.Errorf("list_dir: %q", out)
	}
	for _, x := range []struct {
		c    tools.Call
		want string
	}{
		{tools.Call{Tool: "read_file", Path: dir}, "use list_dir"},
		{tools.Call{Tool: "read_file", Path: dir + "/none"}, "not there"},
		{tools.Call{Tool: "list_dir", Path: file}, "no directory"},
		{tools.Call{Tool: "search_files", Path: dir + "/none", Pattern: "a"}, "not there"},
		{tools.Call{Tool: "search_logs", Path: dir, Pattern: "a"}, "no regular file"},
	} {
		if out, errs, code := run(t, x.c); out != "" || !strings.Contains(errs, x.want) || code == 0 {
			t.Errorf("%s: %q, %q, %d", x.c.String(), out, errs, code)
		}
	}
	for name, want := range map[string]string{
		"get_system_info": "MemTotal", "processes": "PID", "sockets": "", "services": "", "journal": "", "packages": "",
	} {
		out, errs, _ := run(t, tools.Call{Tool: name})
		if out == "" && errs == "" || !strings.Contains(out, want) {
			t.Errorf("%s: %q, %q", name, out, errs)
		}
	}
}

// What a model gives is never an option or shell text, whatever it looks like.
func TestParametersAreData(t *testing.T) {
	dir := t.TempDir()
	evil := []string{
		"$(touch MARK)", "`touch MARK`", "'; touch MARK; '", `"; touch MARK; "`, "--files-with-matches", "-rf", "&& touch MARK", "| touch MARK",
		"-delete", "-exec touch MARK ;", "$HOME", "--include=*",
	}
	for i, e := range evil {
		evil[i] = strings.ReplaceAll(e, "MARK", dir+"/mark")
	}
	work := write(t, dir+"/w/-delete", "-rf $HOME --files-with-matches\n")
	for _, e := range evil {
		for _, c := range []tools.Call{
			{Tool: "read_file", Path: "/" + strings.Trim(strings.ReplaceAll(e, "//", "/"), "/")},
			{Tool: "search_files", Path: filepath.Dir(work), Pattern: e},
			{Tool: "search_logs", Path: work, Pattern: e},
			{Tool: "search_logs", Pattern: e},
			{Tool: "search_files", Path: filepath.Dir(work), Pattern: "rf", Name: e},
			{Tool: "journal", Unit: e},
			{Tool: "services", Unit: e},
			{Tool: "packages", Name: e},
			{Tool: "search_logs", Pattern: "a", Unit: e},
			{Tool: "journal", Since: e},
			{Tool: "journal", Priority: e},
			{Tool: "processes", Sort: e},
			{Tool: "services", State: e},
		} {
			if len(c.Problems()) == 0 {
				_, _, _ = run(t, c)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Fatalf("%q left %v, %v", e, left, err)
		}
		if _, err := os.Stat(work); err != nil {
			t.Fatalf("%q: %v", e, err)
		}
	}
}

// The bounds are those that the documents say, and each holds.
func TestBounds(t *testing.T) {
	if tools.MaxRounds != 3 || tools.Timeout != 5*time.Second || tools.MaxOutput != 20_000 || tools.MaxTurn != 60_000 ||
		tools.MaxFile != 1<<20 || tools.MaxMatches != 200 || tools.MaxCalls != 8 {
		t.Error("a bound is another one")
	}
	dir := t.TempDir()
	long := write(t, dir+"/long", strings.Repeat("0123456789abcde\n", tools.MaxFile/16)+"behind the first MiB\n")
	last := tools.Call{Tool: "read_file", Path: long, FirstLine: tools.MaxFile/16 - 1, Lines: 2000}
	if out, _, _ := run(t, last); out != "0123456789abcde\n0123456789abcde\n" {
		t.Errorf("read %q", out)
	}
	if out, _, _ := run(t, tools.Call{Tool: "search_files", Path: dir, Pattern: "0123"}); out != "" {
		t.Errorf("a file of more than 1 MiB was searched: %.100q", out)
	}
	write(t, dir+"/long", "the first line is too early\n"+strings.Repeat("0123456789abcde\n", tools.MaxFile/16))
	if out, _, _ := run(t, tools.Call{Tool: "search_logs", Path: long, Pattern: "first"}); out != "" {
		t.Errorf("more than the last MiB was searched: %q", out)
	}
	many := write(t, dir+"/many/a", strings.Repeat("match\n", 300))
	write(t, dir+"/many/b", strings.Repeat("match\n", 300))
	for _, c := range []tools.Call{
		{Tool: "search_files", Path: dir + "/many", Pattern: "mat"}, {Tool: "search_logs", Path: many, Pattern: "mat"},
	} {
		if out, _, _ := run(t, c); strings.Count(out, "\n") != tools.MaxMatches {
			t.Errorf("%s found %d", c.String(), strings.Count(out, "\n"))
		}
	}
}

// A parameter that a tool does not take, that is missing or of another form is named, with what is allowed.
func TestProblems(t *testing.T) {
	for _, x := range []struct {
		c           tools.Call
		param, what string
	}{
		{tools.Call{Tool: "rm"}, "tool", "read_file"},
		{tools.Call{Tool: "read_file"}, "path", "is missing"},
		{tools.Call{Tool: "sockets", Path: "/etc"}, "path", "takes no parameter"},
		{tools.Call{Tool: "list_dir", Path: "/etc", Lines: 4}, "lines", "takes path"},
		{tools.Call{Tool: "read_file", Path: "etc"}, "path", "absolute"},
		{tools.Call{Tool: "read_file", Path: "/etc/../root"}, "path", "without"},
		{tools.Call{Tool: "read_file", Path: "/etc/"}, "path", "absolute"},
		{tools.Call{Tool: "read_file", Path: "/a", Lines: 2001}, "lines", "2000"},
		{tools.Call{Tool: "read_file", Path: "/a", FirstLine: -1}, "first_line", "from 1"},
		{tools.Call{Tool: "search_logs", Pattern: "a", Path: "/a", Unit: "b"}, "unit", "beside path"},
		{tools.Call{Tool: "search_logs", Pattern: "a", Path: "/a", Since: "1h"}, "since", "beside path"},
		{tools.Call{Tool: "journal", Since: "yesterday"}, "since", "30m"},
		{tools.Call{Tool: "journal", Since: "-5m"}, "since", "30m"},
		{tools.Call{Tool: "journal", Since: "0m"}, "since", "30m"},
		{tools.Call{Tool: "journal", Unit: "-x"}, "unit", "name of a unit"},
		{tools.Call{Tool: "packages", Name: "a b"}, "name", "package"},
		{tools.Call{Tool: "packages", Name: "-a"}, "name", "package"},
		{tools.Call{Tool: "search_files", Path: "/a", Pattern: "a\nb"}, "pattern", "regular"},
		{tools.Call{Tool: "search_files", Path: "/a", Pattern: "a", Name: "a/b"}, "name", "without /"},
		{tools.Call{Tool: "runbook"}, "name", "needs it"},
		{tools.Call{Tool: "runbook", Name: "../a"}, "name", "name of a runbook"},
		{tools.Call{Tool: "runbook", Name: "disk", Parameters: []string{"dir"}}, "parameters", "NAME=VALUE"},
		{tools.Call{Tool: "processes", Sort: "best"}, "sort", "memory"},
		{tools.Call{Tool: "services", State: "all", Unit: "a"}, "unit", "beside state"},
	} {
		all := x.c.Problems()
		if len(all) != 1 || all[0].Param != x.param || !strings.Contains(all[0].What+"; "+all[0].Allowed, x.what) {
			t.Errorf("%+v: %+v", x.c, all)
		}
	}
}

// Only what administrators look at, and what a user offers, is read on hosts.
func TestBelow(t *testing.T) {
	for path, want := range map[string]bool{
		"/etc/hosts": true, "/etc": true, "/proc/1/status": true,
		"/etcetera": false, "/": false, "/home/alice/x": false, "/root/.ssh": false,
		"/tmp/x":     false,
		"/var/lib/x": false, "/dev/sda": false, "/work/app/x": true, "/work/application": false, "etc": false, "/etc/../root": false,
	} {
		if err := tools.Below(path, "/work/app"); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Names of tools and what they take are in few words: every request to a model has them.
func TestUsage(t *testing.T) {
	size := 0
	for _, x := range tools.All() {
		size += len(x.Usage())
	}
	first := tools.Find("read_file").Usage()
	if size > 900 || first != "read_file(path,first_line?=1,lines?=200): lines of a text file's first MiB" {
		t.Errorf("%d bytes, %q", size, first)
	}
	for name, want := range map[string]string{"processes": "(sort?=cpu|memory|age|pid)", "journal": "priority?=debug)", "sockets": "()"} {
		if got := tools.Find(name).Usage(); !strings.Contains(got, name+"(") || !strings.Contains(got, want) {
			t.Errorf("%s is used as %q", name, got)
		}
	}
	for _, x := range tools.All() { // so that the first of the words that are listed holds
		for _, p := range x.Params {
			if p.Kind == tools.Choice && len(p.Words) <= 4 && p.Words[0] != p.Default {
				t.Errorf("%s: %s is %q by default, of %q", x.Name, p.Name, p.Default, p.Words)
			}
		}
	}
	if l := tools.Limits(); !strings.Contains(l, "3 rounds") || !strings.Contains(l, "5s a call") || !strings.Contains(l, "200 matches") {
		t.Error(l)
	}
}
