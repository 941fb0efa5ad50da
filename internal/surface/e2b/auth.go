package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// keyPrefix is how API keys of E2B begin. Some of its SDKs want hexadecimal digits behind it.
const keyPrefix = "e2b_"

// APIKey is the form of a token that SDKs take for an API key.
func APIKey(s token.Secret) string { return keyPrefix + hex.EncodeToString([]byte(s.Reveal())) }

// bearer is the token in an API key, or the key itself: a token as it is will do too.
func bearer(key string) string {
	if digits, ok := strings.CutPrefix(key, keyPrefix); ok {
		if b, err := hex.DecodeString(digits); err == nil {
			key = string(b)
		}
	}
	return "Bearer " + key
}

// enterControl lets in who brings an API key.
func (s *Server) enterControl(ctx context.Context, r *http.Request) (context.Context, func(), error) {
	keys := r.Header.Values("X-Api-Key")
	if len(keys) == 0 {
		return nil, nil, s.Tokens.Missing(ctx)
	}
	headers := make([]string, len(keys))
	for i, k := range keys {
		headers[i] = bearer(k)
	}
	return s.hold(s.Tokens.Enter(ctx, headers))
}

// enterSandbox lets in who brings the access token of this sandbox, or a URL that was signed with one.
func (s *Server) enterSandbox(ctx context.Context, name string, r *http.Request) (context.Context, func(), error) {
	if tokens := r.Header.Values("X-Access-Token"); len(tokens) == 1 {
		if ref, ok := s.opened(name, tokens[0]); ok {
			return s.hold(s.Tokens.EnterAs(ctx, ref))
		}
	} else if q := r.URL.Query(); r.URL.Path == "/files" && q.Get("signature") != "" {
		if ref, ok := s.signedBy(ctx, name, r.Method, q); ok {
			return s.hold(s.Tokens.EnterAs(ctx, ref))
		}
	}
	_, _, err := s.Tokens.Enter(ctx, []string{"Bearer "}) // it is counted and answered as any other that is wrong
	return nil, nil, err
}

// hold has a request end when its token does not reach any more what it asked for.
func (s *Server) hold(ctx context.Context, leave func(), err error) (context.Context, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	held, release := s.Gate.Hold(ctx)
	return held, func() { release(); leave() }, nil
}

// accessToken lets who has it use one sandbox as the holder of a token: "ID.MAC", in hexadecimal digits. It is always the
// same, so that it holds over a restart, and ends with that token.
func (s *Server) accessToken(name string, ref token.ID) string {
	mac := hmac.New(sha256.New, s.Key)
	mac.Write([]byte("access\x00" + name + "\x00" + string(ref)))
	return string(ref) + "." + hex.EncodeToString(mac.Sum(nil))
}

// opened is the token for whose holder an access token of a sandbox was made.
func (s *Server) opened(name, given string) (token.ID, bool) {
	text, _, _ := strings.Cut(given, ".")
	ref, err := token.ParseID(text)
	return ref, err == nil && subtle.ConstantTimeCompare([]byte(given), []byte(s.accessToken(name, ref))) == 1
}

// maxSeen is how many tokens are remembered for the signed URLs of a sandbox, and maxSandboxes of how many sandboxes.
const maxSeen, maxSandboxes = 16, 8192

// giveOut is the access token of a sandbox for who asks. It is remembered, because a URL that is signed with it does not
// say whose it is.
func (s *Server) giveOut(ctx context.Context, name string) string {
	p := authn.FromContext(ctx)
	if p.Kind != principal.Token {
		return ""
	}
	ref := token.ID(p.Grant.ID)
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	if s.seen.of == nil {
		s.seen.of = map[string][]token.ID{}
	}
	if _, known := s.seen.of[name]; !known && len(s.seen.of) >= maxSandboxes && !s.giveWay(ref) {
		return s.accessToken(name, ref) // whoever made it is known for ever
	}
	if list := s.seen.of[name]; !slices.Contains(list, ref) {
		s.seen.of[name] = append([]token.ID{ref}, list[:min(len(list), maxSeen-1)]...)
	}
	return s.accessToken(name, ref)
}

// giveWay forgets a sandbox that was given to this token alone, and reports whether there is one: nobody makes room at the cost
// of others. The lock is held.
func (s *Server) giveWay(ref token.ID) bool {
	for name, list := range s.seen.of {
		if len(list) == 1 && list[0] == ref {
			delete(s.seen.of, name)
			return true
		}
	}
	return false
}

// forget is for a sandbox that has gone.
func (s *Server) forget(name string) {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	delete(s.seen.of, name)
}

// signedBy is the token with whose access token a URL was signed, as the SDKs do:
// "v1_" and the SHA-256 of PATH:OPERATION:USER:ACCESS_TOKEN[:EXPIRY], in base64 without padding.
func (s *Server) signedBy(ctx context.Context, name, method string, q url.Values) (token.ID, bool) {
	operation := "read"
	if method == http.MethodPost {
		operation = "write"
	}
	tail := ""
	if q.Has("signature_expiration") {
		until, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil || time.Now().Unix() > until {
			return "", false
		}
		tail = ":" + q.Get("signature_expiration")
	}
	for _, ref := range s.holders(ctx, name) {
		sum := sha256.Sum256([]byte(q.Get("path") + ":" + operation + ":" + q.Get("username") + ":" + s.accessToken(name, ref) + tail))
		want := "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
		if subtle.ConstantTimeCompare([]byte(strings.TrimRight(q.Get("signature"), "=")), []byte(want)) == 1 {
			return ref, true
		}
	}
	return "", false
}

// holders are the tokens that a sandbox was given out to, with the one that made it.
func (s *Server) holders(ctx context.Context, name string) []token.ID {
	var all []token.ID
	s.seen.mu.Lock()
	all = append(all, s.seen.of[name]...)
	s.seen.mu.Unlock()
	if row, err := s.row(ctx, name); err == nil && row.Token != "" {
		all = append(all, token.ID(row.Token))
	}
	return all
}
