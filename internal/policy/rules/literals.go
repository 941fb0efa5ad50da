package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// homes replaces the ways in which other languages write the home directory.
var homes = strings.NewReplacer(`$ENV{HOME}`, "~", `#{ENV['HOME']}`, "~", `#{Dir.home}`, "~",
	`' + os.environ['HOME'] + '`, "~", `$HOME`, "~")

// codeCalls matches calls that run a command, up to the quote of their first literal.
var codeCalls = lazy(`(?:\b(?:system|popen[23]?|shell_exec|passthru|proc_open|pcntl_exec|exec(?:Sync|File|FileSync|ute)?|` +
	`exec[lv]p?e?|spawn(?:Sync|_shell|lp?)?|[Pp]open|run|call|check_call|check_output|getoutput|` +
	`getstatusoutput|capture[23]?e?|cmd|shell|esyscmd|shell-command(?:-to-string)?)\b|` +
	`%pipe%)\s*[({]*\s*\[?\s*['"]`)

// codeQuotes matches quotes of perl, ruby and php that run their content.
var codeQuotes = lazy("`([^`]+)`" + `|\b(?:qx|%x)\s*(?:\(([^)]*)\)|\{([^}]*)\}|\[([^\]]*)\]|/([^/]*)/)|%x\(([^)]*)\)`)

// maxCodeRuns limits the calls that are judged in one text of code.
const maxCodeRuns = 16

// codeRuns judges the commands that code runs by literals. Code that composes its words stays
// unknown.
func (j *judge) codeRuns(s *segment, code string) {
	if j.depth > maxNesting {
		return
	}
	j.depth++
	defer func() { j.depth-- }()
	for _, at := range codeCalls.compiled().FindAllStringIndex(code, maxCodeRuns) {
		switch words := quotedWords(code[at[1]-1:]); {
		case len(words) == 1:
			j.shellText(s, shell.Word{Text: words[0], Source: words[0]})
		case len(words) > 1:
			list := make([]shell.Word, len(words))
			for i, w := range words {
				list[i] = shell.Word{Text: w, Source: w}
			}
			j.nested(s, list)
		}
	}
	if s.spec == nil {
		return
	}
	switch s.spec.name {
	case "perl", "ruby", "php":
		for _, m := range codeQuotes.compiled().FindAllStringSubmatch(code, maxCodeRuns) {
			if text := strings.Join(m[1:], ""); text != "" {
				j.shellText(s, shell.Word{Text: text, Source: text})
			}
		}
	}
}

// quotedWords reads the quoted strings at the start of a text, separated by commas.
func quotedWords(text string) []string {
	var words []string
	for len(words) < 64 && text != "" && (text[0] == '\'' || text[0] == '"') {
		quote := text[0]
		var b strings.Builder
		i := 1
		for ; i < len(text) && text[i] != quote; i++ {
			if text[i] == '\\' && i+1 < len(text) {
				i++
			}
			b.WriteByte(text[i])
		}
		if i >= len(text) {
			return words
		}
		words = append(words, b.String())
		rest, ok := strings.CutPrefix(strings.TrimLeft(text[i+1:], " "), ",")
		if !ok {
			return words
		}
		text = strings.TrimLeft(rest, " [")
	}
	return words
}
