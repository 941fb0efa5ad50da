// Package messages has the texts that people of the agent read, in English and in Simplified Chinese.
//
// They are for people alone. What a program reads, what is told to a model, what is recorded and what an answer is bound to is no text
// of this package: it is the same in every language.
package messages

import (
	"fmt"
	"slices"
	"strings"
)

// Language is one of those that there are. The zero value is English.
type Language uint8

// The languages.
const (
	English Language = iota
	Chinese
)

// names are what settings call the languages.
var names = []string{English: "en", Chinese: "zh"}

// Names are what settings call the languages.
func Names() []string { return slices.Clone(names) }

// Choose is the language of a setting, which is one of Names, or where it is "" of the environment: of LC_ALL, LC_MESSAGES and LANG
// the first that is not empty says it, as POSIX has it.
func Choose(setting string, env func(string) string) Language {
	if i := slices.Index(names, setting); i >= 0 {
		return Language(i)
	}
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if value := env(name); value != "" {
			if strings.HasPrefix(strings.ToLower(value), "zh") {
				return Chinese
			}
			return English
		}
	}
	return English
}

// Say is a text with its arguments, those of package fmt.
func (l Language) Say(key Key, args ...any) string {
	text := english[key]
	if l == Chinese {
		text = chinese[key]
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

// Known is a text of the daemon in this language. Those that it does not have stay as they are, also within others.
func (l Language) Known(text string) string {
	for _, key := range []Key{Denied, Refused, Invalid, Blocked, Planned, WhyPlanOnly, WhyNobody, WhyNoMore, WhyInTime} {
		if text == english[key] {
			return l.Say(key)
		}
	}
	if l != Chinese {
		return text
	}
	return within(text, 0)
}
