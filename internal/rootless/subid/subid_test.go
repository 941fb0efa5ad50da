package subid_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/rootless/subid"
)

func TestParseRange(t *testing.T) {
	for text, want := range map[string]uint32{
		"me:100000:65536\n":                 100000,
		"1000:100000:65536":                 100000,
		"you:5:9\nme:100000:65536":          100000,
		"me:100:1\nme:200:2\nme:300:3\n":    200,
		"":                                  0,
		"you:100000:65536":                  0,
		"me:0:65536":                        0,
		"me:100000:1":                       0,
		"me:100000":                         0,
		"me:100000:65536:1":                 0,
		"me:-1:65536":                       0,
		"me:4294967295:2":                   0,
		"me:4294967294:2":                   0,
		"me:4294967293:2":                   4294967293,
		"me:99999999999:2":                  0,
		"meme:1:2\n:1:2\n# me:1:2\nme :1:2": 0,
	} {
		if got, ok := subid.ParseRange([]byte(text), "me", "1000"); got != want || ok != (want != 0) {
			t.Errorf("%q: %d, %v, want %d", text, got, ok, want)
		}
	}
}

// A range is never one that the file does not give, nor root's or the number for none.
func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"me:100000:65536\n", "1000:1:2", "me:0:9", "me:4294967294:2", "me:1:2:3\n\nme:5:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, ok := subid.ParseRange([]byte(text), "me", "1000")
		if !ok {
			if first != 0 {
				t.Errorf("%d without a range", first)
			}
			return
		}
		if first == 0 || uint64(first)+2 >= 1<<32 || !strings.Contains(text, "me:") && !strings.Contains(text, "1000:") {
			t.Errorf("%d", first)
		}
	})
}
