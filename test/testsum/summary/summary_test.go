package summary_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/testsum/summary"
)

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		events []string
		ok     bool
		last   string
		says   []string
		silent []string
	}{
		"a pass": {
			events: []string{
				`{"Action":"run","Package":"m/a","Test":"TestA"}`,
				`{"Action":"output","Package":"m/a","Test":"TestA","Output":"a_test.go:3: chatter\n"}`,
				`{"Action":"pass","Package":"m/a","Test":"TestA"}`,
				`{"Action":"pass","Package":"m/a","Elapsed":1.5}`,
			},
			ok: true, last: "1 passed, 0 failed, 0 skipped", says: []string{"ok    a"}, silent: []string{"chatter"},
		},
		"a failure shows its output": {
			events: []string{
				`{"Action":"output","Package":"m/a","Test":"TestA","Output":"a_test.go:3: got 2, want 1\n"}`,
				`{"Action":"fail","Package":"m/a","Test":"TestA"}`,
				`{"Action":"pass","Package":"m/a","Test":"TestB"}`,
				`{"Action":"fail","Package":"m/a"}`,
			},
			last: "1 passed, 1 failed, 0 skipped", says: []string{"got 2, want 1", "FAIL  a"},
		},
		"a skip gives its reason": {
			events: []string{
				`{"Action":"output","Package":"m/a","Test":"TestA/x","Output":"=== RUN   TestA/x\n"}`,
				`{"Action":"output","Package":"m/a","Test":"TestA/x","Output":"    a_test.go:3: skipped: needs root: to mount\n"}`,
				`{"Action":"output","Package":"m/a","Test":"TestA/x","Output":"--- SKIP: TestA/x (0.00s)\n"}`,
				`{"Action":"skip","Package":"m/a","Test":"TestA/x"}`,
				`{"Action":"pass","Package":"m/a","Test":"TestB"}`,
				`{"Action":"pass","Package":"m/a"}`,
			},
			ok: true, last: "1 passed, 0 failed, 1 skipped", says: []string{"1 skipped:\n  a TestA/x: needs root: to mount\n"},
		},
		"a skip without a reason says so": {
			events: []string{`{"Action":"skip","Package":"m/a","Test":"TestA"}`, `{"Action":"pass","Package":"m/a"}`},
			last:   "0 passed, 0 failed, 1 skipped", says: []string{"no reason was given"},
		},
		"a build that fails": {
			events: []string{
				`{"ImportPath":"m/a [m/a.test]","Action":"build-output","Output":"a.go:1:1: syntax error\n"}`,
				`{"ImportPath":"m/a [m/a.test]","Action":"build-fail"}`,
				`{"Action":"fail","Package":"m/a","FailedBuild":"m/a [m/a.test]"}`,
			},
			last: "0 passed, 1 failed, 0 skipped", says: []string{"syntax error"},
		},
		"a panic after all tests passed": {
			events: []string{
				`{"Action":"pass","Package":"m/a","Test":"TestA"}`,
				`{"Action":"output","Package":"m/a","Output":"goleak: found unexpected goroutines\n"}`,
				`{"Action":"fail","Package":"m/a"}`,
			},
			last: "1 passed, 1 failed, 0 skipped", says: []string{"unexpected goroutines"},
		},
		"a run that breaks off": {
			events: []string{`{"Action":"run","Package":"m/a","Test":"TestA"}`, `{"Action":"pass","Package":"m/a","Test":"TestA"}`},
			last:   "1 passed, 1 failed, 0 skipped", says: []string{"did not come to its end"},
		},
		"no test files are neither": {
			events: []string{`{"Action":"skip","Package":"m/a"}`},
			last:   "0 passed, 0 failed, 0 skipped",
		},
		"what is no event is shown": {
			events: []string{`go: no such package`},
			last:   "0 passed, 0 failed, 0 skipped", says: []string{"go: no such package"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := summary.Summary{Trim: "m/"}
			var out strings.Builder
			if err := s.Read(strings.NewReader(strings.Join(c.events, "\n")+"\n"), &out); err != nil {
				t.Fatal(err)
			}
			if ok := s.Close(&out); ok != c.ok {
				t.Errorf("all is well: %v, want %v", ok, c.ok)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := lines[len(lines)-1]; got != c.last {
				t.Errorf("last line %q, want %q", got, c.last)
			}
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, out.String())
				}
			}
			for _, not := range c.silent {
				if strings.Contains(out.String(), not) {
					t.Errorf("it says %q:\n%s", not, out.String())
				}
			}
		})
	}
}

func TestSlowest(t *testing.T) {
	events := []string{
		`{"Action":"output","Package":"m/a","Test":"TestA","Output":"chatter\n"}`,
		`{"Action":"pass","Package":"m/a","Test":"TestA/sub","Elapsed":9}`,
		`{"Action":"pass","Package":"m/a","Test":"TestA","Elapsed":1}`,
		`{"Action":"fail","Package":"m/a","Test":"TestB","Elapsed":3}`,
		`{"Action":"pass","Package":"m/a","Test":"TestC","Elapsed":2}`,
		`{"Action":"fail","Package":"m/a","Elapsed":6.04}`,
		`{"Action":"pass","Package":"m/b","Test":"TestD","Elapsed":0.5}`,
		`{"Action":"pass","Package":"m/b","Elapsed":7}`,
	}
	s := summary.Summary{Trim: "m/"}
	var out strings.Builder
	if err := s.Read(strings.NewReader(strings.Join(events, "\n")+"\n"), &out); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	s.Slowest(&out, 2)
	want := `
slowest packages:
      7.0s  b
      6.0s  a

slowest tests:
      3.0s  a TestB
      2.0s  a TestC
`
	if out.String() != want {
		t.Errorf("it says\n%s\nwant\n%s", out.String(), want)
	}
}
