package watch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/cli/watch"
)

var sizes = [][2]int{{20, 5}, {80, 24}, {200, 60}}

// A key that answers does nothing before all of the question was on the screen.
func TestNoAnswerUnseen(t *testing.T) {
	long := map[string]string{
		"long":      strings.Repeat("x", 12000) + "; rm -rf ~",
		"wide":      strings.Repeat("界", 6500) + "; rm -rf ~",
		"tabs":      strings.Repeat("a\t", 4500) + "; rm -rf ~",
		"escapes":   strings.Repeat("a\x1b[1A\x1b[2K", 1000) + "; rm -rf ~",
		"invisible": strings.Repeat("a\u3164\u200b\u202e", 800) + "; rm -rf ~",
		"marks":     strings.Repeat("a"+strings.Repeat("\u0301", 40), 60) + "; rm -rf ~",
		"lines":     strings.Repeat("a\n", 500) + "; rm -rf ~",
	}
	for name, command := range long {
		for _, size := range sizes {
			t.Run(fmt.Sprintf("%s %dx%d", name, size[0], size[1]), func(t *testing.T) {
				i := item(1)
				i.What, i.Details = command, "ap-1\n\n  "+command+"\n\n  where  demo"
				s := open(t, i)
				s.size(size[0], size[1])
				s.shows("shown") // that not all is
				for _, keys := range []string{"y", "t", "n enter", "a y", "enter y t n enter", "G y t n enter"} {
					s.keys(strings.Fields(keys)...)
					if s.a.said() != "" {
						t.Fatalf("%s was taken: %s", keys, s.a.said())
					}
					s.keys("esc", "esc", "y")
					s.shows("not answered")
					if s.a.said() != "" {
						t.Fatalf("after %s: %s", keys, s.a.said())
					}
				}
				s.keys("enter")
				pages := 0
				for ; s.a.said() == ""; pages++ {
					if pages > 3000 {
						t.Fatal("it cannot be read to its end")
					}
					s.keys("space", "y")
				}
				if s.a.said() != "ap-1 once " {
					t.Error(s.a.said())
				}
				if pages < 1 {
					t.Error("one page was enough")
				}
			})
		}
	}
}

// What fits is answered at once; a resize takes that away when it no longer fits, and gives it back.
func TestResizeTakesTheRightAway(t *testing.T) {
	i := item(1)
	i.Details = strings.Repeat("echo 界; ", 20)
	s := open(t, i)
	for _, size := range sizes[1:] {
		s.size(size[0], size[1])
		if strings.Contains(s.text(), "shown") {
			t.Errorf("at %v something is missing:\n%s", size, s.text())
		}
	}
	s.keys("n", "w", "h", "y")
	s.size(20, 5)
	s.keys("enter")
	s.shows("not refused")
	s.keys("y", "t", "n", "enter", "y", "esc")
	if s.a.said() != "" {
		t.Fatalf("answered %s", s.a.said())
	}
	for range 30 {
		s.keys("space")
	}
	s.keys("n", "enter") // the reason was kept
	if s.a.said() != "ap-1 deny why" {
		t.Error(s.a.said())
	}
	s.size(20, 5)
	s.keys("y")
	s.size(80, 24)
	s.keys("y")
	if s.a.said() != "ap-1 deny why; ap-1 once " {
		t.Error(s.a.said())
	}
	i.Details += strings.Repeat("; and more", 500) // the question itself changed
	s.item(i)
	s.keys("y")
	if strings.Count(s.a.said(), ";") != 1 {
		t.Error(s.a.said())
	}
}

// Before the terminal has said its size, and in a window without room, nothing is on the screen.
func TestNoRoom(t *testing.T) {
	a := &answers{}
	s := &screen{t: t, Model: watch.NewModel(t.Context(), a), a: a}
	s.send(watch.Begin())
	s.item(item(1))
	s.keys("y", "n", "enter")
	for _, size := range [][2]int{{0, 0}, {1, 1}, {2, 24}, {80, 1}} {
		s.size(size[0], size[1])
		s.keys("y", "n", "enter", "esc", "t")
	}
	if a.said() != "" {
		t.Errorf("answered %s", a.said())
	}
}

// reader is a person who notes every character that the screen has shown since the window has its size.
type reader struct {
	t             *rapid.T
	width, height int
	// lines are the lines of the questions as they must be shown, seen which bytes of each were.
	lines map[string][]string
	seen  map[string][]bool
	at    map[rune]string // the line in which a character stands, which is there once in all lines
}

func newReader(t *rapid.T) *reader {
	return &reader{t: t, lines: map[string][]string{}, at: map[rune]string{}}
}

func (r *reader) knows(id, line string) {
	r.lines[id] = append(r.lines[id], line)
	for _, c := range line {
		if c > 0x250 {
			r.at[c] = line
		}
	}
}

func (r *reader) forget() {
	r.seen = map[string][]bool{}
	for _, lines := range r.lines {
		for _, l := range lines {
			r.seen[l] = make([]bool, len(l))
		}
	}
}

func (r *reader) look(view string) {
	lines := strings.Split(view, "\n")
	if view != "" && len(lines) > r.height {
		r.t.Fatalf("%d lines in a window of %dx%d:\n%s", len(lines), r.width, r.height, view)
	}
	for _, l := range lines {
		l = ansi.Strip(l)
		if n := max(ansi.StringWidth(l), ansi.StringWidthWc(l)); n > r.width {
			r.t.Fatalf("a line of %d cells in a window of %dx%d: %q", n, r.width, r.height, l)
		}
		if n := strings.IndexFunc(l, func(c rune) bool { return !unicode.IsPrint(c) || unicode.Is(unicode.M, c) }); n >= 0 {
			r.t.Fatalf("the terminal is sent %q", l)
		}
		for i, c := range l {
			whole := r.at[c]
			if whole == "" {
				continue
			}
			from := strings.IndexRune(whole, c) - i
			if from < 0 || !strings.HasPrefix(whole[from:], l) {
				r.t.Fatalf("%q is not a part of %q", l, whole)
			}
			for n := range len(l) {
				r.seen[whole][from+n] = true
			}
			break
		}
	}
}

// all reports what of a question was not shown.
func (r *reader) unseen(id string) (out []string) {
	for _, l := range r.lines[id] {
		if n := slices.Index(r.seen[l], false); n >= 0 {
			out = append(out, l[n:])
		}
	}
	return out
}

// odd are texts that a terminal would obey, hide or join, and how they must be shown.
var odd = [][2]string{
	{"\t", `\t`},
	{"\x1b", `\x1b`},
	{"\x00", `\x00`},
	{"\r", `\r`},
	{"\u202e", `\u202e`},
	{"\u200b", `\u200b`},
	{"\u0301", `\u0301`},
	{"\u3164", `\u3164`},
	{"\u2800", `\u2800`},
	{"\ufe0f", `\ufe0f`},
	{"\U000e0001", `\U000e0001`},
	{"\xff", `\xff`},
	{" ", " "},
	{"ab", "ab"},
	{"\u00a0", `\u00a0`},
	{"\U0001f1e6\U0001f1e7", `\U0001f1e6\U0001f1e7`},
}

// Whatever the sizes, the lengths and the keys: when an answer is sent or its reason is asked for, every
// character of the command was on the screen at the present size.
func TestAnsweredIsSeen(t *testing.T) {
	answered := 0
	rapid.Check(t, func(rt *rapid.T) {
		r := newReader(rt)
		escapes := rapid.Bool().Draw(rt, "escapes")
		next := rune(0x4e00)
		narrow := rune(0x400) // Cyrillic, one cell each
		command := func() (raw, shown string) {
			for range rapid.SampledFrom([]int{1, 10, 40, 150}).Draw(rt, "length") {
				c := next
				if narrow < 0x480 && rapid.Bool().Draw(rt, "narrow") {
					c = narrow
					narrow++
				} else {
					next++
				}
				o := [2]string{}
				if escapes && rapid.IntRange(0, 3).Draw(rt, "odd") == 0 {
					o = rapid.SampledFrom(odd).Draw(rt, "which")
				}
				if utf8.RuneCountInString(o[0]) == 1 && strings.ContainsAny(o[0], "\u0301\ufe0f\u200b") {
					// It joins what stands before it: put a letter there.
					o = [2]string{"e" + o[0], "e" + o[1]}
				}
				raw, shown = raw+string(c)+o[0], shown+string(c)+o[1]
			}
			next++ // no line ends in an escape
			raw, shown = raw+string(next), shown+string(next)
			next++
			return raw, shown
		}
		s := open(t)
		var items []watch.Item
		for n := range rapid.IntRange(1, 4).Draw(rt, "items") {
			i := item(n + 1)
			raw, shown := command()
			i.Digest = rapid.SampledFrom([]string{"", "one"}).Draw(rt, "digest")
			i.What, i.Details = "x", fmt.Sprintf("ap-%d\n%s\n  where  demo", n+1, raw)
			r.knows(i.ID, shown)
			items = append(items, i)
		}
		small := func() {
			least, named := 4, sizes
			if escapes { // a line of a narrower window may hold an escape and nothing that says where it stands
				least, named = 24, sizes[1:]
			}
			r.width, r.height = rapid.IntRange(least, 120).Draw(rt, "width"), rapid.IntRange(1, 30).Draw(rt, "height")
			if rapid.Bool().Draw(rt, "named") {
				size := rapid.SampledFrom(named).Draw(rt, "size")
				r.width, r.height = size[0], size[1]
			}
			r.forget()
			s.size(r.width, r.height)
		}
		r.width, r.height = 100, 30
		r.forget()
		s.shown = r.look
		small()
		for _, i := range items {
			s.item(i)
		}
		asking := false
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			before := len(s.a.got)
			unseen := map[string][]string{} // before the key
			for _, i := range items {
				unseen[i.ID] = r.unseen(i.ID)
			}
			chosen := s.text()
			key := rapid.SampledFrom([]string{
				"space", "space", "space", "space", "b", "enter", "enter", "esc", "j", "k", "G", "g", "?", "tab",
				"y", "y", "t", "n", "a", "a", "resize",
			}).Draw(rt, "key")
			if key == "resize" {
				small()
			} else {
				s.keys(key)
			}
			sent := s.a.got[before:]
			for _, got := range sent {
				answered++
				id, _, _ := strings.Cut(got, " ")
				// The questions that are answered together are about one action: the first was read.
				if len(sent) > 1 && got != sent[0] {
					continue
				}
				if len(unseen[id]) > 0 {
					rt.Fatalf("%s was answered by %s; not shown: %q\n%s", id, key, unseen[id], chosen)
				}
			}
			foot := s.text()[strings.LastIndexByte(s.text(), '\n')+1:]
			if now := strings.Contains(foot, "▏"); now && !asking {
				if !slices.ContainsFunc(items, func(i watch.Item) bool { return len(unseen[i.ID]) == 0 }) {
					rt.Fatalf("a reason is asked for and nothing was read:\n%s", chosen)
				}
				asking = true
			} else {
				asking = now
			}
		}
	})
	if answered == 0 { // of about 100
		t.Error("no key answered")
	}
}

// Characters that a terminal obeys, hides or joins are shown as codes.
func TestOddCharacters(t *testing.T) {
	for _, o := range odd {
		i := item(1)
		i.What, i.Details = "run x"+o[0]+"y", "x"+o[0]+"y"
		s := open(t, i)
		s.shows("run x"+o[1]+"y", "\nx"+o[1]+"y")
	}
}

// One key answers every open question about the same action, after a page that says how many and where.
func TestAnswerTogether(t *testing.T) {
	same := func(n int) watch.Item {
		i := item(n)
		i.Digest, i.Where = "sha256:1", fmt.Sprintf("ws%d", n)
		return i
	}
	other := item(9)
	other.Digest = "sha256:2"
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := open(t, same(1), item(2), same(3), other, same(4), item(5))
			s.size(size[0], size[1])
			s.keys("space", "space", "a")
			s.keys("esc", "a")
			var all string
			for range 30 {
				lines := strings.Split(ansi.Strip(s.text()), "\n")
				all += strings.Join(lines[1:len(lines)-1], "") // without title and keys
				s.keys("space")
			}
			for _, want := range []string{"Answer these 3 questions", "workspace ws1", "workspace ws3", "workspace ws4", "details of 1"} {
				if !strings.Contains(all, want) {
					t.Errorf("%q is not shown: %s", want, all)
				}
			}
			s.keys("t")
			s.item(same(6)) // it came after the page: not among them
			s.keys("y")
			if s.a.said() != "ap-1 once ; ap-3 once ; ap-4 once " {
				t.Error(s.a.said())
			}
			s.shows("all 3: approved")
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := open(t, same(1), same(3))
		s.keys("a", "n", "n", "o", "enter")
		if s.a.said() != "ap-1 deny no; ap-3 deny no" {
			t.Error(s.a.said())
		}
	})
	t.Run("some fail", func(t *testing.T) {
		s := open(t, same(1), same(3), same(4))
		s.a.fail = func(id string) error {
			if id == "ap-3" {
				return errors.New("it is denied already")
			}
			return nil
		}
		s.keys("a", "y")
		s.shows("2 of 3 were approved", "ap-3  workspace ws3: it is denied already")
		s.keys("y", "n")
		s.shows("nothing is answered from this page")
		if len(s.a.got) != 3 {
			t.Error(s.a.said())
		}
		s.keys("q")
		s.shows("3 pending")
	})
	t.Run("none", func(t *testing.T) {
		s := open(t, other, same(1))
		s.keys("a")
		s.shows("no other question")
		s.keys("down", "a")
		s.shows("no other question")
	})
	t.Run("not the digest of nothing", func(t *testing.T) {
		s := open(t, item(1), item(2))
		s.keys("a")
		s.shows("no other question")
	})
}

// The list has heads and says where in it the choice is.
func TestPosition(t *testing.T) {
	var items []watch.Item
	for n := range 17 {
		items = append(items, item(n+1))
	}
	s := open(t, items...)
	for _, size := range sizes {
		s.size(size[0], size[1])
		s.keys("g", "down", "down")
		s.shows("3 of 17")
		if size[1] >= 24 {
			s.shows("RISK  EXPIRES AT  WORKSPACE       ASKED BY    ACTION")
		}
	}
	s.item(over(item(20), "denied"))
	s.keys("tab")
	s.shows("1 of 1 that are over", "RISK  ANSWER      WORKSPACE ")
}
