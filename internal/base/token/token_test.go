package token_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/token"
)

func TestRoundTrip(t *testing.T) {
	pattern := regexp.MustCompile("^" + token.Pattern + "$")
	seen := map[string]bool{}
	for range 1000 {
		s := token.New()
		text := s.Reveal()
		if len(text) != token.Len || !pattern.MatchString(text) || seen[text] || seen[string(s.ID())] {
			t.Fatalf("a token of %d characters that was seen: %v", len(text), seen[text])
		}
		seen[text], seen[string(s.ID())] = true, true
		got, err := token.Parse(text)
		if err != nil || got != s || got.Hash() != s.Hash() {
			t.Fatalf("read back: %v, %v", got, err)
		}
	}
}

// A token with one changed character is no token: the checksum is wrong.
func TestEveryCharacterCounts(t *testing.T) {
	text := token.New().Reveal()
	for i := range text {
		for _, c := range []byte("0aA_-\n\x00 ") {
			changed := []byte(text)
			if changed[i] == c {
				continue
			}
			changed[i] = c
			if _, err := token.Parse(string(changed)); err == nil {
				t.Errorf("character %d changed to %q passes", i, c)
			}
		}
	}
	for _, other := range []string{"", text[:len(text)-1], text + "A", " " + text, text + "\n", strings.ToUpper(text), text + text} {
		if _, err := token.Parse(other); !errors.Is(err, token.ErrForm) {
			t.Errorf("%d characters: %v", len(other), err)
		}
	}
}

func TestASecretDoesNotPrintItself(t *testing.T) {
	s := token.New()
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", s, "in", []token.Secret{s})
	j, err := json.Marshal(map[string]any{"t": s})
	if err != nil {
		t.Fatal(err)
	}
	secret := s.Reveal()[token.Len-43:]
	for _, out := range []string{fmt.Sprint(s), fmt.Sprintf(
		"%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s,
	), fmt.Sprintf("%v", struct{ S token.Secret }{s}), log.String(), string(j)} {
		if strings.Contains(out, secret) || strings.Contains(out, fmt.Sprintf("%x", secret)) {
			t.Errorf("printed: %s", out)
		}
		if !strings.Contains(out, string(s.ID())) {
			t.Errorf("does not name it: %s", out)
		}
	}
	if (token.Secret{}).ID() != "" {
		t.Error("the zero value has an id")
	}
}

// Parse accepts only the form that New makes, which Pattern matches.
func FuzzParse(f *testing.F) {
	pattern := regexp.MustCompile("^" + token.Pattern + "$")
	f.Add("")
	f.Add("crl_")
	f.Add("crl_0123456789ab_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("crl_0123456789ab_" + strings.Repeat("\n", 43))
	f.Add("crl_0123456789ab_" + strings.Repeat("=", 43))
	f.Add(token.New().Reveal())
	f.Fuzz(func(t *testing.T, s string) {
		got, err := token.Parse(s)
		if err != nil {
			if got != (token.Secret{}) {
				t.Errorf("an error and a token")
			}
			return
		}
		if got.Reveal() != s || !pattern.MatchString(s) || !strings.Contains(s, string(got.ID())) {
			t.Errorf("%q is read as %q", s, got.Reveal())
		}
	})
}
