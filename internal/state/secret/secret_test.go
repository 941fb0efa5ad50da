package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/state/secret"
)

const (
	about = "secret/uid:1000/API_KEY"
	value = "copper kettle 7 whistles"
)

// open returns a sealer with a key of its own.
func open(t testing.TB) *secret.Sealer {
	t.Helper()
	s, err := secret.Open(filepath.Join(t.TempDir(), "secrets.key"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func seal(t testing.TB, s *secret.Sealer, about, value string) []byte {
	t.Helper()
	b, err := s.Seal(about, redact.NewValue(value))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSealAndUnseal(t *testing.T) {
	s := open(t)
	long := strings.Repeat("ü", secret.MaxValue/2)
	for _, c := range []struct{ about, value string }{
		{about, value},
		{about, ""},
		{"", value},
		{"", ""},
		{about, "ends in zeros\x00\x00"},
		{strings.Repeat("a", secret.MaxAbout), long},
		{about, strings.Repeat("x", 512-14-len(about))},
		{about, strings.Repeat("x", 512-14-len(about)+1)},
	} {
		sealed := seal(t, s, c.about, c.value)
		if len(sealed) > secret.MaxSealed || c.value == value && bytes.Contains(sealed, []byte(value)) {
			t.Errorf("%.40q: %d bytes", c.value, len(sealed))
		}
		if v, err := s.Unseal(c.about, sealed); err != nil || v.Reveal() != c.value {
			t.Errorf("%.40q: %v", c.value, err)
		}
	}
	if bytes.Equal(seal(t, s, about, value), seal(t, s, about, value)) {
		t.Error("two sealed texts are equal, so that equal values can be told")
	}
	if a, b := seal(t, s, about, "12345678"), seal(t, s, about, strings.Repeat("x", 400)); len(a) != len(b) {
		t.Errorf("the lengths %d and %d tell those of the values", len(a), len(b))
	}
}

func TestBounds(t *testing.T) {
	s := open(t)
	long := strings.Repeat("a", secret.MaxAbout+1)
	if _, err := s.Seal(long, redact.NewValue(value)); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), value) {
		t.Error(err)
	}
	long = strings.Repeat("v", secret.MaxValue+1)
	if _, err := s.Seal(about, redact.NewValue(long)); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "vvv") {
		t.Error(err)
	}
	if _, err := s.Unseal(about, make([]byte, secret.MaxSealed+1)); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
}

// refused sees that a sealed text does not open, and that the error says why and tells nothing of it.
func refused(t *testing.T, what string, s *secret.Sealer, about string, sealed []byte, why string) {
	t.Helper()
	v, err := s.Unseal(about, sealed)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), why) || v.Reveal() != "" {
		t.Errorf("%s: %q, %v", what, v.Reveal(), err)
	}
}

func TestAnotherKey(t *testing.T) {
	one, other := open(t), open(t)
	sealed := seal(t, one, about, value)
	refused(t, "another key", other, about, sealed, "the key in "+other.Path()+" is not the one")
	if _, err := one.Unseal(about, sealed); err != nil {
		t.Error(err)
	}
}

func TestAboutSomethingElse(t *testing.T) {
	s := open(t)
	sealed := seal(t, s, about, value)
	for _, other := range []string{"", about + "X", about[:len(about)-1], "secret/uid:1001/API_KEY", strings.ToLower(about)} {
		refused(t, other, s, other, sealed, "about something else")
	}
	// What is about and what is value is told by lengths, so that no value can pretend to be about something else.
	refused(t, "moved", s, "ab", seal(t, s, "a", "bc"), "about something else")
}

// Each byte counts, and so does each that is missing or added.
func TestChanged(t *testing.T) {
	s := open(t)
	sealed := seal(t, s, about, value)
	for n := range sealed {
		refused(t, fmt.Sprintf("cut off at %d", n), s, about, sealed[:n], "cannot unseal the value: ")
		for _, bits := range []byte{1, 0x20, 0x80, 0xff} {
			other := bytes.Clone(sealed)
			other[n] ^= bits
			refused(t, fmt.Sprintf("byte %d ^ %#x", n, bits), s, about, other, "cannot unseal the value: ")
		}
	}
	refused(t, "one more", s, about, append(bytes.Clone(sealed), 0), "was changed")
	refused(t, "twice", s, about, append(bytes.Clone(sealed), sealed...), "was changed")
}

// plain seals a text that Seal does not make, as who has the key could.
func plain(t testing.TB, key string, text []byte) []byte {
	t.Helper()
	i, err := age.ParseX25519Identity(key)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, i.Recipient())
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestOtherForms(t *testing.T) {
	key := newKey(t)
	s := openWith(t, key)
	for name, text := range map[string]string{
		"nothing":          "",
		"another form":     "carrel2\n\x00\x01\x00\x00\x00\x01ab",
		"short":            "carrel1\n\x00\x01\x00\x00\x00",
		"longer than told": "carrel1\n\x00\x01\x00\x00\x00\x01abc",
		"less than told":   "carrel1\n\x00\x01\x00\x00\x00\x02ab",
		"very long":        "carrel1\n\xff\xff\xff\xff\xff\xffab",
	} {
		refused(t, name, s, "a", plain(t, key, []byte(text)), "was changed")
	}
	if v, err := s.Unseal("a", plain(t, key, []byte("carrel1\n\x00\x01\x00\x00\x00\x01ab\x00"))); err != nil || v.Reveal() != "b" {
		t.Error(err)
	}
}

// Neither key nor value shows, however they are printed.
func TestNothingShows(t *testing.T) {
	key := newKey(t)
	s := openWith(t, key)
	type holder struct {
		Sealer *secret.Sealer
		of     *secret.Sealer
		deep   []any
		Value  redact.Value
		own    redact.Value
	}
	h := holder{s, s, []any{s, *s, redact.NewValue(value)}, redact.NewValue(value), redact.NewValue(value)}
	var b bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&b, nil))
	text := slog.New(slog.NewTextHandler(&b, nil))
	for _, v := range []any{s, *s, h, &h, []holder{h}, map[string]any{"x": h}, h.deep, h.own} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
			fmt.Fprintf(&b, verb+"\n", v)
		}
		fmt.Fprintln(&b, v)
		raw, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		b.Write(raw)
		log.Info("x", "v", v)
		text.Info("x", "v", v)
	}
	for _, hidden := range []string{key, strings.ToLower(key), key[16:40], value} {
		in64 := base64.StdEncoding.EncodeToString([]byte(hidden))
		for _, form := range []string{hidden, fmt.Sprintf("%x", hidden), fmt.Sprintf("%d", []byte(hidden)), in64} {
			if strings.Contains(b.String(), form) {
				t.Errorf("%s shows in %s", form, &b)
			}
		}
	}
	if strings.Count(b.String(), redact.Hidden) < 20 {
		t.Errorf("what was printed is %s", &b)
	}
}

// Whatever is stored, Unseal returns what was sealed about that, or an error.
func FuzzUnseal(f *testing.F) {
	key := newKey(f)
	s := openWith(f, key)
	f.Add(seal(f, s, about, value), about, true)
	f.Add([]byte("carrel1\n\x00\x01\x00\x00\x00\x01ab\x00\x00"), "a", false)
	f.Fuzz(func(t *testing.T, text []byte, about string, raw bool) {
		sealed := text
		if !raw { // what comes after the decryption is tried too
			sealed = plain(t, key, text)
		}
		v, err := s.Unseal(about, sealed)
		if err != nil {
			if !errdefs.IsFailedPrecondition(err) || v.Reveal() != "" {
				t.Errorf("%q, %v", v.Reveal(), err)
			}
			return
		}
		if len(v.Reveal()) > secret.MaxValue || !raw && !bytes.Contains(text, []byte(about+v.Reveal())) {
			t.Errorf("%q about %q of %q", v.Reveal(), about, text)
		}
	})
}
