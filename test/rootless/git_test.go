package rootless_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is committed inside is committed on the host, and git does inside what it does outside.
func TestGitInside(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; cd ~/project; "
	sh := func(script, want string) {
		t.Helper()
		if r := u.sh(strings.Replace(as, "~", u.home, 1) + script); r.code != 0 || strings.TrimSpace(r.out) != want {
			t.Errorf("on the host, %s: %+v, want %q", script, r, want)
		}
	}
	// said is what carrel says at the end, a part each.
	in := func(script, want string, said ...string) {
		t.Helper()
		r := u.inside(as[:strings.Index(as, "cd ")] + script)
		if r.code != 0 || strings.TrimSpace(r.out) != want || len(said) == 0 && r.err != "" || strings.Count(r.err, "\n") > len(said) {
			t.Errorf("inside, %s: %+v, want %q", script, r, want)
		}
		for _, s := range said {
			if !strings.Contains(r.err, s) {
				t.Errorf("inside, %s: it does not say %q: %q", script, s, r.err)
			}
		}
	}
	sh("git checkout -q -b main; echo 1 > f; echo 1 > g; git add f g; git commit -qm one; git gc -q", "")
	in("git status --short; echo 2 > f; git commit -qam two; git log --format=%s", "two\none", "project: main moved from ")
	sh("git log --format=%s; git status --short; git reflog -1 --format=%gs; ls -A .git | grep -c carrel; git fsck", "two\none\ncarrel run\n0")
	in("git checkout -qb side; echo 3 > h; git add h; git commit -qm three; git checkout -q main; echo 4 > g; git commit -qam four; "+
		"git merge -q --no-edit side; git tag v1; git tag -am v2 v2; git log --format=%s -1; git worktree list | wc -l", "Merge branch 'side'\n1",
		", side is new at ", "not taken over: tags/v1, tags/v2;")
	sh("git status --short; git branch --format='%(refname:short)'; git tag; git log --oneline | wc -l; git for-each-ref refs/carrel | wc -l", "main\nside\n5\n2")
	// A branch that was checked out inside moves, and the host stays on its own until it is told.
	in("git checkout -q side; echo 5 > h; git commit -qam five; git rebase -q main; git log --format=%s -2 | head -1", "five",
		"side moved from ", "git symbolic-ref HEAD refs/heads/side && git reset -q switches too")
	sh("git rev-parse --abbrev-ref HEAD; git symbolic-ref HEAD refs/heads/side && git reset -q; git status --short; "+
		"git merge-base --is-ancestor main side && echo yes; git checkout -q main", "main\nyes")
	in("git gc -q 2>/dev/null && git prune; echo 6 > f; git stash -q; git stash list | wc -l; git checkout -q HEAD~1 2>/dev/null", "1", "not taken over: HEAD, stash;")
	sh("git branch --format='%(refname)'; git stash list --format=%gd; git rev-parse --abbrev-ref HEAD; git checkout -qf main; "+
		"git for-each-ref --format='%(refname)' refs/carrel | sed 's,.*run-[0-9a-f]*/,,' | sort", "refs/heads/main\nrefs/heads/side\nmain\nHEAD\nstash\ntags/v1\ntags/v2")
	// What is removed inside stays on the host, and the person hears of it.
	for _, remove := range []string{"git branch -q -D side", "rm -r .git 2>/dev/null; true", "rm -r .git/refs .git/packed-refs .git/logs"} {
		if r := u.inside(remove); r.code != 0 || !strings.Contains(r.err, "removed inside stay here") && !strings.Contains(r.err, "no repository any more") {
			t.Errorf("inside, %s: %+v", remove, r)
		}
		sh("git branch --format='%(refname)'; git log --format=%s -1; git fsck --no-dangling", "refs/heads/main\nrefs/heads/side\nMerge branch 'side'")
	}
	// What a person has staged stays staged.
	sh("git for-each-ref --format='delete %(refname)' refs/carrel | git update-ref --stdin; echo staged > g; git add g; echo more > new", "")
	in("git stash -q; echo 7 > f; git commit -qam seven; git stash pop -q --index", "", "main moved from ")
	sh("git status --short; git log -1 --format=%s; git for-each-ref refs/carrel", "M  g\n?? new\nseven")
	if got := u.sh("ls -A .local/state/carrel/git .local/state/carrel/runs").out; got != ".local/state/carrel/git:\n\n.local/state/carrel/runs:\n.lock\n" {
		t.Errorf("left: %q", got)
	}
}

// What a command does to refs that a person trusts by their names stays below refs/carrel, and is named.
func TestGitTrust(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	const evil = "echo evil > f; git commit -qam evil; "
	for name, c := range map[string]struct {
		script string
		// apart is the name below refs/carrel/RUN, or that of a branch that is taken.
		apart, taken string
	}{
		"a new branch":                        {script: evil + "git branch topic", taken: "topic"},
		"a new tag":                           {script: evil + "git tag v2", apart: "tags/v2"},
		"a tag that is moved":                 {script: evil + "git tag -f v1", apart: "tags/v1"},
		"a tag that is deleted and made":      {script: evil + "git tag -d v1; git tag -am v1 v1", apart: "tags/v1"},
		"a branch that was not checked out":   {script: evil + "git branch -f release HEAD", apart: "heads/release"},
		"the same by a push":                  {script: evil + "git push -q . HEAD:release", apart: "heads/release"},
		"a branch like a tag":                 {script: evil + "git branch v1", apart: "heads/v1"},
		"a branch like a remote":              {script: evil + "git branch origin", apart: "heads/origin"},
		"a branch below a remote":             {script: evil + "git branch origin/main", apart: "heads/origin/main"},
		"a branch that only the remote has":   {script: evil + "git branch --no-track feature", apart: "heads/feature"},
		"a branch like an abbreviated commit": {script: evil + "git branch $(git rev-parse --short HEAD~1)", apart: "heads/"},
		"a branch like git describe":          {script: evil + "git branch v1-0-g$(git rev-parse --short HEAD~1)", apart: "heads/v1-0-g"},
		"a branch like a namespace":           {script: evil + "git branch tags/v1", apart: "heads/tags/v1"},
		"a branch like the stash":             {script: evil + "git branch stash", apart: "heads/stash"},
		"a branch like a file of git":         {script: evil + "git branch config", apart: "heads/config"},
		"a branch like what git keeps":        {script: evil + "git update-ref refs/heads/FETCH_HEAD HEAD", apart: "heads/FETCH_HEAD"},
		"a branch in other letters":           {script: evil + "git branch Release", apart: "heads/Release"},
		"notes":                               {script: evil + "git notes add -m evil HEAD~1", apart: "notes/commits"},
		"a stash":                             {script: "echo evil > f; git stash -q", apart: "stash"},
		"another HEAD":                        {script: "git checkout -q release", apart: "-"},
		"no branch":                           {script: "git checkout -q --detach; " + evil, apart: "HEAD"},
	} {
		t.Run(name, func(t *testing.T) {
			u.t = t
			u.sh(as + "rm -rf project origin.git; git init -q -b main project; cd project; echo 1 > f; git add f; git commit -qm one; git tag v1; git branch release; " +
				"git branch feature; git init -q --bare ../origin.git; git remote add origin ../origin.git; git push -q origin main feature; git branch -q -D feature")
			const refs = "git -C project for-each-ref --format='%(refname) %(objectname)' | grep -v refs/carrel; cat project/.git/HEAD"
			before := strings.Split(u.sh(refs).out, "\n")
			r := u.inside(as + c.script)
			if r.code != 0 {
				t.Fatalf("inside: %+v", r)
			}
			after := strings.Split(u.sh(refs).out, "\n")
			var changed []string
			for _, line := range after {
				ref, _, _ := strings.Cut(line, " ")
				if !slices.Contains(before, line) && ref != "refs/heads/main" && ref != "refs/heads/"+c.taken {
					changed = append(changed, ref)
				}
			}
			if len(changed) > 0 {
				t.Errorf("it changed %q: %s", changed, r.err)
			}
			if c.taken != "" && (!strings.Contains(r.err, c.taken+" is new at") || !strings.Contains(strings.Join(after, "\n"), "refs/heads/"+c.taken+" ")) {
				t.Errorf("%s is not taken: %s", c.taken, r.err)
			}
			if c.apart == "-" {
				if !strings.Contains(r.err, "main is still checked out here") {
					t.Errorf("it does not say so: %q", r.err)
				}
				return
			}
			if c.apart == "" {
				return
			}
			kept := u.sh("git -C project for-each-ref --format='%(refname)' refs/carrel").out
			if !strings.Contains(kept, "/"+c.apart) || !strings.Contains(r.err, strings.TrimPrefix(c.apart, "heads/")) || !strings.Contains(r.err, "not taken over") {
				t.Errorf("%s is not kept and named: %q, %q", c.apart, kept, r.err)
			}
		})
	}
	u.t = t
}

// What the host's configuration takes from the tree is not obeyed by carrel's own git when a run ends. Nobody does anything on the
// host: a mark is there already when the run has ended.
func TestGitOfCarrelObeysNoTree(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	const commit = "; echo 2 > f; git commit -qam two; git checkout -q -b b; echo 3 > f; git commit -qam three; git checkout -q main; git merge -q b; git tag t"
	evil := u.home + "/evil"
	for name, c := range map[string]struct{ host, inside string }{
		"an included file with insteadOf": {
			"git config include.path ../inc; touch inc; git add inc",
			"git config -f inc core.sshCommand EVIL; git config -f inc url.ssh://evil/.insteadOf /; git config -f inc protocol.allow always",
		},
		"an included file with fsmonitor": {"git config include.path ../inc; touch inc; git add inc", "git config -f inc core.fsmonitor 'EVIL; true'"},
		"an included file that is absent": {"git config include.path ../inc", "git config -f inc core.fsmonitor 'EVIL; true'; git config -f inc filter.x.clean 'EVIL; cat'; echo '* filter=x' > .gitattributes"},
		"a filter that lies in the tree": {
			"git config filter.x.clean ./clean; printf '#!/bin/sh\ncat' > clean; chmod +x clean; echo 'f filter=x' > .gitattributes; git add clean .gitattributes",
			"printf '#!/bin/sh\ntouch HOST/owned\ncat' > clean; rm -f .git/index; git read-tree HEAD",
		},
		"hooks that lie in the tree": {
			"git config core.hooksPath .githooks; mkdir .githooks",
			"for h in reference-transaction post-index-change post-checkout; do echo 'EVIL 2>/dev/null; exit 0' > .githooks/$h; chmod +x .githooks/$h; done",
		},
		"a git that lies in the tree":     {"mkdir bin; cp $(command -v git) bin/git", "printf '#!/bin/sh\ntouch HOST/owned\nexec /usr/bin/git \"$@\"' > bin/git"},
		"a library that lies in the tree": {"mkdir lib", "printf x > lib/libz.so.1; printf x > lib/libpcre2-8.so.0"},
	} {
		t.Run(name, func(t *testing.T) {
			u.t = t
			fill := strings.NewReplacer("EVIL", evil, "HOST", u.home).Replace
			u.sh("printf '#!/bin/sh\ntouch " + u.home + "/owned\n' > evil; chmod +x evil; rm -rf project owned; " + as +
				"git init -q -b main project; cd project; echo 1 > f; git add f; " + fill(c.host) + "; git commit -qm one; rm -f ../owned")
			cmd := u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "--", "sh", "-c", as+fill(c.inside)+commit)
			cmd.Env = append(slices.Clone(cmd.Env), "PATH="+u.home+"/project/bin:"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+u.home+"/project/lib")
			r := finish(cmd, "")
			if r.code != 0 {
				t.Fatalf("inside: %+v", r)
			}
			if got := u.sh("ls owned; git -C project log -1 --format=%s main").out; got != "three\n" {
				t.Errorf("left, and taken over: %q; %s", got, r.err)
			}
		})
	}
	u.t = t
}

// Where the host's configuration, or what is .git, leads into the tree, commands write nothing that the host's git obeys.
func TestGitLeads(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	const actions = `export EDITOR=true; for c in status diff "log -p -1" "add -A" "commit -qm host --allow-empty" "checkout -q -b new" "merge -q --no-ff side -m m" ` +
		`"fetch -q origin" "push -q origin HEAD:refs/heads/pushed" lg "verify-commit HEAD"; do timeout 5 git $c; done; (cd sub && git status; git commit -qm sub --allow-empty)`
	const program = "mkdir -p tools; printf '#!/bin/sh\ncat' > tools/p; chmod +x tools/p; "
	const hook = "for h in pre-commit post-commit post-checkout reference-transaction; do printf '#!/bin/sh\ntouch HOST/owned\n' > H/$h; chmod +x H/$h; done"
	const turned = "printf '#!/bin/sh\ntouch HOST/owned\ncat' > tools/p; chmod +x tools/p; echo 2 > f"
	for name, c := range map[string]struct {
		// host prepares the repository, inside plants.
		host, inside string
	}{
		"hooks in the tree":              {"git config core.hooksPath .githooks; mkdir .githooks; touch .githooks/x", strings.ReplaceAll(hook, "H/", ".githooks/")},
		"hooks in the tree, all anew":    {"git config core.hooksPath .githooks; mkdir .githooks; touch .githooks/x", "mv .githooks g; mkdir .githooks; " + strings.ReplaceAll(hook, "H/", ".githooks/")},
		"hooks that are absent":          {"git config core.hooksPath .husky/_", "mkdir -p .husky/_; " + strings.ReplaceAll(hook, "H/", ".husky/_/")},
		"hooks that are absent, deep":    {"git config core.hooksPath a/b/c; mkdir -p a/b; touch a/b/x", "mv a z; mkdir -p a/b/c; " + strings.ReplaceAll(hook, "H/", "a/b/c/")},
		"hooks behind a link":            {"git config core.hooksPath hooks; mkdir real; touch real/x; ln -s real hooks", strings.ReplaceAll(hook, "H/", "real/")},
		"hooks behind another link":      {"git config core.hooksPath hooks; mkdir real; touch real/x; ln -s real hooks", "mkdir e; " + strings.ReplaceAll(hook, "H/", "e/") + "; rm hooks; ln -s e hooks"},
		"a configuration":                {"git config include.path ../inc; touch inc", "git config -f inc core.fsmonitor 'touch HOST/owned; true'"},
		"a configuration, by a rename":   {"git config include.path ../inc; touch inc", "git config -f inc2 core.fsmonitor 'touch HOST/owned; true'; mv -f inc2 inc"},
		"a configuration that is absent": {"git config include.path ../inc", "git config -f inc core.fsmonitor 'touch HOST/owned; true'"},
		"one that is included if":        {"git config includeIf.gitdir:" + "**" + ".path ../conf/inc; mkdir conf", "git config -f conf/inc core.fsmonitor 'touch HOST/owned; true'"},
		"a global configuration":         {"git config --global include.path HOST/project/inc; touch inc", "git config -f inc core.fsmonitor 'touch HOST/owned; true'"},
		"fsmonitor":                      {program + "git config core.fsmonitor ./tools/p", turned},
		"a filter":                       {program + "git config filter.x.clean ./tools/p; echo 'f filter=x' > .gitattributes; git add -A", turned},
		"a filter, its directory anew":   {program + "git config filter.x.clean tools/p; echo 'f filter=x' > .gitattributes; git add -A", "mv tools t; mkdir tools; " + turned},
		"an interpreter's script":        {program + "git config filter.x.clean 'sh tools/p'; echo 'f filter=x' > .gitattributes; git add -A", turned},
		"textconv":                       {program + "printf '#!/bin/sh\ncat $1' > tools/p; git config diff.x.textconv tools/p; echo 'f diff=x' > .gitattributes; git add -A", turned},
		"a merge driver":                 {program + "git config merge.x.driver './tools/p %O'; echo 'f merge=x' > .gitattributes; git add -A; git commit -qm a; git checkout -q side; echo s > f; git commit -qam s; git checkout -q main", turned + "; git commit -qam main"},
		"an alias":                       {program + "git config alias.lg '!tools/p </dev/null'", turned},
		"ssh":                            {program + "git config core.sshCommand HOST/project/tools/p; git config remote.origin.url ssh://127.0.0.1:1/x", turned},
		"a remote's program":             {program + "git config remote.origin.uploadpack ./tools/p", turned},
		"a remote in the tree":           {"git init -q --bare remote; git config remote.origin.url ./remote", "mkdir -p remote/hooks; " + strings.ReplaceAll(hook, "H/", "remote/hooks/")},
		"a program to sign with":         {program + "git config gpg.program ./tools/p; git config commit.gpgSign true", turned},
		"a directory for git, elsewhere": {"git init -q --separate-git-dir store", "mkdir -p store/hooks; " + strings.ReplaceAll(hook, "H/", "store/hooks/")},
		"the same, configured":           {"git init -q --separate-git-dir store", "git config -f store/config core.fsmonitor 'touch HOST/owned; true'"},
		"a link for .git":                {"mkdir store; mv .git store/git; ln -s store/git .git", "mkdir -p store/git/hooks; " + strings.ReplaceAll(hook, "H/", "store/git/hooks/")},
		"a work tree of a bare one":      {"mv .git .bare; git -C .bare config core.bare true; echo 'gitdir: .bare/worktrees/w' > .git; git --git-dir=.bare worktree add -q -f w main 2>/dev/null; rm -rf w; echo $PWD/.git > .bare/worktrees/w/gitdir", "git config -f .bare/config core.fsmonitor 'touch HOST/owned; true'; mkdir -p .bare/hooks; " + strings.ReplaceAll(hook, "H/", ".bare/hooks/")},
		"a nested repository":            {"git init -q sub; git -C sub commit -q --allow-empty -m x", "git config -f sub/.git/config core.fsmonitor 'touch HOST/owned; true'"},
		"a nested repository, anew":      {"git init -q sub; git -C sub commit -q --allow-empty -m x", "mv sub s; cp -r s sub; git config -f sub/.git/config core.fsmonitor 'touch HOST/owned; true'"},
		"a nested one beside many settings": {
			"for i in $(seq 300); do echo \"[x \\\"$i\\\"] a = b\"; done > inc; git config include.path ../inc; git init -q sub; git -C sub commit -q --allow-empty -m x",
			"git config -f sub/.git/config core.fsmonitor 'touch HOST/owned; true'",
		},
		"a nested one's hooks": {"git init -q sub; git -C sub commit -q --allow-empty -m x", strings.ReplaceAll(hook, "H/", "sub/.git/hooks/")},
		"a submodule":          {"git init -q ../lib; git -C ../lib commit -q --allow-empty -m x; git -c protocol.file.allow=always submodule add -q ../lib sub", "echo 'gitdir: ../e' > sub/.git; cp -r .git e; git config -f e/config core.fsmonitor 'touch HOST/owned; true'; git config -f .git/modules/sub/config core.fsmonitor 'touch HOST/owned; true'"},
	} {
		t.Run(name, func(t *testing.T) {
			u.t = t
			fill := strings.NewReplacer("HOST", u.home).Replace
			fresh := "rm -rf project owned origin.git lib .gitconfig; " + as + "git init -q --bare origin.git; git init -q -b main project; cd project; git remote add origin ../origin.git; " +
				"echo 1 > f; git add f; git commit -qm one; git branch side; " + fill(c.host) + "; git add -A 2>/dev/null; git commit -qm host --no-verify 2>/dev/null; rm -f ../owned"
			u.sh(fresh)
			u.sh("cd project; (" + fill(c.inside) + "); " + as + actions)
			if u.sh("ls owned").out == "" {
				t.Error("on a host without carrel it does nothing")
			}
			u.sh(fresh)
			before := u.sh("cd project; ls -A . .git; cat .git/config").out
			r := u.inside(as + fill(c.inside))
			if strings.HasPrefix(r.err, "carrel: cannot") {
				t.Fatalf("%+v", r)
			}
			if got := u.sh("ls owned").out; got != "" {
				t.Errorf("carrel itself ran it: %s", r.err)
			}
			said := u.sh("cd project; " + as + actions)
			if got := u.sh("ls owned").out; got != "" {
				t.Errorf("the host ran it: %s, %+v, before %s", r.err, said, before)
			}
			for _, placed := range []string{".husky", "inc"} {
				if got := u.sh("ls -Ad project/" + placed).out; got != "" && !strings.Contains(c.host, placed+";") && !strings.Contains(c.host, "touch "+placed) {
					t.Errorf("left: %q", got)
				}
			}
		})
	}
	u.t = t
}

// plants are scripts that leave something in a repository that the host's git runs or trusts. EVIL is a program
// that leaves a mark in the user's home, which is at HOST; both are out of reach inside. SECRET is a commit of another repository.
var plants = map[string]struct {
	script string
	// quiet: what it leaves does nothing on a host with this git; it is tried all the same.
	quiet bool
}{
	"hooks": {script: `mkdir -p .git/hooks; for h in pre-commit post-commit post-index-change reference-transaction post-checkout pre-auto-gc; do
		echo "EVIL" > .git/hooks/$h; chmod +x .git/hooks/$h; done; git commit -qnm x --allow-empty`},
	"hooks made anew":          {script: `mv .git/hooks .git/gone; mkdir .git/hooks; echo "EVIL" > .git/hooks/post-commit; chmod +x .git/hooks/post-commit`},
	"a path for hooks":         {script: `mkdir h; echo "EVIL" > h/post-commit; chmod +x h/post-commit; git config core.hooksPath $PWD/h`},
	"fsmonitor":                {script: `git config core.fsmonitor "EVIL; true"`},
	"an alias":                 {script: `git config alias.lg "!EVIL"`},
	"a config of its own":      {script: `cp .git/config c; git config -f c core.fsmonitor "EVIL; true"; mv c .git/config`},
	"an upload program":        {script: `git config remote.origin.uploadpack "EVIL; git-upload-pack"`},
	"an ssh command":           {script: `git config remote.origin.url ssh://h/x; git config core.sshCommand "EVIL; false"`},
	"an editor":                {script: `git config core.editor "EVIL; true"`},
	"a signing program":        {script: `git config gpg.program EVIL; git config commit.gpgSign true`, quiet: true},
	"a filter":                 {script: `git config filter.x.clean "EVIL; cat"; echo "* filter=x" > .gitattributes; echo y >> f`},
	"a filter by info":         {script: `mkdir -p .git/info; git config filter.x.clean "EVIL; cat"; echo "* filter=x" > .git/info/attributes; echo y >> f`},
	"a diff program":           {script: `git config diff.x.textconv "EVIL; cat"; echo "* diff=x" > .gitattributes; echo y >> f; git commit -qam x`},
	"a worktree's config":      {script: `git config extensions.worktreeConfig true; git config --worktree core.fsmonitor "EVIL; true"`},
	"an included config":       {script: `git config -f inc core.fsmonitor "EVIL; true"; git config include.path $PWD/inc`},
	"another common directory": {script: `cp -r .git c; git -C c config core.fsmonitor "EVIL; true"; git config -f c/config core.fsmonitor "EVIL; true"; echo ../c > .git/commondir`},
	"a submodule": {script: `git init -q sub; git -C sub commit -q --allow-empty -m x; git add sub; git commit -qm sub;
		git -C sub config core.fsmonitor "EVIL; true"`},
	"a submodule that is staged": {script: `git init -q sub; git -C sub commit -q --allow-empty -m x; git add sub; git -C sub config core.fsmonitor "EVIL; true"`},
	"a submodule on a branch": {script: `git init -q sub; git -C sub commit -q --allow-empty -m x; git checkout -qb other; git add sub; git commit -qm sub;
		git -C sub config core.fsmonitor "EVIL; true"`},
	"a submodule behind a merge": {script: `git init -q sub; git -C sub commit -q --allow-empty -m x; git checkout -qb b; git add sub; git commit -qm sub;
		git checkout -q -; mkdir -p sub; git merge -q --no-ff b -m m; git -C sub config core.fsmonitor "EVIL; true"`},
	"a repository without a work tree": {script: `mkdir objects refs; echo "ref: refs/heads/x" > HEAD; git config -f config core.repositoryformatversion 0;
		git config -f config core.bare false; git config -f config core.worktree .; git config -f config core.fsmonitor "EVIL; true"; rm -rf .git/HEAD; mv .git gone`},
	"a file for .git": {script: `cp -r .git c; git config -f c/config core.fsmonitor "EVIL; true"; rm -rf .git; echo "gitdir: c" > .git`},
	"a link for .git": {script: `cp -r .git c; git config -f c/config core.fsmonitor "EVIL; true"; rm -rf .git; ln -s c .git`},
	"a rebase to go on with": {script: `git commit -q --allow-empty -m x; git commit -q --allow-empty -m y; GIT_SEQUENCE_EDITOR="echo 'break' >" git rebase -q -i HEAD~1;
		echo "exec EVIL" > .git/rebase-merge/git-rebase-todo`},
	"a log that leads to the rc file":        {script: `ln -sf HOST/.bashrc .git/logs/HEAD`},
	"a log below a link":                     {script: `rm -rf .git/logs/refs; ln -s HOST .git/logs/refs`, quiet: true},
	"a message that leads to the rc file":    {script: `ln -sf HOST/.bashrc .git/COMMIT_EDITMSG`},
	"packed refs that are a link":            {script: `rm -f .git/packed-refs; ln -s HOST/owned .git/packed-refs`},
	"an index that leads to the rc file":     {script: `rm .git/index; ln -s HOST/.bashrc .git/index`, quiet: true},
	"fetched heads that lead to the rc file": {script: `ln -sf HOST/.bashrc .git/FETCH_HEAD`},
	"another's objects":                      {script: `echo HOST/secret/.git/objects >> .git/objects/info/alternates; echo SECRET > .git/refs/heads/stolen`},
	"another's packs":                        {script: `rm -rf .git/objects/pack; ln -s HOST/secret/.git/objects/pack .git/objects/pack; echo SECRET > .git/refs/heads/stolen`},
	"another's directory": {script: `for d in HOST/secret/.git/objects/??; do rm -rf .git/objects/${d##*/}; ln -s $d .git/objects/; done; ln -sfn HOST/secret/.git/objects .git/host;
		git commit -q --allow-empty -m x; echo SECRET > .git/refs/heads/stolen`},
	"another's refs": {script: `rm -rf .git/refs; ln -s HOST/secret/.git/refs .git/refs; echo SECRET > .git/HEAD`, quiet: true},
	"another's worktree": {script: `mkdir -p .git/worktrees/x; cp -r .git c; git config -f c/config core.fsmonitor "EVIL; true"; echo $PWD/.git > .git/worktrees/x/gitdir;
		echo ../../../c > .git/worktrees/x/commondir; cp .git/HEAD .git/worktrees/x/`, quiet: true},
	"a name that shells run": {script: `git commit -q --allow-empty -m x; git update-ref 'refs/heads/$(EVIL)' HEAD 2>/dev/null || cp .git/refs/heads/main '.git/refs/heads/x;y'`, quiet: true},
}

// What a command leaves in the git directory, or in the files beside it, is not run and not followed by
// the host's git. Each plant is tried first where nothing keeps it from that.
func TestGitPlants(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	const host = `export EDITOR=true; for c in status diff "log -p -2" "commit -m host --allow-empty" "commit --amend --no-edit --allow-empty" "commit --amend --allow-empty" "fetch origin" lg "branch -a" "stash list" "worktree list" fsck \
		"gc -q" "pack-refs --all" "submodule status" "rebase --continue" "merge side" "checkout -q -b new" "checkout -q main" status; do timeout 20 git $c; done`
	u.sh(as + "git init -q secret; cd secret; git commit -q --allow-empty -m secret; cp -r .git/objects loose; git gc -q; cp -rn loose/* .git/objects; cd ..; git init -q --bare origin.git; printf '#!/bin/sh\ntouch " +
		u.home + "/owned\n' > evil; chmod +x evil")
	secret := strings.TrimSpace(u.sh("git -C secret rev-parse HEAD").out)
	for name, p := range plants {
		t.Run(name, func(t *testing.T) {
			u.t = t
			script := as + strings.NewReplacer("EVIL", u.home+"/evil", "HOST", u.home, "SECRET", secret).Replace(p.script)
			fresh := as + "rm -rf project owned; echo rc > .bashrc; git init -q -b main project; cd project; git remote add origin " + u.home +
				"/origin.git; echo 1 > f; git add f; git commit -qm one; git branch side; "
			marks := func() string {
				return u.sh("ls owned; cat .bashrc; git -C project cat-file -t " + secret + "; git -C project diff --quiet HEAD 2>/dev/null").out
			}
			if r := u.sh(fresh + script); r.code != 0 && !p.quiet {
				t.Logf("planted without carrel: %+v", r)
			}
			u.sh(as + "cd project; " + host)
			if got := marks(); got == "rc\n" && !p.quiet {
				t.Error("on a host without carrel it does nothing")
			}
			u.sh(fresh)
			before := u.sh("cd project/.git; cat config; ls -A . hooks info").out
			r := u.inside(script)
			if strings.HasPrefix(r.err, "carrel: cannot") && !strings.Contains(p.script, "SECRET") {
				t.Errorf("%+v", r)
			}
			t.Log(r.err)
			if now := u.sh("cd project/.git; cat config; ls -A . hooks info | grep -v packed-refs").out; strings.ReplaceAll(before, "packed-refs\n", "") != now &&
				!strings.Contains(now, "logs") {
				t.Errorf("the git directory is now\n%s, and was\n%s", now, before)
			}
			u.sh(as + "cd project; " + host)
			if got := marks(); got != "rc\n" {
				t.Errorf("the host ran or trusted it: %q", got)
			}
		})
	}
	u.t = t
}

// A directory that is no repository does not become one in which the host's git runs what a command wrote.
func TestGitWithoutRepository(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	const plant = `rmdir HEAD; rmdir .git; git init -q; mkdir -p objects refs; echo "ref: refs/heads/x" > HEAD; git config -f config core.repositoryformatversion 0;
		git config -f config core.bare false; git config -f config core.worktree .; git config -f config core.fsmonitor "touch %h/owned; true"`
	script := strings.ReplaceAll(plant, "%h", u.home)
	for _, inside := range []bool{false, true} {
		u.sh("rm -rf project owned; mkdir project")
		if inside {
			u.inside(script)
			if got := u.sh("ls -A project").out; got != "config\nobjects\nrefs\n" {
				t.Errorf("left: %q", got)
			}
		} else {
			u.sh("cd project; " + strings.ReplaceAll(script, "git init -q;", ""))
		}
		u.sh("cd project; git status")
		if got := u.sh("ls owned").out; (got == "") != inside {
			t.Errorf("inside %v: %q", inside, got)
		}
	}
	u.sh("rm -rf project; git init -q --bare project")
	if r := u.inside("true"); r.code != 125 || !strings.Contains(r.err, "without a work tree") {
		t.Errorf("a repository without a work tree is mounted: %+v", r)
	}
	if r := u.run("-v", u.home+"/project:/mnt/p:ro", "--", "git", "-c", "safe.directory=*", "-C", "/mnt/p", "rev-parse", "--is-bare-repository"); r.out != "true\n" {
		t.Errorf("read-only: %+v", r)
	}
}

// What a run committed that was killed is fetched by the next, which moves nothing.
func TestGitKilled(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	built := crashable(t)
	u := newUser(t)
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	arm := u.points()
	run := func(script string) result {
		return finish(u.command("project", filepath.Join(built, "carrel"), "run", "--here", "--", "sh", "-c", as+script), "")
	}
	u.sh(as + "cd project; git checkout -q -b main; git commit -q --allow-empty -m one")
	passed := arm("run.end.ended", 1)
	if r := run("echo 2 > f; git add f; git commit -qm two; git checkout -q -b b; git commit -qm three --allow-empty"); !passed() || r.code >= 0 {
		t.Errorf("it was not ended there: %+v", r)
	}
	if r := run("true"); r.code != 0 || !strings.Contains(r.err, "was killed; what it committed is below refs/carrel/run-") {
		t.Errorf("%+v", r)
	}
	if got := u.sh("cd project; git log --format=%s; git log --all --format=%s; git fsck; git for-each-ref | wc -l; git rev-parse --abbrev-ref HEAD; ls -A ../.local/state/carrel/git").
		out; got != "one\nthree\ntwo\none\n3\nmain\n" {
		t.Errorf("%q", got)
	}
	// Killed with nothing committed, it leaves nothing to say.
	passed = arm("run.begin.launched", 1)
	if r := run("true"); !passed() || r.code >= 0 {
		t.Errorf("it was not ended there: %+v", r)
	}
	if r := run("true"); r.code != 0 || r.err != "" || u.sh("ls -A .local/state/carrel/git").out != "" {
		t.Errorf("%+v", r)
	}
}

// A commit that puts a file back to what it was, because git could not write it inside, moves no branch.
func TestGitCommitsNothingOld(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host; apt-get install --no-install-recommends git")
	}
	u := newUser(t)
	u.sh("cd project; git config user.email a@b; git config user.name a; git checkout -q -b main; echo one > .npmrc; echo 1 > f; git add .; git commit -qm one; " +
		"git checkout -q -b feature; echo two > .npmrc; echo 2 > f; git commit -qam two; git checkout -q main")
	const as = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
	r := u.inside(as + "git checkout -q feature 2>/dev/null; git symbolic-ref HEAD refs/heads/feature; git read-tree feature; echo 3 > f; git commit -qam three; git log -1 --format=%s")
	if r.code != 0 || !strings.HasPrefix(r.out, "three") || !strings.Contains(r.err, `a commit puts ".npmrc" back to what it was`) {
		t.Errorf("%+v", r)
	}
	if got := u.sh("cd project; git log -1 --format=%s feature; git show feature:.npmrc").out; got != "two\ntwo\n" {
		t.Errorf("feature is %q", got)
	}
	// Files on which programs of the host act can be committed, and are named.
	r = u.inside(as + "git update-index --add --cacheinfo 100644,$(echo x | git hash-object -w --stdin),.vscode/tasks.json; git commit -qm named")
	if r.code != 0 || !strings.Contains(r.err, "the commits have files on which programs of the host act once they are checked out: .vscode/tasks.json (VS Code") {
		t.Errorf("%+v", r)
	}
	// Others are committed as ever.
	r = u.inside(as + "echo 4 > f; git commit -qm four f")
	if r.code != 0 || !strings.Contains(r.err, "main moved from") {
		t.Errorf("%+v", r)
	}
}
