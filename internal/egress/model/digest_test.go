package model_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress/model"
)

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// What is told of a call are digests of the bytes that the host got and sent, not of what the program says or sees: the
// handler adds to the request, leaves out of the response, and masks the key. No header of the program's changes that.
func TestDigests(t *testing.T) {
	events := "data: {\"choices\":[{\"delta\":{\"content\":\"" + key + "\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"
	var got string
	r := start(t, model.OpenAI, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = string(b)
		answer("text/event-stream", events)(w, r)
	}, nil)
	large := strings.Repeat("x", 3<<20) // in several pieces
	for _, body := range []string{`{"model":"m","stream":true}`, `{"model":"m","a":"` + large + `","stream":true}`, `{"model":"m"}`} {
		_, seen := r.get("POST", "/v1/chat/completions", body, "Digest: sha-256=AAAA", "Content-Digest: sha-256=:AAAA:", "X-Sent: "+sha("forged"))
		c := r.told()
		want := model.Call{Sent: sha(got), SentBytes: int64(len(got)), Came: sha(events), CameBytes: int64(len(events)), Status: 200, Whole: true}
		if c != want || strings.Contains(seen, key) || got == "" {
			t.Errorf("%.60s: %+v, not %+v", body, c, want)
		}
	}
	if sha(got) != sha(`{"model":"m"}`) {
		t.Errorf("the host got %s", got)
	}
	// A call without a body has none, and neither one that the host never got.
	r.get("GET", "/v1/models", "")
	if c := r.told(); c.Sent != "" || c.SentBytes != 0 {
		t.Errorf("a call without a body: %+v", c)
	}
	nobody := start(t, model.OpenAI, nil, func(c *model.Config) { c.Transport = unreachable{} })
	nobody.get("POST", "/v1/responses", `{"model":"m"}`)
	if c := nobody.told(); c != (model.Call{}) {
		t.Errorf("what was never sent: %+v", c)
	}
}

// unreachable is a transport without a host.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrClosedPipe }

// Of a response that breaks off there is the digest of what came, and the record says that it is not all.
func TestDigestOfAPart(t *testing.T) {
	r := start(t, model.OpenAI, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "30")
		_, _ = io.WriteString(w, "abc")
	}, nil)
	r.do("POST", "/v1/responses", `{"model":"m"}`, func(res *http.Response) {
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("it ends as if it were complete")
		}
	})
	want := model.Call{Sent: sha(`{"model":"m"}`), SentBytes: 13, Came: sha("abc"), CameBytes: 3, Status: 200}
	if c := r.told(); c != want {
		t.Errorf("%+v, not %+v", c, want)
	}
}
