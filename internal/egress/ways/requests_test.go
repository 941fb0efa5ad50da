package ways_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func hostFile(t *testing.T, text string) *conf.Config {
	t.Helper()
	host, err := conf.Parse("egress.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// The rules of the host, of a profile, of a set and of the workspace are one text, and judge a request together.
func TestExplainRequests(t *testing.T) {
	host := hostFile(t, `
deny: ["DELETE *.example", api.example/admin/*]
sets: {read: ["GET,HEAD api.example/v1/*", "tls://mail.example:993"]}
profiles: {chat: {allow: ["@read", "POST http://plain.example/v1/*"], deny: ["GET api.example/v1/secret"]}}
`)
	w := ways.New(ways.Config{Conf: host})
	r := w.Initial("chat")
	if err := w.Check(r, false); err != nil {
		t.Fatal(err)
	}
	r.Allow = append(r.Allow, "whole.example")
	r.Ask = []string{"asked.example"}
	for text, want := range map[string]string{
		"https://api.example/v1/x":               "allow @read: GET,HEAD api.example/v1/*",
		"HEAD https://api.example/v1/x":          "allow @read: GET,HEAD api.example/v1/*",
		"http://api.example/v1/x":                "allow @read: GET,HEAD api.example/v1/*",
		"POST https://api.example/v1/x":          "deny ",
		"https://api.example/v1/Secret":          "deny GET api.example/v1/secret",
		"HEAD https://api.example/v1/secret":     "allow @read: GET,HEAD api.example/v1/*",
		"DELETE https://api.example/v1/x":        "deny DELETE *.example",
		"https://api.example/v1/%2e%2e/x":        "deny ",
		"https://api.example:8443/v1/x":          "deny ",
		"https://whole.example/any":              "allow whole.example",
		"DELETE https://whole.example/any":       "deny DELETE *.example",
		"https://asked.example/any":              "ask asked.example",
		"DELETE https://asked.example/any":       "deny DELETE *.example",
		"https://mail.example:993/":              "allow @read: tls://mail.example:993",
		"http://mail.example:993/":               "deny ",
		"POST http://plain.example/v1/x":         "allow POST http://plain.example/v1/*",
		"POST https://plain.example:80/v1/x":     "deny ",
		"api.example":                            "allow @read: GET,HEAD api.example/v1/*",
		"other.example":                          "deny ",
		"PATCH https://whole.example/Admin/../x": "allow whole.example",
	} {
		all, err := w.Explain(r, nil, []string{text})
		if err != nil || all[0].Action+" "+all[0].Rule != want || all[0].Reason == "" {
			t.Errorf("%s: %+v, %v; want %s", text, all, err, want)
		}
	}
	all, err := w.Explain(r, nil, []string{"api.example"})
	if err != nil || !strings.Contains(all[0].Reason, "in part") {
		t.Errorf("%+v, %v", all, err)
	}
}

// Rules about requests inside TLS take an authority, be they the workspace's or the host's.
func TestInsideTLS(t *testing.T) {
	for _, c := range []struct{ file, allow, deny, want string }{
		{"", "a.example", "b.example", ""},
		{"", "tls://a.example", "http://b.example/x", ""},
		{"", "GET a.example:80/v1/*", "", ""},
		{"", "GET a.example/v1/*", "", "GET a.example/v1/*"},
		{"", "a.example", "DELETE *", "DELETE *"},
		{"deny: ['DELETE *']", "a.example", "b.example", "DELETE *"},
		{"sets: {mine: [a.example/x]}", "@mine", "b.example", "@mine: a.example/x"},
	} {
		w := ways.New(ways.Config{Conf: hostFile(t, c.file)})
		r := workspace.Reach{Allow: []string{c.allow}}
		if c.deny != "" {
			r.Deny = []string{c.deny}
		}
		if got := w.InsideTLS(r); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	for _, bad := range []string{
		"ask: ['GET a.example']", "sets: {mine: ['get a.example']}", "sets: {mine: []}",
		"sets: {Mine: [a.example]}",
	} {
		if _, err := conf.Parse("egress.yaml", []byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if _, err := conf.Parse("egress.yaml", []byte("sets: {mine: [a.example/x]}\nask: ['@mine']")); err == nil ||
		!strings.Contains(err.Error(), "ask about the host") {
		t.Errorf("a set that cannot be asked about: %v", err)
	}
}
