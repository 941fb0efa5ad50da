package rootless_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// readers are names of hostfiles, each with what has its reader run code from it. $S is a file that the code makes. Whatever else is
// planted is source: nothing runs it by itself.
var readers = []struct {
	program, name, text string
	beside              map[string]string
	// before is there already, and do is what a person does.
	before map[string]string
	do     string
	top    bool // it is read at the top of a project alone
}{
	{program: "prettier", name: ".prettierrc.cjs", text: js, before: map[string]string{"x.js": "a\n"}, do: "prettier x.js"},
	{program: "eslint", name: "eslint.config.cjs", text: "require('fs').writeFileSync(process.env.S, 'x'); module.exports = []\n", before: map[string]string{"x.js": "a\n"}, do: "eslint x.js"},
	{program: "stylelint", name: ".stylelintrc.cjs", text: js, before: map[string]string{"x.css": "a{}\n"}, do: "stylelint x.css"},
	{program: "lint-staged", name: ".lintstagedrc.cjs", text: js, before: map[string]string{"y.js": "a\n"}, do: "echo b >> y.js; git add y.js; lint-staged"},
	{program: "commitlint", name: ".commitlintrc.cjs", text: js, do: "echo 'feat: a' | commitlint"},
	{program: "pnpm", name: ".pnpmfile.cjs", text: js, before: map[string]string{"package.json": `{"dependencies":{}}`}, do: "pnpm install --offline", top: true},
	{
		program: "npm", name: ".npmrc", text: "script-shell=./evil.sh\n", beside: map[string]string{"evil.sh": "#!/bin/sh\necho x > $S\n"},
		before: map[string]string{"package.json": `{"scripts":{"test":"true"}}`}, do: "npm test", top: true,
	},
	{program: "yarn", name: ".yarnrc", text: "yarn-path \"./evil.js\"\n", beside: map[string]string{"evil.js": "#!/usr/bin/env node\n" + js}, do: "yarn --version"},
	{program: "vim", name: ".exrc", text: "silent !echo x > $S\n", do: "HOME=${S%/*}/vimhome vim -T dumb --not-a-term -c q </dev/null"},
}

const js = "require('fs').writeFileSync(process.env.S, 'x'); module.exports = {}\n"

// Real readers do not act on what a run left, in a copy that was applied and in the directory itself, at the top and below. That they act
// on the same when a person puts it there shows that it would be seen. They are those of
// npm install eslint prettier stylelint lint-staged @commitlint/cli pnpm yarn@1.
func TestReaders(t *testing.T) {
	dir := os.Getenv("CARREL_TEST_READERS")
	if dir == "" {
		t.Skip("skipped: set CARREL_TEST_READERS to a directory in which the programs are installed: npm install eslint prettier stylelint lint-staged " +
			"@commitlint/cli pnpm yarn@1")
	}
	u := newUser(t)
	u.env = append(u.env, "S="+u.home+"/sentinel", "NO_UPDATE_NOTIFIER=1", "npm_config_update_notifier=false")
	u.env[1] = "PATH=" + filepath.Join(dir, "node_modules/.bin") + ":/usr/local/bin:/usr/bin:/bin"
	u.sh("mkdir vimhome; echo 'set exrc' > vimhome/.vimrc")
	for _, r := range readers {
		if u.sh("command -v "+r.program).code != 0 {
			t.Errorf("%s is not installed", r.program)
			continue
		}
		begin := func() {
			t.Helper()
			u.sh("rm -rf project sentinel; mkdir -p project/sub; cd project; git init -q; git config user.email a@b; git config user.name a; echo node_modules > .gitignore")
			for _, at := range []string{"", "sub/"} {
				for name, text := range r.before {
					if w := finish(u.command("project", "sh", "-c", "cat > "+at+name), text); w.code != 0 {
						t.Fatalf("%+v", w)
					}
				}
			}
			u.sh("cd project; git add .; git commit -qm one")
		}
		plant := func(at string) (script string) {
			files := map[string]string{r.name: r.text}
			maps.Copy(files, r.beside)
			for name, text := range files {
				script += "cat > " + at + name + " <<'END'\n" + text + "END\nchmod 755 " + at + name + "\n"
			}
			return script
		}
		acts := func(at string) (bool, string) {
			out := u.sh("cd project/" + at + " && { " + r.do + "; } 2>&1")
			_, err := os.Stat(filepath.Join(u.home, "sentinel"))
			u.sh("rm -f sentinel")
			return err == nil, out.out + out.err
		}
		for _, at := range []string{"", "sub/"} {
			if at != "" && r.top {
				continue
			}
			begin()
			u.sh("cd project; " + plant(at))
			if acted, said := acts(at); !acted {
				t.Errorf("%s does not act on %s%s, so that nothing is shown by it: %s", r.program, at, r.name, said)
				continue
			}
			begin()
			if w := u.run("--here=direct", "--", "sh", "-c", plant(at)); w.code != 0 || !strings.Contains(w.err, "held back") {
				t.Errorf("%s%s: %+v", at, r.name, w)
			}
			if acted, _ := acts(at); acted {
				t.Errorf("%s acts on %s%s after a direct run", r.program, at, r.name)
			}
			begin()
			w, run := u.stagedIn(plant(at))
			if w.code != 0 || run == "" {
				t.Errorf("%s%s: %+v", at, r.name, w)
			}
			if acted, _ := acts(at); acted {
				t.Errorf("%s acts on %s%s before it is applied", r.program, at, r.name)
			}
			if w := u.cli("apply", run); w.code != 0 {
				t.Errorf("%s%s: %+v", at, r.name, w)
			}
			if acted, _ := acts(at); acted {
				t.Errorf("%s acts on %s%s after it is applied", r.program, at, r.name)
			}
			u.cli("discard", run)
		}
	}
}
