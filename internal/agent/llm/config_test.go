package llm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

func TestNew(t *testing.T) {
	for _, base := range []string{
		"", "api.test/v1", "ftp://api.test/", "https://", "https://user:pw@api.test/v1", "https://api.test/v1?key=x",
		"https://api.test/v1?", "https://a.test/#x", "http://[::1", "http://a b/",
	} {
		_, err := llm.New(llm.Config{Provider: llm.Row{Wire: llm.Chat}, BaseURL: base})
		if !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: %v", base, err)
		}
	}
	if _, err := llm.New(llm.Config{Provider: llm.Row{Wire: "smoke", BaseURL: "http://a.test"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	for _, key := range []string{"a b", "a\r\nX-Other: b", "ключ"} {
		one := client(t, llm.Config{Key: func() string { return key }, Transport: tripper(func(*http.Request) (*reply, error) {
			t.Errorf("%q is sent", key)
			return nil, io.EOF
		})})
		if _, err := one.Stream(t.Context(), hello(), nil); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// What was asked for as JSON is JSON, or the answer is an error.
func TestStructured(t *testing.T) {
	for _, c := range []struct {
		text, finish, want string
		ok                 bool
	}{
		{`{"a":1}`, "stop", `{"a":1}`, true},
		{` {"a":1}` + "\n", "stop", `{"a":1}`, true},
		{`{"a":1`, "stop", "", false},
		{"", "stop", "", false},
		{"Sure! {}", "stop", "", false},
		{strings.Repeat("[", 200) + strings.Repeat("]", 200), "stop", "", false},
		{`{"a":`, "length", "", true},
		{"no", "content_filter", "", true},
	} {
		text, _ := json.Marshal(c.text)
		one := client(t, llm.Config{Transport: tripper(func(*http.Request) (*reply, error) {
			chunk := fmt.Sprintf(`{"choices":[{"delta":{"content":%s},"finish_reason":%q}]}`, text, c.finish)
			return answered(strings.NewReader(data(chunk, "[DONE]"))), nil
		})})
		r := hello()
		r.Schema = &llm.Schema{Name: "form", JSON: json.RawMessage(`{"type":"object"}`)}
		a, err := one.Stream(t.Context(), r, nil)
		if (err == nil) != c.ok || string(a.JSON) != c.want || err != nil && (!errdefs.IsDataLoss(err) || a.Stop != "") {
			t.Errorf("%.40q: %q, %v, %q", c.text, a.JSON, err, a.Stop)
		}
	}
}
