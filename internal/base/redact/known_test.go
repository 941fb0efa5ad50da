package redact_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
)

// A known value is found in every encoding, and nothing of it stays but the base64 characters that
// it shares with a neighbour.
func TestForms(t *testing.T) {
	const secret = `p"ss w<rd/+ü'%`
	r := redact.New([]byte("k"))
	r.Know("test", secret)
	asJSON, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, form := range map[string]string{
		"itself":        secret,
		"hex":           hex.EncodeToString([]byte(secret)),
		"HEX":           strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"query":         url.QueryEscape(secret),
		"path":          url.PathEscape(secret),
		"lower escapes": strings.NewReplacer("%2B", "%2b", "%2F", "%2f", "%C3%BC", "%c3%bc", "%3C", "%3c").Replace(url.QueryEscape(secret)),
		"JSON":          strings.Trim(string(asJSON), `"`),
		"Go":            strings.Trim(strconv.Quote(secret), `"`),
		"shell":         strings.ReplaceAll(secret, "'", `'\''`),
	} {
		if got := r.Text("a " + form + " b"); !strings.HasPrefix(got, "a [redacted:secret:") ||
			!strings.HasSuffix(got, "] b") || len(got) != len("a [redacted:secret:01234567] b") {
			t.Errorf("%s: %q became %q", name, form, got)
		}
	}
	for _, before := range []string{"", "u", "u:", "us:", "user:"} {
		for _, behind := range []string{"", "\n", ";x", "and more"} {
			for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
				text := e.EncodeToString([]byte(before + secret + behind))
				got := r.Text("x=" + text)
				from, to := strings.Index(got, "[redacted:"), strings.IndexByte(got, ']')
				if from < 0 {
					t.Errorf("%q in base64 stays: %s", before+secret+behind, got)
					continue
				}
				// At most one character on either side has bits of the secret.
				left := (len(before)*8 + 5) / 6
				right := (len(before+secret)*8)/6 - left
				if from-len("x=") > left || len(got)-to-1 > len(text)-left-right {
					t.Errorf("%q of %q stays too much: %s", before+secret+behind, text, got)
				}
			}
		}
	}
}

// The first part of a secret at the end of a shortened text is redacted.
func TestHalves(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "correct horse battery")
	for text, left := range map[string]string{
		"say correct horse…":             "say […",
		"say correct…, correct horse b…": "say […, […",
		"say corre…":                     "say corre…",
		"say correct horse":              "say correct horse",
		"say incorrect…":                 "say in[…",
		"say " + github[:14] + "…":       "say […",
		"say " + github[:9] + "…":        "say " + github[:9] + "…",
		"say " + github[:14]:             "say " + github[:14],
	} {
		got := r.Text(text)
		for strings.Contains(got, "[redacted:") {
			from := strings.Index(got, "[redacted:")
			got = got[:from+1] + got[from+strings.IndexByte(got[from:], ']')+1:]
		}
		if got != left {
			t.Errorf("%q became %q", text, r.Text(text))
		}
	}
}

// docs/protocols/audit.md lists what is not found.
func TestWhatIsNotFound(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "correct horse battery")
	for _, text := range []string{"correct horse", "yrettab esroh tcerroc", "CORRECT HORSE BATTERY"} {
		if got := r.Text(text); got != text {
			t.Errorf("%q became %q: say so in the document", text, got)
		}
	}
	split := []string{"join", "correct horse", " battery"}
	if got := r.Argv(split); !slices.Equal(got, split) {
		t.Errorf("%q: say so in the document", got)
	}
}

// A forged mask hides nothing.
func TestFalseMasks(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "correct horse")
	for _, text := range []string{
		"[redacted:correct horse]", "[redacted:value:correct horse]", "[redacted:correct horse:01234567]",
		"[redacted:secret:01234567 correct horse]",
		"[redacted:" + github + "]", "password=[redacted:correct horse]", "password=[redacted:hunter2",
		"x://u:[redacted:correct horse]@h", "[redacted:secret:0123456Z] correct horse",
	} {
		got := r.Text(text)
		if strings.Contains(got, "correct horse") || strings.Contains(got, github) || strings.Contains(got, "hunter2") {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestKnowTakesThePlace(t *testing.T) {
	r := redact.New([]byte("k"))
	own := r.With([]string{"mine-alone", "short"})
	r.Know("a", "first-one", "second-one")
	r.Know("b", "second-one", "third-one")
	r.Know("a", "fourth-one")
	for text, stays := range map[string]bool{
		"first-one": true, "second-one": false, "third-one": false, "fourth-one": false, "mine-alone": true,
	} {
		if got := r.Text(text); (got == text) != stays {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, text := range []string{"mine-alone", "third-one", "fourth-one"} {
		if got := own.Text(text); got == text {
			t.Errorf("%q stays for whose it is", text)
		}
	}
	if r.With([]string{"short", "x"}) != r {
		t.Error("what cannot be looked for makes another")
	}
	if got := own.Text("short"); got != "short" {
		t.Errorf("a value of five bytes is looked for: %q", got)
	}
	var none *redact.Redactor
	if none.With([]string{"mine-alone"}) != nil || none.Know("a", "b") != 0 {
		t.Error("nil knows something")
	}
}

// The longest known value at one offset counts, and one that begins within it is redacted with it.
func TestOverlaps(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "abcd12", "abcd1234", "abcd1234efgh", "34efgh99", "token=abcd77xx")
	for text, left := range map[string]string{
		"abcd12x":              "x",
		"abcd1234x":            "x",
		"abcd1234efg":          "efg",
		"abcd1234efgh":         "",
		"abcd1234efgh99":       "",
		"abcd1234efgh9":        "9",
		"abcd12abcd1234":       "",
		"the token=abcd77xx z": "the  z",
	} {
		got := r.Text(text)
		for strings.Contains(got, "[redacted:") {
			from := strings.Index(got, "[redacted:")
			got = got[:from] + got[from+strings.IndexByte(got[from:], ']')+1:]
		}
		if got != left {
			t.Errorf("of %q stays %q", text, got)
		}
	}
}

func TestSecretsOf(t *testing.T) {
	got := redact.SecretsOf([]string{
		"PATH=/usr/bin:/bin", "HOME=/home/x", "LANG=de_DE.UTF-8", "TERM=xterm-256color",
		"SSH_AUTH_SOCK=/run/user/1/agent", "KEYMAP=german", "SORT_KEY=lastname", "TOKENS=120000",
		"TOKEN_FILE=/run/secrets/token", "PASSWORD=x", "PASSWORD=", "PASSWORD", "X=y=z",
		"DB_PASSWORD_PROD=hunter22", "MY_TOKEN=tok-en_7A", "API_KEY=abcdeFGH",
		"AWS_SECRET_ACCESS_KEY=abcdefghij", "CLIENT_SECRET=plainword", "SECRET=/aGk+aGk=",
		"DATABASE_URL=postgres://app:s3cr3tpw@db/x", "NOTE=see " + github,
	})
	want := []string{"hunter22", "tok-en_7A", "abcdeFGH", "abcdefghij", "plainword", "/aGk+aGk=", "s3cr3tpw", github}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("TOKEN_%d=value-%d", i, i))
	}
	if n := len(redact.SecretsOf(many)); n > 256 {
		t.Errorf("%d are looked for", n)
	}
}

// BenchmarkKnown: a search takes the same time with many known values as with few.
func BenchmarkKnown(b *testing.B) {
	s := strings.Repeat("cargo test --workspace -- --nocapture path/to/file:12 and so on; ", 8)
	for _, n := range []int{0, 1, 100, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := redact.New([]byte("k"))
			var values []string
			for i := range n {
				values = append(values, fmt.Sprintf("tok-%08x-%08x", i*2654435761, i*40503))
			}
			r.Know("test", values...)
			b.SetBytes(int64(len(s)))
			b.ReportAllocs()
			for b.Loop() {
				r.Text(s)
			}
		})
	}
}

// FuzzKnown compares the search with strings.Contains.
func FuzzKnown(f *testing.F) {
	f.Add("abcdef\nabcdefgh\ncdefgh12", "xxabcdefgh12")
	f.Add("aaaaaa\naaaaaaaa", "baaaaaaaaaaaaaab")
	f.Add("[redacted:secret\nredact", "[redacted:secret:01234567]")
	f.Fuzz(func(t *testing.T, words, text string) {
		r := redact.New([]byte("k"))
		list := strings.Split(words, "\n")
		if len(list) > 100 {
			return
		}
		r.Know("test", list...)
		got := r.Text(text)
		for _, w := range list {
			// A mask may contain a known word.
			if len(w) >= 6 && strings.Contains(got, w) && !strings.Contains(text, "[redacted:") &&
				!strings.ContainsAny(w, "[]:") && !strings.Contains("redacted secret value argument", w) && !isHex(w) {
				t.Errorf("%q stays in %q, which became %q", w, text, got)
			}
		}
	})
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
