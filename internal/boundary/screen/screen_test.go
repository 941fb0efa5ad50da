package screen_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/screen"
)

func write(s *screen.Screen, text string) {
	for b := []byte(text); len(b) > 0; {
		b = b[s.Write(b):]
	}
}

// outputs are what programs write, and what a screen of 4 rows and 10 columns shows then.
var outputs = []struct{ name, in, want string }{
	{"lines", "one\r\ntwo", "one\ntwo"},
	{"line feed keeps the column", "one\ntwo", "one\n   two"},
	{"wraps", "0123456789ab", "0123456789\nab"},
	{"the last column waits", "0123456789\rX", "X123456789"},
	{"no wrap", "\x1b[?7l0123456789ab", "012345678b"},
	{"scrolls", "1\r\n2\r\n3\r\n4\r\n5", "2\n3\n4\n5"},
	{"moves", "\x1b[2;3Hx\x1b[Ay\x1b[2Dz", "  zy\n  x"},
	{"erases to the end", "abcdef\x1b[3D\x1b[K", "abc"},
	{"erases to the beginning", "abcdef\x1b[3D\x1b[1K", "    ef"},
	{"erases all", "a\r\nb\x1b[2Jc", "\n c"},
	{"inserts characters", "abc\x1b[2D\x1b[2@X", "aX bc"},
	{"deletes characters", "abcdef\x1b[5D\x1b[2P", "adef"},
	{"inserts lines", "a\r\nb\r\nc\x1b[2H\x1b[L", "a\n\nb\nc"},
	{"deletes lines", "a\r\nb\r\nc\x1b[1H\x1b[M", "b\nc"},
	{"a region scrolls", "1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3H\nx", "1\n3\nx\n4"},
	{"reverse index", "a\r\nb\x1b[H\x1bMc", "c\na\nb"},
	{"origin", "\x1b[2;3r\x1b[?6h\x1b[1;1Hx\x1b[9;1Hy", "\nx\ny"},
	{"tabs", "a\tb", "a       b"},
	{"repeats", "ab\x1b[3b", "abbbb"},
	{"line drawing", "\x1b(0lqk\x1b(Blqk", "┌─┐lqk"},
	{"shifted line drawing", "\x1b)0a\x0ex\x0fx", "a│x"},
	{"UTF-8", "é漢x", "é漢x"},
	{"a wide character wraps whole", "012345678漢", "012345678\n漢"},
	{"half of a wide character", "漢\x1b[2Gx", " x"},
	{"combining", "e\u0301x", "e\u0301x"},
	{"invalid UTF-8", "a\xffb\xe6\xbcc\xc3", "a\ufffdb\ufffdc"},
	{"alternate screen", "main\x1b[?1049h\x1b[Hother", "other"},
	{"and back", "main\x1b[?1049h\x1b[Hother\x1b[?1049l!", "main!"},
	{"saves the cursor", "a\x1b7\x1b[3;3Hb\x1b8c", "ac\n\n  b"},
	{"titles go nowhere", "\x1b]0;rm -rf /\x07a\x1b]52;c;eA==\x1b\\b", "ab"},
	{"device controls go nowhere", "\x1bPq#0;2\x1b\\a\x1b_x\x1b\\b", "ab"},
	{"cut off by another sequence", "\x1b]0;x\x1b[1;3Ha", "  a"},
	{"unknown sequences", "\x1b[?1;2$y\x1b[>4;2m\x1b[<1ua\x1b%Gb", "ab"},
	{"too many parameters", "\x1b[" + strings.Repeat("1;", 100) + "mx", "x"},
	{"control characters inside", "\x1b[2\r;3Hx", "\n  x"},
	{"cancelled", "\x1b[2;3\x18x", "x"},
	{"turned text", "a\u202eb", "ab"},
	{"8-bit controls are none", "a\u009b2Jb", "a2Jb"},
	{"reset", "abc\x1bcx", "x"},
}

func TestWhatProgramsWrite(t *testing.T) {
	for _, c := range outputs {
		s := screen.New(4, 10)
		write(s, c.in)
		if got := s.Text(); got != c.want {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
	}
}

// others are the outputs that tmux shows in another way, with the reason.
var others = map[string]string{
	"line drawing":             "it captures the letters that stand for lines",
	"shifted line drawing":     "it captures the letters that stand for lines",
	"half of a wide character": "it captures both halves",
	"invalid UTF-8":            "it drops what is none",
	"turned text":              "it keeps what turns it",
}

// tmux, which others wrote, shows the same.
func TestAgainstTmux(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("skipped: tmux, with which this compares, is not here")
	}
	dir := t.TempDir()
	tmux := func(args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), "tmux", append([]string{"-u", "-f", "/dev/null", "-S", filepath.Join(dir, "s")}, args...)...)
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TERM=xterm", "HOME=" + dir}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := tmux("new-session", "-d", "-s", "s", "-x", "10", "-y", "5", "sleep 1000"); err != nil {
		t.Skip("skipped: this tmux does not start: ", out)
	}
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", filepath.Join(dir, "s"), "kill-server").Run() })
	if out, err := tmux("set", "-g", "status", "off", ";", "resize-window", "-t", "s", "-x", "10", "-y", "4"); err != nil {
		t.Fatal(out)
	}
	for i, c := range outputs {
		if others[c.name] != "" {
			continue
		}
		in, done := filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint("done", i))
		if err := os.WriteFile(in, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := tmux("respawn-pane", "-k", "-t", "s", "stty raw -echo; cat "+in+"; touch "+done+"; exec sleep 1000"); err != nil {
			t.Fatal(out)
		}
		var got string
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			out, err := tmux("capture-pane", "-p", "-t", "s")
			if err != nil {
				t.Fatal(out)
			}
			lines := strings.Split(out, "\n")
			for i := range lines {
				lines[i] = strings.TrimRight(lines[i], " ")
			}
			got = strings.TrimRight(strings.Join(lines, "\n"), "\n")
			if _, err := os.Stat(done); err == nil && got == c.want {
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: tmux shows %q, and not %q", c.name, got, c.want)
		}
	}
}

func TestAnswers(t *testing.T) {
	s := screen.New(4, 10)
	write(s, "ab\x1b[6n\x1b[c\x1b[5n")
	if got := string(s.Answers()); got != "\x1b[1;3R\x1b[?62;22c\x1b[0n" {
		t.Errorf("%q", got)
	}
	write(s, strings.Repeat("\x1b[6n", 10_000))
	if n := len(s.Answers()); n == 0 || n > 256 {
		t.Errorf("%d bytes of answers", n)
	}
}

// drawn is what a client's terminal of its own shows after all that Draw gave it.
type drawn struct {
	*screen.Screen
	view screen.View
}

func (d *drawn) draw(s *screen.Screen) {
	for done := false; !done; {
		var b []byte
		b, done = s.Draw(&d.view, nil, 100)
		write(d.Screen, string(b))
	}
}

func same(t *testing.T, what string, s *screen.Screen, d *drawn) {
	t.Helper()
	if got, want := d.Dump(), s.Dump(); got != want {
		t.Fatalf("%s: the client shows\n%s\nand not\n%s", what, got, want)
	}
}

var pieces = []string{
	"text ", "漢字", "e\u0301", "\r\n", "\r\n\r\n\r\n", "\t", "\b", "\x1b[A", "\x1b[7B", "\x1b[H", "\x1b[3;4H", "\x1b[2J", "\x1b[K", "\x1b[1K",
	"\x1b[L", "\x1b[2M", "\x1b[3@", "\x1b[2P", "\x1b[4X", "\x1b[2S", "\x1b[T", "\x1b[2;5r", "\x1b[r", "\x1b[31m", "\x1b[1;4;38;5;200m",
	"\x1b[7m",
	"\x1b[48;2;1;2;3m", "\x1b[m", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h", "\x1b7", "\x1b8", "\x1bM", "\x1b(0qqq\x1b(B",
	"\x1b[?2004h", "\x1b[?1000h\x1b[?1006h", "\x1b[?1000l", "\x1b=", "\x1b>", "\x1b[4 q", "\x07", "\x1b[9m\x1b[8mx",
	"0123456789012345678901234567890",
}

// However a program writes, a client that joined at any time, and one that reads seldom, show what the screen shows.
func TestClientsShowTheSame(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := screen.New(6, 20)
		early, seldom := &drawn{Screen: screen.New(6, 20)}, &drawn{Screen: screen.New(6, 20)}
		early.view.Rows, early.view.Cols = 6, 20
		var log strings.Builder
		for i := range 60 {
			p := pieces[r.IntN(len(pieces))]
			fmt.Fprintf(&log, "%q ", p)
			write(s, p)
			early.draw(s)
			same(t, log.String(), s, early)
			if i%17 == 0 {
				seldom.draw(s)
				same(t, log.String(), s, seldom)
			}
		}
		late := &drawn{Screen: screen.New(6, 20)}
		late.draw(s)
		same(t, "late: "+log.String(), s, late)
	}
}

func TestResize(t *testing.T) {
	s := screen.New(4, 10)
	write(s, "1\r\n2\r\n3\r\nprompt")
	s.Resize(2, 8)
	if got := s.Text(); got != "3\nprompt" {
		t.Errorf("lower: %q", got)
	}
	s.Resize(4, 12)
	write(s, "!")
	if got := s.Text(); got != "3\nprompt!" {
		t.Errorf("higher: %q", got)
	}
	s.Resize(1<<20, 1<<20)
	if r, c := s.Size(); r != screen.MaxRows || c != screen.MaxCols {
		t.Errorf("%d by %d", r, c)
	}
}

// A small window is drawn within its bounds.
func TestSmallWindow(t *testing.T) {
	s := screen.New(6, 20)
	write(s, strings.Repeat("0123456789abcdefghij", 6))
	d := &drawn{Screen: screen.New(3, 7)}
	d.view.Rows, d.view.Cols = 3, 7
	d.draw(s)
	if got := d.Text(); got != "0123456\n0123456\n0123456" {
		t.Errorf("%q", got)
	}
}

// What costs much is done a piece at a time, and an answer to one piece of input is bounded.
func TestWorkIsBounded(t *testing.T) {
	for _, bomb := range []string{"\x1b[2J", "\x1bc", "\x1b[65535S", "\x1b#8", "x\x1b[65535b", "\x1b[65535L", "\x1b[?1049h\x1b[?1049l"} {
		s := screen.New(screen.MaxRows, screen.MaxCols)
		b := []byte(strings.Repeat(bomb, 1000))
		calls := 0
		for rest := b; len(rest) > 0; calls++ {
			n := s.Write(rest)
			if n == 0 {
				t.Fatalf("%q: no progress", bomb)
			}
			rest = rest[n:]
		}
		if calls < 3 && bomb != "\x1b[?1049h\x1b[?1049l" {
			t.Errorf("%q: all of it in %d calls", bomb, calls)
		}
	}
}

func FuzzScreen(f *testing.F) {
	f.Add([]byte(strings.Join(pieces, "")), uint8(3), uint8(9))
	f.Add([]byte("\x1b[38:2::1:2:3m\x1b[4:3mx\x1b[58;5;1my"), uint8(6), uint8(20))
	f.Fuzz(func(t *testing.T, in []byte, rows, cols uint8) {
		r, c := screen.Clip(int(rows), int(cols))
		s, d := screen.New(r, c), &drawn{Screen: screen.New(r, c)}
		half := len(in) / 2
		write(s, string(in[:half]))
		d.draw(s)
		same(t, "half", s, d)
		write(s, string(in[half:]))
		s.Answers()
		d.draw(s)
		same(t, "all", s, d)
		late := &drawn{Screen: screen.New(r, c)}
		late.draw(s)
		same(t, "late", s, late)
		s.Resize(int(cols), int(rows))
		write(s, string(in))
	})
}
