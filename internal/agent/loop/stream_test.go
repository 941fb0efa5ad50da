package loop_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/agent/llm"
	"github.com/carrel-dev/carrel/internal/agent/loop"
	"github.com/carrel-dev/carrel/internal/agent/plan"
)

// inPieces is a model that tells its answers in pieces. After the first n pieces of an answer it waits for goOn, if that is there.
type inPieces struct {
	answers [][]string
	n       int
	goOn    chan struct{}
}

// Stream implements loop.Model.
func (m *inPieces) Stream(ctx context.Context, _ llm.Request, emit func(llm.Event) error) (llm.Answer, error) {
	pieces := m.answers[0]
	m.answers = m.answers[1:]
	for i, p := range pieces {
		if i == m.n && m.goOn != nil {
			select {
			case <-m.goOn:
			case <-ctx.Done():
				return llm.Answer{}, context.Cause(ctx)
			}
		}
		if err := emit(llm.Event{Kind: llm.TextDelta, Text: p}); err != nil {
			return llm.Answer{}, err
		}
	}
	return answer(strings.Join(pieces, "")), nil
}

// words is the text of an update of the session.
func words(t *testing.T, params json.RawMessage) string {
	t.Helper()
	var p struct {
		Update struct {
			Kind    string                `json:"sessionUpdate"`
			Content struct{ Text string } `json:"content"`
		} `json:"update"`
	}
	if err := json.Unmarshal(params, &p); err != nil || p.Update.Kind != "agent_message_chunk" {
		t.Fatalf("%s: %v", params, err)
	}
	return p.Update.Content.Text
}

// toldBy is what a person is told of the answers of a model. No line comes in two pieces.
func toldBy(t *testing.T, m *inPieces) (told string, failed bool) {
	t.Helper()
	c := begin(t, m, loop.Context{})
	id := c.prompt("do it")
	for {
		x := c.read()
		if x.Response() && string(x.ID) == id {
			return told, x.Error != nil
		}
		if told != "" && !strings.HasSuffix(told, "\n") {
			t.Errorf("it goes on behind %q", told)
		}
		told += words(t, x.Params)
	}
}

// A person sees an answer while the model writes it, and a line as soon as it is whole.
func TestAnswersAreToldAsTheyCome(t *testing.T) {
	m := &inPieces{
		answers: [][]string{{"{\"type\": \"direct", "_answer\",\n\"answer\":\"It is", " *well*.\\n", "And \\\"mo", "re\\u0021\"}"}},
		n:       3, goOn: make(chan struct{}),
	}
	c := begin(t, m, loop.Context{})
	id := c.prompt("do it")
	if got := words(t, c.read().Params); got != "It is *well*.\n" {
		t.Errorf("before the answer is whole: %q", got)
	}
	close(m.goOn)
	if got := words(t, c.read().Params); got != `And "more!` {
		t.Errorf("then: %q", got)
	}
	if x := c.read(); !x.Response() || string(x.ID) != id || x.Error != nil {
		t.Errorf("%+v", x)
	}
}

// What turns out to be no answer is said to be none, and what is no direct answer is not told.
func TestPiecesOfWhatIsNoAnswer(t *testing.T) {
	long := strings.Repeat("many words\\n", 20)
	half := strings.Repeat("many words\n", 20) + "\n\n(This answer was not whole. Another one is asked for.)\n\nwell"
	good := []string{`{"type":"direct_answer","answer":"well"}`}
	for name, x := range map[string]struct {
		first []string
		told  string
	}{
		"half": {[]string{`{"type":"direct_answer","answer":"`, long, `"`}, half},
		"a member too many": {
			[]string{`{"type":"direct_answer","answer":"` + long, `","x":1}`}, half,
		},
		"a plan":               {[]string{`{"type":"command_plan","answer":"` + long, `"}`}, "well"},
		"evidence":             {[]string{`{"type":"no_change","answer":"` + long, `","evidence":["x"]}`}, "well"},
		"another member first": {[]string{`{"x":1,"type":"direct_answer","answer":"` + long, `"}`}, "well"},
		"prose":                {[]string{long, long}, "well"},
	} {
		t.Run(name, func(t *testing.T) {
			if told, failed := toldBy(t, &inPieces{answers: [][]string{x.first, good}}); failed || told != x.told {
				t.Errorf("told %q", told)
			}
		})
	}
}

// A block that may be secret as a whole is told whole.
func TestABlockIsToldWhole(t *testing.T) {
	text := "This is the key:\n-----BEGIN PRIVATE KEY-----\nAAAA\nBBBB\n-----END PRIVATE KEY-----\nKeep it.\n"
	whole := `{"type":"direct_answer","answer":` + object(t, text) + `}`
	m := &inPieces{answers: [][]string{strings.SplitAfter(whole, "A")}}
	c := begin(t, m, loop.Context{})
	c.prompt("do it")
	first := words(t, c.read().Params)
	second := words(t, c.read().Params)
	if first+second != text || strings.Contains(first, "-----BEGIN") {
		t.Errorf("told %q and %q", first, second)
	}
}

// However an answer is cut into pieces, what is told is its text.
func FuzzPieces(f *testing.F) {
	for _, text := range []string{
		"plain", `"\\\"\n\t\/\u00e9\u0000"`, `"😀 \ud83d\ude00 \ud83d \ude00 \ufffd"`, `"\ud83d"`, `"a\ud83d\u0041b"`,
		`"` + strings.Repeat("é", 100) + `"`, `"\x"`, `"\u12`,
		"\"\xff\xfe\"", "\"a\nb\"",
	} {
		f.Add(text, uint8(1))
		f.Add(text, uint8(7))
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		whole := `{"type":"direct_answer","answer":` + text + `}`
		var want struct{ Answer string }
		parsed, err := plan.Parse([]byte(whole))
		if err == nil && parsed.Direct != nil {
			want.Answer = parsed.Direct.Answer
		} else if !utf8.ValidString(whole) {
			return // no message can hold it
		}
		var pieces []string
		for rest := whole; rest != ""; {
			n := min(max(int(size), 1), len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		told, failed := toldBy(t, &inPieces{answers: [][]string{pieces, {`{"type":"direct_answer","answer":"well"}`}}})
		switch {
		case failed:
			t.Errorf("%q: it fails", whole)
		case err == nil && parsed.Direct != nil && told != want.Answer:
			t.Errorf("%q: told %q, and it says %q", whole, told, want.Answer)
		case (err != nil || parsed.Direct == nil) && !strings.HasSuffix(told, "well"):
			t.Errorf("%q: told %q", whole, told)
		}
	})
}
