package rules

import (
	"regexp"
	"sync"
)

// lazyRegexp is a regular expression that is compiled on first use. Compiling all of them would
// cost every process that links this package a few milliseconds at its start (benchmark "carrel
// run").
type lazyRegexp struct {
	text string
	once sync.Once
	re   *regexp.Regexp
}

// lazy declares the expression of a package variable. A test compiles each.
func lazy(text string) *lazyRegexp { return &lazyRegexp{text: text} }

func (l *lazyRegexp) compiled() *regexp.Regexp {
	l.once.Do(func() { l.re = regexp.MustCompile(l.text) })
	return l.re
}

func (l *lazyRegexp) MatchString(s string) bool { return l.compiled().MatchString(s) }

func (l *lazyRegexp) FindStringSubmatch(s string) []string {
	return l.compiled().FindStringSubmatch(s)
}
