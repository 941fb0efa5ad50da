package e2b_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

// What comes before a response and behind it is not the response, and is not looked at as its head is.
func TestPortsPassNoOtherHeads(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	r.serves(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=1; Domain=sandboxes.test")
		w.Header().Set("Alt-Svc", `h2="other.test:443"`)
		w.WriteHeader(http.StatusEarlyHints)
		clear(w.Header())
		w.Header().Set("Trailer", "Set-Cookie, Alt-Svc, Grpc-Status")
		w.Header().Set("Clear-Site-Data", `"cookies"`)
		w.Header().Set("X-Own", "yes")
		w.WriteHeader(http.StatusOK)
		fmt.Fprint(w, "page")
		w.Header().Set("Set-Cookie", "b=2; Domain=sandboxes.test")
		w.Header().Set("Alt-Svc", `h2="other.test:443"`)
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Set-Login", "x")
	}))
	early := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		early++
		return nil
	}})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Close = "8000-"+s.id+".sandboxes.test", true
	req.Header.Set("E2b-Traffic-Access-Token", traffic)
	res, err := new(http.Transport).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); string(b) != "page" || err != nil || res.Header.Get("X-Own") != "yes" {
		t.Errorf("%q, %v, %v", b, err, res.Header)
	}
	if early > 0 || res.Header.Get("Clear-Site-Data") != "" {
		t.Errorf("%d responses before it, %v", early, res.Header)
	}
	if len(res.Trailer) != 1 || res.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("behind it comes %v", res.Trailer)
	}
}

// token is the rig's token, of which its API key is another form.
func (r *rig) token() string {
	b, err := hex.DecodeString(strings.TrimPrefix(r.key, "e2b_"))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// A program believes what a proxy in front of it says, so a client must not say it.
func TestPortsAssertNothing(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	in := r.serves(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	said := []string{"E2b-Traffic-Access-Token", traffic}
	lies := []string{
		"X-Forwarded-User", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Real-Ip", "X-Original-Url", "X-Auth-Request-Email", "X_Forwarded_User",
		"Remote-User", "True-Client-Ip", "Via", "Proxy", "Cf-Connecting-Ip",
	}
	for _, name := range lies {
		said = append(said, name, "root")
	}
	own := []string{"X-Requested-With", "X-Csrf-Token", "Content-Language", "Accept-Language", "If-None-Match"}
	for _, name := range own {
		said = append(said, name, "own")
	}
	if res := r.on(s, "/", said...); res.status != 200 {
		t.Fatal(res)
	}
	got := in.requests()[0].Header
	for _, name := range lies {
		if v, there := got[http.CanonicalHeaderKey(name)]; there {
			t.Errorf("%s arrives: %q", name, v)
		}
	}
	for _, name := range own {
		if got.Get(name) != "own" {
			t.Errorf("%s does not arrive", name)
		}
	}
	secret := r.token()
	for i, v := range []string{
		"Bearer " + r.key, "Bearer  " + secret, "bearer\t" + secret, secret, `Token token="` + secret + `"`, "Bearer " + r.key + ",x",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+secret)), "Basic " + base64.URLEncoding.EncodeToString([]byte(r.key+":")),
	} {
		if res := r.on(s, "/", "E2b-Traffic-Access-Token", traffic, "Authorization", v); res.status != 200 {
			t.Fatal(res)
		}
		if got := in.requests()[i+1].Header.Get("Authorization"); got != "" {
			t.Errorf("a token of carrel's arrives as %q", v[:min(len(v), 12)])
		}
	}
}
