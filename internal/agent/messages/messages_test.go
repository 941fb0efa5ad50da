package messages_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// keys are the names of the keys as the source has them, in their order.
func keys(t *testing.T) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].IsExported() {
			names = append(names, v.Names[0].Name)
		}
		return true
	})
	return names
}

// texts are those of a catalogue, by the names of their keys.
func texts(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			all[kv.Key.(*ast.Ident).Name] = literal(kv.Value)
		}
		return true
	})
	return all
}

func literal(e ast.Expr) string {
	if b, ok := e.(*ast.BinaryExpr); ok {
		return literal(b.X) + literal(b.Y)
	}
	s, _ := strconv.Unquote(e.(*ast.BasicLit).Value)
	return s
}

var verb = regexp.MustCompile(`%(\[\d+\])?[-+# 0-9.]*[a-zA-Z%]`)

// Both catalogues have a text for every key and for nothing else, and each pair takes the same arguments in the same order.
func TestCatalogues(t *testing.T) {
	names := keys(t)
	en, zh := texts(t, "english.go"), texts(t, "chinese.go")
	if len(names) < 100 || len(en) != len(names) || len(zh) != len(names) {
		t.Errorf("there are %d keys, %d texts in English and %d in Chinese", len(names), len(en), len(zh))
	}
	for i, name := range names {
		if en[name] == "" || zh[name] == "" {
			t.Errorf("%s: %q and %q", name, en[name], zh[name])
		}
		if a, b := verb.FindAllString(en[name], -1), verb.FindAllString(zh[name], -1); !slices.Equal(a, b) {
			t.Errorf("%s takes %q in English and %q in Chinese", name, a, b)
		}
		if got := messages.English.Say(messages.Key(i)); got != en[name] {
			t.Errorf("%s says %q in English", name, got)
		}
		if got := messages.Chinese.Say(messages.Key(i)); got != zh[name] {
			t.Errorf("%s says %q in Chinese", name, got)
		}
		if en[name] == zh[name] {
			t.Errorf("%s is not translated", name)
		}
	}
}

// bracketed are keys to press, and commands.
var bracketed = regexp.MustCompile(`\[[a-z]\]|--[a-z-]+|carrel [a-z]+|/[a-z]{2,}`)

// Keys to press, flags and commands are the same in both languages, and every character is one that a screen shows.
func TestWhatIsTypedStays(t *testing.T) {
	en, zh := texts(t, "english.go"), texts(t, "chinese.go")
	trim := func(all []string) []string {
		for i, s := range all {
			all[i] = strings.TrimSpace(s)
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for name := range en {
		if a, b := trim(bracketed.FindAllString(en[name], -1)), trim(bracketed.FindAllString(zh[name], -1)); !slices.Equal(a, b) &&
			!strings.HasPrefix(name, "Help") && name != "NoScreen" {
			t.Errorf("%s has %q in English and %q in Chinese", name, a, b)
		}
		for line := range strings.Lines(zh[name]) {
			if line = strings.TrimSuffix(line, "\n"); termtext.Visible(line) != line {
				t.Errorf("%s is shown as %q", name, termtext.Visible(line))
			}
			if termtext.Width(line) == len([]rune(line)) && strings.ContainsFunc(line, func(r rune) bool { return unicode.Is(unicode.Han, r) }) {
				t.Errorf("%s: Chinese is counted as narrow: %q", name, line)
			}
		}
	}
}

// Texts of the help fit into a window of 80 columns, names of rows into their column.
func TestWidths(t *testing.T) {
	for _, key := range []messages.Key{messages.Help, messages.HelpCommands} {
		for line := range strings.Lines(messages.Chinese.Say(key)) {
			if n := termtext.Width(strings.TrimSuffix(line, "\n")); n > 84 {
				t.Errorf("%d cells: %s", n, line)
			}
		}
	}
	for _, lang := range []messages.Language{messages.English, messages.Chinese} {
		for key := messages.RowWhere; key <= messages.RowReason; key++ {
			if n := termtext.Width(lang.Say(key)); n > 11 {
				t.Errorf("%d cells: %s", n, lang.Say(key))
			}
		}
		for key := messages.CheckWorkspace; key <= messages.CheckToolsRead; key++ {
			if n := termtext.Width(lang.Say(key)); n > 11 {
				t.Errorf("%d cells: %s", n, lang.Say(key))
			}
		}
		if a, b := termtext.Width(lang.Say(messages.Because)), termtext.Width(lang.Say(messages.AndBecause)); a < b {
			t.Errorf("what follows stands %d cells behind its lead of %d", a, b)
		}
	}
}

// Every key is used by something that is no test.
func TestEveryKeyIsUsed(t *testing.T) {
	used := map[string]bool{}
	name := regexp.MustCompile(`\bmessages\.([A-Z][A-Za-z]*)`)
	err := filepath.WalkDir("../../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range name.FindAllStringSubmatch(string(b), -1) {
			used[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("messages.go") // the fixed texts of the daemon
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys(t) {
		if !used[k] && !regexp.MustCompile(`\b`+k+`\b`).Match(b) {
			t.Errorf("nothing says %s", k)
		}
	}
}

// What is taken for a text of the daemon is one: its source has it.
func TestKnown(t *testing.T) {
	var source strings.Builder
	for _, dir := range []string{
		"internal/agent/turns", "internal/service/approvals", "internal/spec/operation", "internal/agent/tasks",
		"internal/agent/loop", "internal/agent/llm", "internal/gate/judge", "internal/service/lifecycle", "internal/state/store",
		"internal/spec/approval", "internal/agent/hosts/steps",
	} {
		all, _ := filepath.Glob("../../../" + dir + "/*.go")
		for _, f := range all {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(b)
		}
	}
	joined := regexp.MustCompile(`"\s*\+\s*"`).ReplaceAllString(source.String(), "")
	for _, text := range []string{
		"denied", "refused", "invalid", "blocked", "planned", "only the plan was asked for, and nothing was run", "nobody approved it in time",
		"nothing more is taken in this turn", "it ran out of its time; give it more with --timeout",
	} {
		if messages.Chinese.Known(text) == text || messages.English.Known(text) != text {
			t.Errorf("%q is said as %q", text, messages.Chinese.Known(text))
		}
		if !strings.Contains(joined, text) {
			t.Errorf("nothing says %q any more", text)
		}
	}
	for _, p := range messages.Said {
		en, zh := verb.FindAllString(p[0], -1), verb.FindAllString(p[1], -1)
		if len(en) != len(zh) {
			t.Errorf("%q takes %q in English and %q in Chinese", p[0], en, zh)
		}
		// What stands before or behind another text is put together where it is said.
		if text := strings.TrimPrefix(strings.TrimSuffix(p[0], "%s"), "%s"); !strings.Contains(joined, strings.ReplaceAll(text, `"`, `\"`)) {
			t.Errorf("nothing says %q any more", p[0])
		}
		args := make([]any, len(en))
		for i := range args {
			args[i] = "x"
		}
		text := fmt.Sprintf(verb.ReplaceAllString(p[0], "%v"), args...)
		got := messages.Chinese.Known(text)
		if got == text || strings.Contains(got, "%!") || !strings.ContainsFunc(got, func(r rune) bool { return unicode.Is(unicode.Han, r) }) {
			t.Errorf("%q is said as %q", text, got)
		}
		if messages.English.Known(text) != text {
			t.Errorf("%q is said as %q in English", text, messages.English.Known(text))
		}
	}
	for text, want := range map[string]string{
		"step 2 is odd": "step 2 is odd",
		"the plan was not approved, and nothing was run: uid:0 denied it: the policy is mine": "计划未获批准，没有执行任何命令：uid:0 不允许：the policy is mine",
		"step 1 failed on host; the 2 steps behind it were not run":                           "第 1 步在 host 上失败；其后的 2 步没有执行",
		"step 1, host: rm -rf /: cannot run it: the policy blocks it: it destroys a whole tree that people or the machine live by: /; " +
			"removes or empties files: / (rules a, b, risk 100); \"carrel policy explain\" says how it is judged, and an " +
			"administrator sets the policy": "第 1 步，host：rm -rf /：不能执行：策略禁止：会销毁用户或系统赖以运行的整个目录树：/; " +
			"删除或清空文件：/（规则 a, b，风险 100）；“carrel policy explain”说明如何判断，策略由管理员设定",
	} {
		if got := messages.Chinese.Known(text); got != want {
			t.Errorf("%q is said as %q", text, got)
		}
	}
	for text, want := range map[string]string{
		"step 2: removes or empties files: /srv; mine": "第 2 步：删除或清空文件：/srv; mine",
		"step by step": "step by step",
		"the agent says that it is for: step 1: x": "助手说明的目的：第 1 步：x",
	} {
		if got := messages.Chinese.Reason(text); got != want || messages.English.Reason(text) != text {
			t.Errorf("%q is said as %q", text, got)
		}
	}
	// Whatever is said is looked at in a bounded time.
	deep := strings.Repeat("uid:0 denied it: ", 2000) + strings.Repeat("; ", 2000)
	if got := messages.Chinese.Known(deep); got != deep {
		t.Errorf("a text of %d bytes is said as %q", len(deep), got[:100])
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		setting, all, messages, lang string
		want                         messages.Language
	}{
		{"", "", "", "", messages.English},
		{"", "", "", "zh_CN.UTF-8", messages.Chinese},
		{"", "", "zh", "en_GB.UTF-8", messages.Chinese},
		{"", "en_GB.UTF-8", "zh_CN.UTF-8", "zh_CN.UTF-8", messages.English},
		{"", "C", "", "zh_CN.UTF-8", messages.English},
		{"", "ZH_tw", "", "", messages.Chinese},
		{"en", "zh_CN.UTF-8", "zh", "zh", messages.English},
		{"zh", "C", "", "en", messages.Chinese},
	} {
		env := map[string]string{"LC_ALL": c.all, "LC_MESSAGES": c.messages, "LANG": c.lang}
		if got := messages.Choose(c.setting, func(name string) string { return env[name] }); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
