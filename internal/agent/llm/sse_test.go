package llm_test

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

func TestEvents(t *testing.T) {
	for _, c := range []struct {
		text string
		want []llm.SSE
	}{
		{"", nil},
		{"data: a\n\n", []llm.SSE{{"", "a"}}},
		{"data:a\n\ndata:  b\n\n", []llm.SSE{{"", "a"}, {"", " b"}}},
		{"event: e\ndata: a\ndata: b\n\n", []llm.SSE{{"e", "a\nb"}}},
		{"\xef\xbb\xbfdata: a\r\n\r\ndata: b\r\rdata: c\n\r\n", []llm.SSE{{"", "a"}, {"", "b"}, {"", "c"}}},
		{"data: \xef\xbb\xbfa\n\n", []llm.SSE{{"", "\xef\xbb\xbfa"}}},
		{": ping\n\n:\n\nid: 7\nretry: 10\n\ndata: a\nid: 8\n\n", []llm.SSE{{"", "a"}}},
		{"event: lost\n\ndata: a\n\n", []llm.SSE{{"", "a"}}},
		{"data\n\n", []llm.SSE{{"", ""}}},
		{"data\ndata\n\n", []llm.SSE{{"", "\n"}}},
		{"Data: a\nxdata: b\n data: c\n\ndata : d\n\n", nil},
		{"data: a: b\n\n", []llm.SSE{{"", "a: b"}}},
		{"data: a\n", nil},
		{"data: a\n\ndata: b", []llm.SSE{{"", "a"}}},
		{"data: a\r\n\r\n\r\n\r\n", []llm.SSE{{"", "a"}}},
	} {
		for name, in := range map[string]io.Reader{
			"at once": strings.NewReader(c.text), "by bytes": iotest.OneByteReader(strings.NewReader(c.text)),
			"with its end": iotest.DataErrReader(strings.NewReader(c.text)),
		} {
			got, err := llm.ReadEvents(in)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%q %s: %q, %v", c.text, name, got, err)
			}
		}
	}
}

// An end of a line that is CR is known at once: the event is not held back until another byte comes.
func TestEventAtOnce(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	go func() { _, _ = io.WriteString(out, "data: a\r\r") }()
	all, err := llm.ReadEvents(&firstOnly{in: in})
	if !errors.Is(err, errSecond) || len(all) != 1 || all[0].Data != "a" {
		t.Errorf("%q, %v", all, err)
	}
}

var errSecond = errors.New("more was asked for")

// firstOnly fails in place of the read that would wait.
type firstOnly struct {
	in   io.Reader
	some bool
}

func (f *firstOnly) Read(p []byte) (int, error) {
	if f.some {
		return 0, errSecond
	}
	f.some = true
	return f.in.Read(p)
}

// endless repeats a text and counts what is read.
type endless struct {
	text string
	n    int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[(e.n+i)%len(e.text)]
	}
	e.n += len(p)
	return len(p), nil
}

// silent never sends anything.
type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }

func TestEventBounds(t *testing.T) {
	const piece = 64 << 10
	for _, c := range []struct {
		text string
		most int
		says string
	}{
		{"x", llm.MaxEvent + piece, "event of more than"},                         // a line without an end
		{":x", llm.MaxEvent + piece, "event of more than"},                        // a comment
		{"data: x\n", llm.MaxEvent + piece, "event of more than"},                 // an event without an end
		{"id: x\n", llm.MaxEvent + piece, "event of more than"},                   // of lines that are passed over
		{": ping\n\n", llm.MaxAnswer + piece, "sent more than"},                   // events without data
		{"\r", llm.MaxAnswer + piece, "sent more than"},                           // nothing at all
		{"data: " + strings.Repeat("x", 999) + "\n\n", 1 << 30, "sent more than"}, // events in their bounds
	} {
		e := &endless{text: c.text}
		if _, err := llm.ReadEvents(e); err == nil || !strings.Contains(err.Error(), c.says) || e.n > min(c.most, llm.MaxAnswer+piece) {
			t.Errorf("%.20q: %v after %d bytes", c.text, err, e.n)
		}
	}
	if _, err := llm.ReadEvents(silent{}); err == nil {
		t.Error("an input that never sends anything is waited for without an end")
	}
	largest := "data:" + strings.Repeat("x", llm.MaxEvent-16) + "\n\n"
	if all, err := llm.ReadEvents(strings.NewReader(largest)); err != nil || len(all) != 1 {
		t.Errorf("an event just small enough: %v", err)
	}
}

// events is another reader of the same format, which has the whole text: all ends of lines are made LF, and each block of
// lines that is ended by an empty one is an event if it has data.
func events(text string) (all []llm.SSE) {
	text = strings.TrimPrefix(text, "\xef\xbb\xbf")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	lines := strings.Split(text, "\n")
	lines = lines[:len(lines)-1] // what follows the last end of a line is none
	var name string
	var data []string
	for _, line := range lines {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				all = append(all, llm.SSE{Name: name, Data: strings.Join(data, "\n")})
			}
			name, data = "", nil
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		}
	}
	return all
}

// Whatever comes, in whatever pieces, is what the other reader reads of it.
func FuzzSSE(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "event: e\r\ndata: a\r\ndata: b\r\n\r\n", "\xef\xbb\xbf: c\rdata:x\r\r", "data\n\n\n", "event: lost\n\ndata: 1\n\n",
		"id: 1\nretry: 2\ndata:  two\n\nrest", "\r\n\r\n", "data: \xff\x00\n\n", "\xef\xbb", "data: a\n\r\n",
	} {
		f.Add(s, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		if len(text) > llm.MaxEvent/2 {
			return
		}
		want := events(text)
		for _, n := range []int{1, int(size) + 1, 1 << 20} {
			got, err := llm.ReadEvents(&pieces{text: text, sizes: []int{n}})
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q by %d: %q, %v; want %q", text, n, got, err, want)
			}
		}
	})
}

// pieces is a reader that gives a text in pieces of these sizes, and then of the last.
type pieces struct {
	text  string
	sizes []int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := min(max(p.sizes[0], 1), len(p.text), len(b))
	if len(p.sizes) > 1 {
		p.sizes = p.sizes[1:]
	}
	copy(b, p.text[:n])
	p.text = p.text[n:]
	return n, nil
}
