package policy

import (
	"regexp"
	"sync"
)

// lazyRegexp is a regular expression of ours that is compiled when it is first used: most
// processes that link this package judge little or nothing, and all of them together would
// cost each of those some milliseconds of its start.
type lazyRegexp struct {
	text string
	once sync.Once
	re   *regexp.Regexp
}

// lazy is a package variable's expression. A test compiles each.
func lazy(text string) *lazyRegexp { return &lazyRegexp{text: text} }

func (l *lazyRegexp) compiled() *regexp.Regexp {
	l.once.Do(func() { l.re = regexp.MustCompile(l.text) })
	return l.re
}

func (l *lazyRegexp) MatchString(s string) bool { return l.compiled().MatchString(s) }

func (l *lazyRegexp) FindStringSubmatch(s string) []string {
	return l.compiled().FindStringSubmatch(s)
}
