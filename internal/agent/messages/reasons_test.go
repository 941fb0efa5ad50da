package messages_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// fixedReasons are the reasons of the built-in rules, and of the actions of agents.
func fixedReasons(t *testing.T) (all []string) {
	t.Helper()
	rules, err := os.ReadFile("../../../internal/policy/rules/builtin.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)\breason: *("(?:[^"\\]|\\.)*"|[^}\n]*?) *(?:}|,? *[a-z_]+:|$)`)
	for _, m := range text.FindAllStringSubmatch(string(rules), -1) {
		all = append(all, strings.Trim(m[1], `" ,`))
	}
	rows, err := os.ReadFile("../../../internal/spec/operation/rows.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Reason: "([^"]*)"`).FindAllStringSubmatch(string(rows), -1) {
		if strings.HasPrefix(m[1], "changes files") || strings.Contains(m[1], "has to approve one") ||
			strings.HasPrefix(m[1], "a task has a person asked") {
			all = append(all, m[1])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Every fixed reason has a Chinese form, and there is none of a reason that there is not; what it is about stays, and so does every other
// text.
func TestReasons(t *testing.T) {
	all := fixedReasons(t)
	if len(all) < 55 {
		t.Fatalf("there are %d: %q", len(all), all)
	}
	for _, why := range all {
		got := messages.Chinese.Reason(why)
		han := strings.ContainsFunc(got, func(r rune) bool { return unicode.Is(unicode.Han, r) })
		if got == why || strings.ContainsFunc(got, unicode.IsControl) || !han {
			t.Errorf("%q has no Chinese form: %q", why, got)
		}
		if behind := messages.Chinese.Reason(why + ": /etc/x: y"); behind != got+"：/etc/x: y" {
			t.Errorf("%q with what it is about is %q", why, behind)
		}
		if messages.English.Reason(why) != why {
			t.Errorf("in English %q is %q", why, messages.English.Reason(why))
		}
	}
	if known := messages.Reasons(); !slices.Equal(known, all) {
		t.Errorf("the catalogue has %q, and the rules %q", known, all)
	}
	for _, other := range []string{"a rule of ours: production", "", "reads secrets of ours"} {
		if got := messages.Chinese.Reason(other); got != other {
			t.Errorf("%q is %q", other, got)
		}
	}
}
