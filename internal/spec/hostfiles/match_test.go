package hostfiles_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// Each entry names what it is for, where it says so and nowhere else.
func TestEveryEntry(t *testing.T) {
	for _, e := range hostfiles.All() {
		name := strings.ReplaceAll(e.Pattern, "*", "x")
		names := func(path string, home bool) bool {
			m, ok := hostfiles.Match(path, home)
			return ok && (m == e || stronger(m, e))
		}
		if !names(name, e.Home) || !names(name+"/below/it", e.Home) {
			t.Errorf("%s at the top is not named by its entry", e.Pattern)
		}
		if m, ok := hostfiles.Match("one/two/"+name, e.Home); ok != e.Any && (!ok || !m.Any) {
			t.Errorf("%s below the top: %v %+v", e.Pattern, ok, m)
		}
		if m, ok := hostfiles.Match(name, false); e.Home && ok && m.Home {
			t.Errorf("%s of a home is named in a project", e.Pattern)
		}
	}
}

// stronger reports whether carrel does more about what m names, or as much.
func stronger(m, e hostfiles.Entry) bool {
	return m.Aside() && !e.Aside() || m.Aside() == e.Aside() && m.Act >= e.Act
}

func TestMatch(t *testing.T) {
	for path, want := range map[string]string{
		".claude/settings.json":             ".claude",
		"sub/dir/.envrc":                    ".envrc",
		"HEAD":                              "HEAD",
		"sub/HEAD":                          "HEAD",
		"sub/lefthook.yml":                  "",
		"a.code-workspace":                  "*.code-workspace",
		"sub/a.CODE-workspace":              "*.code-workspace",
		".github/hooks/h.json":              ".github/hooks",
		"sub/.GitHub/Hooks":                 ".github/hooks",
		".github/workflows/ci.yml":          "",
		".github":                           "",
		"hooks/.github":                     "",
		".eslintrc.js":                      ".eslintrc.*",
		".eslintrc.":                        ".eslintrc",
		"gradle/wrapper/gradle-wrapper.jar": "gradle/wrapper/gradle-wrapper.jar",
		"gradle/wrapper/other.jar":          "",
		"gradle/wrapper":                    "",
		"tools/bazel":                       "tools/bazel",
		"sub/tools/bazel":                   "",
		"lib/site-packages/x.pth":           "site-packages/*.pth",
		"model.pth":                         "",
		"bin/tool":                          "",
		".bashrc":                           "",
		// What carrel does most about, wherever it is.
		".terraform/x/.envrc":   ".envrc",
		".terraform/x/.git":     ".git",
		".vscode/.mcp.json":     ".vscode",
		".github/skills/.husky": ".husky",
		".envrc/.env":           ".env",
		"makefile":              "makefile",
		"makeFile":              "",
		"CLAUDE.md":             "CLAUDE.md",
		// Nothing that is a path.
		"": "", "/": "", "//": "",
	} {
		e, ok := hostfiles.Match(path, false)
		if e.Pattern != want || ok != (want != "") {
			t.Errorf("%q is named by %q, and not by %q", path, e.Pattern, want)
		}
	}
	for _, path := range []string{".bashrc", "bin/tool", "go/bin/x", ".local/share/applications/x.desktop", ".Config/fish/config.fish"} {
		if e, ok := hostfiles.Match(path, true); !ok || !e.Home {
			t.Errorf("%s of a home is named by %+v", path, e)
		}
		if e, ok := hostfiles.Match("sub/"+path, true); ok && e.Home {
			t.Errorf("%s below a home is named by %q", path, e.Pattern)
		}
	}
}

// Names that some file system takes for .git, and some that none does.
func TestTwins(t *testing.T) {
	twins := []string{
		".GIT", ".Git", ".g\u200cit", "\u200d.git", ".git\u200e", ".\u202egit\u202c", ".gi\u206at", "\ufeff.git", ".g\u00adit", ".git\ufe0f",
		"git~1", "GIT~1", ".git.", ".git ", ".git. .", ".git::$INDEX_ALLOCATION", ".git:x", ".GIT\u200f/config", "sub/.gIt/hooks/x",
	}
	for _, path := range twins {
		if e, _ := hostfiles.Match(path, false); e.Pattern != ".git" {
			t.Errorf("%+q is named by %q, and not by .git", path, e.Pattern)
		}
	}
	for path, want := range map[string]string{
		"gitmod~1": ".gitmodules", "GITMOD~4": ".gitmodules", ".VSCODE": ".vscode", ".hu\u017fky": ".husky", ".\u212airo": ".kiro",
		".\u017fhadowenv.d": ".shadowenv.d", "\u017fite-packages/x.pth": "site-packages/*.pth", "GnuMakefile": "GNUmakefile", "head": "HEAD",
	} {
		if e, _ := hostfiles.Match(path, false); e.Pattern != want {
			t.Errorf("%+q is named by %q, and not by %s", path, e.Pattern, want)
		}
	}
	if e, _ := hostfiles.Match(".con\ufb01g", true); e.Pattern != ".config" {
		t.Errorf(".con\ufb01g of a home is named by %q", e.Pattern)
	}
	for _, path := range []string{
		"git", "..git", ".gitt", ".gi", "git~2", "git~", ".g it", ".g\u00efit", ".g\u0456t", ".git\xff", ".gitignore", ".github",
		"x.git", ".git-x", "sub/head",
	} {
		if e, ok := hostfiles.Match(path, false); ok {
			t.Errorf("%+q is named by %q", path, e.Pattern)
		}
	}
}

// ordinary paths are source, which no entry may name.
var ordinary = strings.Fields(`
	src/main.go README.md package.json package-lock.json Makefile sub/Makefile Cargo.toml Cargo.lock node_modules/x/index.js docs/claude.md
	git/config go.mod go.sum internal/spec/x.go cmd/tool/main.go pyproject.toml setup.py setup.cfg requirements.txt conftest.py tests/test_a.py
	build.gradle settings.gradle gradlew pom.xml CMakeLists.txt src/lib.rs build.rs tsconfig.json vite.config.ts index.html style.css
	Gemfile Gemfile.lock Rakefile app/models/user.rb composer.json Dockerfile docker-compose.yml .dockerignore .gitignore .editorconfig
	.github/workflows/ci.yml .gitlab-ci.yml LICENSE docs/agents.md config/settings.yml bin/run objects/a refs/b hooks/pre-commit
	main.tf variables.tf shell.nix flake.lock justfile Taskfile.yml model.pth assets/logo.svg .gitkeep vendor/x/y.go scripts/head.sh
	a/b/c/d/e/f.txt sub/config/config.json .golangci.reference.yml data/head.csv envrc claude/main.py mcp.json`)

func TestOrdinaryPaths(t *testing.T) {
	if len(ordinary) < 60 {
		t.Errorf("%d paths are few", len(ordinary))
	}
	for _, path := range ordinary {
		if e, ok := hostfiles.Match(path, false); ok {
			t.Errorf("%s is named by %q", path, e.Pattern)
		}
	}
}

// Fewest of the names may be placed: an empty directory is seen on the host.
func TestFewArePlaced(t *testing.T) {
	always := 0
	for _, p := range hostfiles.Protected() {
		if p.Absent == hostfiles.Always {
			always++
		}
	}
	if always != 10 {
		t.Errorf("%d names are placed in every project, and not 10", always)
	}
}

func BenchmarkMatch(b *testing.B) {
	hostfiles.Match("", false)
	for name, path := range map[string]string{
		"ordinary": "internal/boundary/sandbox/launch/start.go", "dotted": ".github/workflows/.hidden/src/ci.yml",
		"unicode": "docs/übersicht/日本/a/b.md", "named": "a/b/c/d/.envrc",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				hostfiles.Match(path, false)
			}
		})
	}
}

// A path that nothing names costs no allocation: it is asked of each changed file.
func TestNoAllocation(t *testing.T) {
	for _, path := range []string{"internal/boundary/sandbox/launch/start.go", ".github/workflows/x.yml", "docs/\u00fcber\u200c/a.md"} {
		if n := testing.AllocsPerRun(100, func() { hostfiles.Match(path, true) }); n > 0 {
			t.Errorf("%s costs %v allocations", path, n)
		}
	}
}
