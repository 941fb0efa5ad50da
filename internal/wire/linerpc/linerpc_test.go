package linerpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

func TestParse(t *testing.T) {
	for _, x := range []struct {
		line          string
		request, resp bool
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1]}}`, true, false},
		{`{"jsonrpc":"2.0","id":"x","method":"m"}`, true, false},
		{`{"jsonrpc":"2.0","method":"m","params":{}}`, false, false},
		{`{"jsonrpc":"2.0","id":1,"result":null}`, false, true},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`, false, true},
		{`{"jsonrpc":"2.0","id":1,"result":{},"_meta":{"of":"a newer agent"}}`, false, true},
	} {
		m, err := linerpc.Parse([]byte(x.line))
		if err != nil || m.Request() != x.request || m.Response() != x.resp {
			t.Errorf("%s: %+v, %v", x.line, m, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", linerpc.MaxDepth+1) + strings.Repeat("]", linerpc.MaxDepth+1)
	for _, line := range []string{
		`hello`, `[]`, `[{"jsonrpc":"2.0","id":1,"method":"m"}]`, `null`, `1`, `"x"`, `{}`, `{"jsonrpc":"1.0","id":1,"method":"m"}`,
		`{"jsonrpc":"2.0","id":null,"method":"m"}`, `{"jsonrpc":"2.0","id":1.5,"method":"m"}`, `{"jsonrpc":"2.0","id":{},"method":"m"}`,
		`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 200) + `","method":"m"}`, `{"jsonrpc":"2.0","id":1,"method":"m","result":1}`,
		`{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}`,
		`{"jsonrpc":"2.0","method":"m","params":[]}`,
		`{"jsonrpc":"2.0","result":1}`, `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, `{"jsonrpc":"2.0","id":1,"method":"m"} {}`,
		"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", `{"jsonrpc":"2.0","method":"m","params":{"a":` + deep + `}}`,
		`{"jsonrpc":"2.0","method":"m","params":{"a":"` + strings.Repeat("x", linerpc.MaxLine) + `"}}`, `{"jsonrpc":"2.0","method":"m"`,
	} {
		if m, err := linerpc.Parse([]byte(line)); err == nil {
			t.Errorf("%.80q is taken: %+v", line, m)
		}
	}
}

// endless is a line without an end; it counts what is read of it.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	e.n += len(p)
	return len(p), nil
}

// Of a line that is too long no more is read than its bound, and half a line is no message.
func TestReaderBounds(t *testing.T) {
	var e endless
	if _, err := linerpc.NewReader(&e).Read(); err == nil || e.n > linerpc.MaxLine+(64<<10) {
		t.Errorf("an endless line: %v after %d bytes", err, e.n)
	}
	r := linerpc.NewReader(strings.NewReader("\n\n" + `{"jsonrpc":"2.0","method":"m"}` + "\n" + `{"jsonrpc":"2.0","method":"m"}`))
	if m, err := r.Read(); err != nil || m.Method != "m" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := r.Read(); !errors.Is(err, linerpc.ErrHalf) {
		t.Errorf("half a line: %v", err)
	}
	if _, err := linerpc.NewReader(strings.NewReader("")).Read(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
}

func TestMore(t *testing.T) {
	line := `{"jsonrpc":"2.0","method":"m"}` + "\n"
	r := linerpc.NewReader(strings.NewReader(line + line + line[:5]))
	for _, want := range []bool{true, false} {
		if _, err := r.Read(); err != nil || r.More() != want {
			t.Errorf("%v, %v", err, r.More())
		}
	}
}

// Whatever a line says, it is refused or read, written and read again as the same message.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\u0000"}}`, `{"jsonrpc":"2.0","id":"x","result":[{}]}`,
		`{"jsonrpc":"2.0","id":-9,"error":{"code":1,"message":"m","data":{}}}`, `{"id":1,"jsonrpc":"2.0","result":null}`, `{`, `[[[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := linerpc.Parse(line)
		if err != nil {
			return
		}
		if m.Response() == (m.Method != "") || !json.Valid(line) {
			t.Fatalf("%q is read as %+v", line, m)
		}
		var out bytes.Buffer
		if err := linerpc.Write(&out, m); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(out.Bytes(), []byte("\n")) != 1 {
			t.Fatalf("it is written as more than one line: %q", out.Bytes())
		}
		again, err := linerpc.Parse(bytes.TrimSpace(out.Bytes()))
		if err != nil || again.Method != m.Method || (again.ID == nil) != (m.ID == nil) {
			if out.Len() <= linerpc.MaxLine {
				t.Fatalf("%q is written as %q: %v", line, out.Bytes(), err)
			}
		}
	})
}
