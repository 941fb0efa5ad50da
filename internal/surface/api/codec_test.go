package api_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// gateOfRuns counts the commands that come through.
type gateOfRuns struct {
	*apitest.Gate

	runs atomic.Int64
}

func (g *gateOfRuns) Run(_ context.Context, _ principal.Principal, _ string, _ execapi.ExecParams) (id.Command, execapi.ExecResult, error) {
	g.runs.Add(1)
	return id.NewCommand(), execapi.ExecResult{Status: &execapi.Status{}}, nil
}

// What no other reader of JSON takes for JSON runs nothing, nor what the schema does not know.
// The cases are in the manner of JSONTestSuite (https://github.com/nst/JSONTestSuite): a value in
// the place of a number, a member of the command, and a whole body.
func TestOnlyJSONIsTaken(t *testing.T) {
	g := &gateOfRuns{Gate: &apitest.Gate{}}
	as := func(ctx context.Context, _ net.Conn) context.Context { return ctx }
	h := api.NewServer(g, api.Options{Version: "test"}).HTTPServer(as).Handler
	post := func(contentType, body string) *httptest.ResponseRecorder {
		t.Helper()
		req := httptest.NewRequestWithContext(authn.NewContext(t.Context(), principal.Principal{Kind: principal.User, UID: 1000}),
			http.MethodPost, "http://carrel/carrel.v1.CommandService/Exec", strings.NewReader(body))
		req.Header.Set("Content-Type", contentType)
		rec := deadlines{httptest.NewRecorder()}
		h.ServeHTTP(rec, req)
		return rec.ResponseRecorder
	}
	const plain = `{"workspace":"demo","command":{"argv":["x"]}}`
	number := func(v string) string { return `{"workspace":"demo","command":{"argv":["x"],"timeoutMs":` + v + `}}` }
	member := func(m string) string { return `{"workspace":"demo","command":{"argv":["x"],` + m + `}}` }
	words := func(w string) string { return `{"workspace":"demo","command":{"argv":[` + w + `]}}` }
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8"} {
		for _, body := range []string{
			plain, " \t\r\n" + plain + " \n", number("0"), number("-0"), number("10"), number("1e3"), number("1E+3"), number("1.0e+1"),
			number("20.0"),
			number(`"5"`), number("null"), words(`"\u0041\n\"\\\/\b\f\r\t"`), words(`"\uD834\uDD1E"`), words(`"é€𝄞"`), member(`"env":{}`),
			member(`"timeout_ms":5`), member(`"env":{"a":"1","b":"1"}`), words(`"` + strings.Repeat("[", 200) + `"`),
		} {
			before := g.runs.Load()
			if rec := post(contentType, body); rec.Code != http.StatusOK || g.runs.Load() != before+1 {
				t.Errorf("%s: %.80q: %d %s", contentType, body, rec.Code, rec.Body)
			}
		}
		for body, says := range map[string]string{
			number("0e"): "", number("1.0e+"): "", number("0e+"): "", number("0E"): "", number("1.0e"): "", number("1.0e-"): "", number("1e"): "",
			number("1eE2"): "", number("+1"): "", number("-"): "", number("01"): "", number("-01"): "", number("1."): "", number(".5"): "",
			number("-.5"): "", number("2.e3"): "", number("0x10"): "", number("1_000"): "", number("NaN"): "", number("Infinity"): "",
			number("-Infinity"): "", number("1 000"): "", number("1a"): "", number("- 1"): "", number("0e1e"): "", number("++1"): "",
			number("１"): "", number("true1"): "", number("nul"): "", number(""): "", number("1,"): "",
			words(`"x",`): "", words(`,"x"`): "", words(`"x" "y"`): "", words(`"x"]`): "", words(`'x'`): "", words("\"a\tb\""): "",
			words("\"a\nb\""): "", words("\"a\x00b\""): "", words(`"\a"`): "", words(`"\x41"`): "", words(`"\u12"`): "", words(`"\uD834"`): "",
			words("\"\xff\""): "", words("\"\xed\xa0\x80\""): "", words("\"\xc0\xaf\""): "", words(`"x`): "", words(`x`): "",
			member(`"env":{"a":"1","a":"2"}`): "", member(`"timeoutMs":1,"timeoutMs":2`): "", member(`"timeoutMs":1,"timeout_ms":2`): "",
			member(`"timeoutMs":null,"timeoutMs":2`): "", member(`"timeout\u004ds":1,"timeoutMs":2`): "",
			member(`timeoutMs:1`): "", member(`'timeoutMs':1`): "", member(`"timeoutMs" 1`): "", member(`"timeoutMs"::1`): "", member(`1:1`): "",
			member(`"nonsense":1`): "nonsense", member(`"TimeoutMs":1`): "TimeoutMs", member(`"TIMEOUT_MS":1`): "TIMEOUT_MS",
			member(`"nonsense":0e`): "", member(`"nonsense":{"a":1,"a":2}`): "", member(`"nonsense":` + strings.Repeat("[", 5000)): "",
			member(`"nonsense":` + strings.Repeat("[", 100) + strings.Repeat("]", 100)): "64",
			"": "", "[]": "", "null": "", "1": "", `""`: "", "{": "", "}": "", "[" + plain + "]": "",
			plain + plain: "", plain + ",": "", plain + "}": "",
			"\xef\xbb\xbf" + plain: "", plain + "#": "", "/**/" + plain: "", plain + "//": "", "\x0b" + plain: "",
			plain + "\x00": "", "\u00a0" + plain: "",
			`{"workspace":"demo","workspace":"other","command":{"argv":["x"]}}`: "", `{"workspace":"demo",}`: "", "{\"workspace\":\"demo\"": "",
		} {
			before := g.runs.Load()
			rec := post(contentType, body)
			if rec.Code != http.StatusBadRequest || g.runs.Load() != before || !strings.Contains(rec.Body.String(), says) {
				t.Errorf("%s: %.80q: %d %s", contentType, body, rec.Code, rec.Body)
			}
		}
	}
	// In binary what is not known is passed over, as protocol buffers have it.
	if rec := post("application/proto", "\x0a\x04demo\x12\x03\x0a\x01x\xf8\x3f\x01"); rec.Code != http.StatusOK {
		t.Errorf("binary: %d %s", rec.Code, rec.Body)
	}
}
