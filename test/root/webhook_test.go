package root_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/webhook"
)

// hooked is what a receiver got.
type hooked struct {
	ID   string
	Body struct {
		Type string `json:"type"`
		Data struct {
			ID        string   `json:"id"`
			Requester string   `json:"requester"`
			Argv      []string `json:"argv"`
			Written   bool     `json:"written"`
			Level     string   `json:"level"`
		} `json:"data"`
	}
}

// A new approval is told to an address, signed, once for each daemon that finds it open; a
// receiver that hangs holds up nobody.
func TestWebhook(t *testing.T) {
	needRoot(t)
	const text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secret, err := webhook.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan hooked, 10)
	var mu sync.Mutex
	hang := make(chan struct{})
	hanging := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var h hooked
		if err := json.Unmarshal(b, &h.Body); err != nil {
			t.Errorf("%s: %v", b, err)
		}
		h.ID = r.Header.Get("Webhook-Id")
		at, err := strconv.ParseInt(r.Header.Get("Webhook-Timestamp"), 10, 64)
		if err != nil || r.Header.Get("Webhook-Signature") != webhook.Sign(secret, h.ID, time.Unix(at, 0), b) || r.URL.Path != "/carrel" {
			t.Errorf("%v %v", r.URL, r.Header)
		}
		got <- h
		mu.Lock()
		wait := hanging
		mu.Unlock()
		if wait {
			<-hang
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	defer close(hang)

	var file string
	h := newHostWith(t, func(dir string) string {
		file = filepath.Join(dir, "secret")
		return fmt.Sprintf("approval:\n  webhook: %s/carrel\n  webhook_secret_file: %s\n", s.URL, file)
	})
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err == nil || !strings.Contains(err.Error(), "every user of the host can read it") {
		t.Fatalf("with a secret that everybody can read: %v", err)
	}
	group, err := osuser.LookupGroup("carrel") // made by the shared one
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 0, gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "create", "crt hook")
	ask := func(url string) string {
		t.Helper()
		r := h.try(nil, "", "exec", "--source", "llm", "crt hook", "--", "git", "push", url, "x")
		_, rest, ok := strings.Cut(r.err, "approval ")
		if !ok || !strings.HasPrefix(rest, "ap-") {
			t.Fatalf("%+v", r)
		}
		return strings.Fields(rest)[0][:len("ap-0123456789abcdef")]
	}
	next := func() hooked {
		t.Helper()
		select {
		case h := <-got:
			return h
		case <-time.After(patience):
			t.Fatal("nothing was told")
			return hooked{}
		}
	}
	name := ask("https://example.com/one")
	if x := next(); x.ID != name || x.Body.Type != "approval.asked" || x.Body.Data.ID != name ||
		x.Body.Data.Argv[2] != "https://example.com/one" ||
		!x.Body.Data.Written || x.Body.Data.Level != "CONFIRM" || x.Body.Data.Requester != "uid:0" {
		t.Errorf("%+v", x)
	}
	// The next daemon tells what is still open.
	kill(t, h.part(t, "daemon"))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if x := next(); x.ID != name {
		t.Errorf("%+v", x)
	}
	mu.Lock()
	hanging = true
	mu.Unlock()
	for n := range 6 { // more than are sent at a time
		ask(fmt.Sprintf("https://example.com/hang-%d", n))
	}
	if r := h.try(nil, "", "exec", "crt hook", "--", "echo", "on"); r.out != "on\n" {
		t.Errorf("%+v", r)
	}
}
