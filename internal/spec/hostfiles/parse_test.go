package hostfiles_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

const (
	dated = "date 2026-11-28\n"
	good  = ".a *.b | any | back | never | reader | trigger | source\n"
)

func TestParse(t *testing.T) {
	all, err := hostfiles.Parse("# a comment\n\n" + dated + good +
		"=C | home | report | source | r, s | t | u\nH | top | held-bare | never | r | t | u")
	if err != nil {
		t.Fatal(err)
	}
	back := hostfiles.Entry{
		Pattern: ".a", Any: true, Act: hostfiles.Back, Asks: hostfiles.Unasked, Reader: "reader", Trigger: "trigger", Source: "source",
		Date: "2026-11-28",
	}
	star, home, bare := back, back, back
	star.Pattern = "*.b"
	home.Pattern, home.Exact, home.Any, home.Home, home.Act, home.Asks = "C", true, false, true, hostfiles.Report, hostfiles.AsSource
	bare.Pattern, bare.Any, bare.Act, bare.Absent = "H", false, hostfiles.Held, hostfiles.NoRepository
	home.Reader, home.Trigger, home.Source = "r, s", "t", "u"
	bare.Reader, bare.Trigger, bare.Source = "r", "t", "u"
	if want := []hostfiles.Entry{back, star, home, bare}; !slices.Equal(all, want) {
		t.Errorf("read\n%+v, and not\n%+v", all, want)
	}
}

func TestParseRefuses(t *testing.T) {
	line := func(patterns, where, act, asks string) string {
		return dated + strings.Join([]string{patterns, where, act, asks, "reader", "trigger", "source\n"}, " | ")
	}
	for name, text := range map[string]string{
		"a column too few":                     dated + ".a | any | back | never | reader | trigger\n",
		"a column too many":                    dated + ".a | any | back | never | reader | trigger | source | more\n",
		"an empty column":                      dated + ".a | any | back | never |  | trigger | source\n",
		"no name":                              line(" ", "any", "back", "never"),
		"an unknown place":                     line(".a", "below", "back", "never"),
		"an unknown act":                       line(".a", "any", "hide", "never"),
		"an unknown asks":                      line(".a", "any", "back", "sometimes"),
		"back that is bare":                    line(".a", "any", "back-bare", "never"),
		"no date":                              good,
		"a date that is none":                  "date yesterday\n" + good,
		"a reader that is not asked, reported": line(".a", "any", "report", "never"),
		"a reader that asks once, reported":    line(".a", "any", "report", "path"),
		"what is as good as source, held":      line(".a", "any", "held-present", "source"),
		"what is asked for anew, moved":        line(".a", "any", "back", "content"),
		"a name below another, held":           line("a/b", "any", "held-present", "never"),
		"a star, held":                         line("*.a", "any", "held", "never"),
		"an exact name, held":                  line("=a", "any", "held", "never"),
		"two stars":                            line("*.*", "any", "back", "never"),
		"a star alone":                         line("*", "any", "back", "never"),
		"a star with a letter before it":       line("a*", "any", "back", "never"),
		"a star with a letter at each side":    line("a*b", "any", "back", "never"),
		"a star in a directory":                line("a*/b", "any", "back", "never"),
		"an exact path":                        line("=a/b", "any", "back", "never"),
		"an absolute path":                     line("/a", "any", "back", "never"),
		"an empty part":                        line("a//b", "any", "back", "never"),
		"a part that is the directory":         line("./a", "any", "back", "never"),
		"a dot at the end":                     line("a.", "any", "back", "never"),
		"a letter beyond ASCII that folds":     line("\u017fa", "any", "back", "never"),
		"one name twice in a line":             line(".a .a", "any", "back", "never"),
		"one name twice":                       dated + good + good,
	} {
		if all, err := hostfiles.Parse(text); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: read %+v, %v", name, all, err)
		}
	}
	if _, err := hostfiles.Parse(dated + good); err != nil {
		t.Errorf("a line that all of these change is refused: %v", err)
	}
}
