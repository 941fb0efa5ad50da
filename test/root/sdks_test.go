package root_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/test/sdktest"
)

// The clients in Python and TypeScript do what they say from elsewhere: over TLS with a token, trusting the daemon's key by its
// fingerprint, or an authority.
func TestSDKsOverTLS(t *testing.T) {
	needRoot(t)
	h := newHostWith(t, func(string) string { return "listen: 127.0.0.1:0\n" })
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	var token struct{ Token, Address, Fingerprint string }
	if err := json.Unmarshal([]byte(h.carrel(t, "token", "create", "--role", "operator", "-o", "json")), &token); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// Where others may not read it: a client takes no token from such a file.
	secret := filepath.Join(dir, "token")
	if err := os.WriteFile(secret, []byte(token.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, l := range sdktest.Languages {
		t.Run(l.Name, func(t *testing.T) {
			p := l.Copy(t, dir, nil, "CARREL_HOST="+token.Address)
			for way, env := range map[string][]string{
				"fingerprint": {"CARREL_TOKEN=" + token.Token, "CARREL_FINGERPRINT=" + token.Fingerprint},
				"authority":   {"CARREL_TOKEN_FILE=" + secret, "CARREL_CA_FILE=" + filepath.Join(h.data, "daemon/tls/cert.pem")},
			} {
				t.Run(way, func(t *testing.T) { p.Tests(t, env...) })
			}
		})
	}
}
