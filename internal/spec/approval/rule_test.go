package approval_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

func TestShape(t *testing.T) {
	for _, c := range []struct {
		shape, argv string // words between |
		want        bool
	}{
		{"git|push", "git|push", true},
		{"git|push", "git|push|--force", false},
		{"git|push|--force", "git|push", false},
		{"git|push", "/usr/bin/git|push", false},
		{"git|push", "Git|push", false},
		{"git|push|origin|feature/*", "git|push|origin|feature/x", true},
		{"git|push|origin|feature/*", "git|push|origin|feature/x/y", false},
		{"git|push|origin|feature/**", "git|push|origin|feature/x/y", true},
		{"git|push|origin|feature/*", "git|push|origin|main", false},
		{"git|push|origin|feature/*", "git|push|origin|feature/", true},
		// A colon parts what is sent from where it goes, and a host from a path.
		{"git|push|origin|feature/*", "git|push|origin|feature/x:main", false},
		{"git|push|origin|feature/*:*", "git|push|origin|feature/x:main", true},
		{"git|push|origin|feature/**", "git|push|origin|feature/x:main", true},
		{"git|push|origin*", "git|push|origin.evil.example:x", false},
		{"git|push|*", "git|push|evil:x", false},
		{"git|push|*", "git|push|ext::sh", false},
		{"docker|pull|reg/*", "docker|pull|reg/a", true},
		{"docker|pull|reg/*", "docker|pull|reg/a:latest", false},
		{"docker|pull|reg/*:*", "docker|pull|reg/a:latest", true},
		{"docker|run|-v|*:/x", "docker|run|-v|a:/b:/x", false},
		{"curl|https://example.org/*", "curl|https://example.org/a:b", true},
		// An option is no text.
		{"git|push|origin|*", "git|push|origin|main", true},
		{"git|push|origin|*", "git|push|origin|--receive-pack=x", false},
		{"git|push|origin|*", "git|push|origin|-f", false},
		{"git|push|origin|*", "git|push|origin|+main", false},
		{"curl|-d|*|https://example.org/", "curl|-d|@secret|https://example.org/", false},
		{"git|push|origin|--force-with-lease=*", "git|push|origin|--force-with-lease=x", true},
		// A host is that host.
		{"curl|https://example.org/*", "curl|https://example.org/x", true},
		{"curl|https://example.org/*", "curl|https://example.org/x/y", false},
		{"curl|https://example.org/**", "curl|https://example.org/x/y?z=1&a=b", true},
		{"curl|https://example.org/*", "curl|https://example.org.evil.example/x", false},
		{"curl|https://example.org/*", "curl|https://example.org@evil.example/x", false},
		{"curl|https://example.org/*", "curl|http://example.org/x", false},
		{"curl|https://*.example.org/x", "curl|https://a.example.org/x", true},
		{"curl|https://*.example.org/x", "curl|https://evil.example/?.example.org/x", false},
		{"curl|https://*.example.org/x", "curl|https://evil.example?.example.org/x", false},
		{"curl|https://*.example.org/x", "curl|https://evil.example#.example.org/x", false},
		{"curl|https://*.example.org/x", `curl|https://evil.example\.example.org/x`, false},
		{"curl|https://*.example.org/x", "curl|https://a@b.example.org/x", false},
		// Nothing climbs.
		{"cat|/srv/data/*", "cat|/srv/data/x", true},
		{"cat|/srv/data/*", "cat|/srv/data/..", false},
		{"cat|/srv/data/**", "cat|/srv/data/../../etc/shadow", false},
		{"cat|/srv/data/**", "cat|/srv/data/a/../../x", false},
		{"cat|/srv/data/**", "cat|/srv/data/..x", true},
		{"curl|https://example.org/a/**", "curl|https://example.org/a/%2e%2e/b", false},
		{"curl|https://example.org/a/**", "curl|https://example.org/a/..%2fb", false},
		{"tool|--in=**", "tool|--in=../x", false},
		// A shell's signs are signs.
		{"echo|a;b", "echo|a;b", true},
		{"echo|$(id)", "echo|root", false},
		{"echo|a|b", "echo|a|b", true},
		{"echo|?", "echo|x", false},
		{"echo|[ab]", "echo|a", false},
		{"echo|a.c", "echo|abc", false},
		{"echo|x*", "echo|xa\nb", false},
		{"echo|x**", "echo|xa\x00b", false},
		{"echo|x*", "echo|x", true},
	} {
		s, err := approval.NewShape(strings.Split(c.shape, "|"))
		if err != nil {
			t.Errorf("%s: %v", c.shape, err)
			continue
		}
		if got := s.Matches(strings.Split(c.argv, "|")); got != c.want {
			t.Errorf("%q matches %q: %t", c.shape, c.argv, got)
		}
	}
	for _, bad := range []string{
		"", "*|x", "gi*|push", "**", "a|***", "curl|https://**/x", "curl|https://example.org*", "curl|https://*", "curl|https://*@example.org/",
		"curl|https://a.**.example.org/", "echo|a\nb", "echo|\xff", strings.Repeat("x|", 65), "echo|" + strings.Repeat("x", 5000),
	} {
		if s, err := approval.NewShape(strings.Split(bad, "|")); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.40q is a shape: %+v %v", bad, s, err)
		}
	}
	if s, err := approval.NewShape(nil); err == nil || s.Matches(nil) {
		t.Error("no words are a shape")
	}
}

func FuzzShape(f *testing.F) {
	f.Add("https://example.org/*", "https://example.org/x")
	f.Add("**", "../x")
	f.Add("feature/*", "feature/x:main")
	f.Fuzz(func(t *testing.T, shape, word string) {
		s, err := approval.NewShape([]string{"x", shape})
		if err != nil {
			return
		}
		if !strings.Contains(shape, "*") && s.Matches([]string{"x", word}) != (shape == word) {
			t.Errorf("%q without a pattern matches %q", shape, word)
		}
		if !s.Matches([]string{"x", word}) || shape == word {
			return
		}
		if strings.ContainsAny(word, "\n\x00\x1b") {
			t.Errorf("%q matches %q", shape, word)
		}
		if !strings.Contains(shape, "**") && strings.Count(word, "/") != strings.Count(shape, "/") {
			t.Errorf("%q crosses a slash: %q", shape, word)
		}
		if !strings.Contains(shape, "**") && !strings.Contains(shape, "://") && strings.Count(word, ":") != strings.Count(shape, ":") {
			t.Errorf("%q crosses a colon: %q", shape, word)
		}
		if scheme, rest, ok := strings.Cut(shape, "://"); ok && !strings.Contains(scheme, "*") {
			of := func(s string) string { return s[:strings.IndexAny(s+"/", `/?#\`)] }
			host, got := of(rest), of(strings.TrimPrefix(word, scheme+"://"))
			if strings.Count(host, ".") != strings.Count(got, ".") || strings.Count(host, "@") != strings.Count(got, "@") {
				t.Errorf("%q matches another host: %q", shape, word)
			}
		}
	})
}

func TestMayWrite(t *testing.T) {
	for name, c := range map[string]struct {
		p                  principal.Principal
		own, everybodyElse bool
	}{
		"root":   {principal.Principal{Kind: principal.User}, true, true},
		"a user": {principal.Principal{Kind: principal.User, UID: 1000}, true, false},
		"system": {principal.Self(), false, false},
		"nobody": {principal.Principal{}, false, false},
		"an agent": {
			principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: "x", Owner: "uid:0", Roles: principal.Agent}}, false, false,
		},
		"an administrator's token": {
			principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: "x", Owner: "uid:0", Roles: principal.Admin}}, false, false,
		},
	} {
		if approval.MayWrite(c.p, false) == nil != c.own || approval.MayWrite(c.p, true) == nil != c.everybodyElse {
			t.Errorf("%s", name)
		}
	}
}
