package webhook_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/webhook"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const secretText = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func secret(t *testing.T) []byte {
	t.Helper()
	b, err := webhook.ParseSecret(secretText)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The example of the Standard Webhooks libraries.
func TestSign(t *testing.T) {
	got := webhook.Sign(secret(t), "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
}

func TestParseSecret(t *testing.T) {
	for _, bad := range []string{
		"", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_AAAA", "whsec_!!!!", "whsec_" + strings.Repeat("AAAA", 22),
	} {
		if _, err := webhook.ParseSecret(bad); !errdefs.IsInvalidArgument(err) ||
			bad != "" && len(bad) > 10 && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCheckURL(t *testing.T) {
	for text, ok := range map[string]bool{
		"https://hooks.example/x?y=1": true, "http://127.0.0.1:8080/": true, "http://[::1]/": true, "http://localhost/x": true,
		"http://hooks.example/": false, "http://10.0.0.1/": false, "ftp://hooks.example/": false, "https://u:p@hooks.example/": false,
		"https:///x": false, "hooks.example": false, "https://hooks.example/#x": false, "http://localhost.evil.example/": false, "\x7f": false,
	} {
		if err := webhook.CheckURL(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// receiver replaces the network, which a test in a synctest bubble cannot use.
type receiver struct {
	mu     sync.Mutex
	got    []*http.Request
	bodies []string
	at     []time.Time
	answer func(n int, r *http.Request) (*http.Response, error)
}

func (x *receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	x.got, x.bodies, x.at = append(x.got, r), append(x.bodies, string(b)), append(x.at, time.Now())
	n := len(x.got)
	x.mu.Unlock()
	return x.answer(n, r)
}

func (x *receiver) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.got)
}

func status(code int) (*http.Response, error) {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: http.Header{
		"Location": {"http://elsewhere.example/"},
	}, Body: http.NoBody}, nil
}

func sender(t *testing.T, x *receiver) *webhook.Sender {
	t.Helper()
	s, err := webhook.New(webhook.Config{URL: "https://hooks.example/secret-path", Secret: secret(
		t,
	), Log: slog.New(slog.DiscardHandler), Transport: x})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &receiver{answer: func(n int, _ *http.Request) (*http.Response, error) {
			switch n {
			case 1:
				return nil, errors.New("refused")
			case 2:
				return status(500)
			case 3:
				return status(302) // is not followed, and no success
			}
			return status(204)
		}}
		s := sender(t, x)
		defer s.Close()
		began := time.Now()
		s.Send(webhook.Message{ID: "ap-1", Body: []byte(`{"a":1}`)})
		time.Sleep(time.Hour) //nolint:forbidigo // the test's own time
		synctest.Wait()
		if x.count() != 4 {
			t.Fatalf("%d attempts", x.count())
		}
		if d := x.at[3].Sub(began); d != 36*time.Second {
			t.Errorf("the last attempt was after %v", d)
		}
		for i, r := range x.got {
			at := x.at[i]
			if r.URL.Host != "hooks.example" || r.Header.Get("Webhook-Id") != "ap-1" || x.bodies[i] != `{"a":1}` ||
				r.Header.Get("Webhook-Signature") != webhook.Sign(secret(t), "ap-1", at, []byte(x.bodies[i])) {
				t.Errorf("%v %v %q", r.URL, r.Header, x.bodies[i])
			}
		}
		if got := s.Stats(); got.Sent != 1 || got.GivenUp != 0 || got.LastError != "" {
			t.Errorf("%+v", got)
		}
	})
}

func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := 503
		x := &receiver{answer: func(int, *http.Request) (*http.Response, error) { return status(code) }}
		s := sender(t, x)
		defer s.Close()
		s.Send(webhook.Message{ID: "all", Body: []byte(`{}`)})
		time.Sleep(time.Hour) //nolint:forbidigo // the test's own time
		synctest.Wait()
		if x.count() != 6 {
			t.Errorf("%d attempts", x.count())
		}
		s.Send(webhook.Message{ID: "late", Body: []byte(`{}`), Until: time.Now().Add(3 * time.Second)})
		time.Sleep(time.Hour) //nolint:forbidigo // the test's own time
		synctest.Wait()
		if x.count() != 8 {
			t.Errorf("%d attempts", x.count()-6)
		}
		code = http.StatusGone
		s.Send(webhook.Message{ID: "gone", Body: []byte(`{}`)})
		time.Sleep(time.Hour) //nolint:forbidigo // the test's own time
		synctest.Wait()
		if got := s.Stats(); x.count() != 9 || got.GivenUp != 3 || got.Sent != 0 || !strings.Contains(got.LastError, "Gone") {
			t.Errorf("%d attempts, %+v", x.count(), got)
		}
	})
}

// A hanging receiver blocks nobody and costs bounded memory.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &receiver{answer: func(_ int, r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}}
		s := sender(t, x)
		began := time.Now()
		for range webhook.MaxQueue + 500 {
			s.Send(webhook.Message{ID: "x", Body: []byte(`{}`)})
		}
		if time.Since(began) != 0 {
			t.Errorf("sending took %v", time.Since(began))
		}
		s.Send(webhook.Message{ID: "long", Body: make([]byte, webhook.MaxBody+1)})
		synctest.Wait()
		if got := s.Stats(); got.Dropped < 497 || got.Dropped > 501 {
			t.Errorf("%+v", got)
		}
		time.Sleep(webhook.Timeout + time.Millisecond) //nolint:forbidigo // the test's own time
		synctest.Wait()
		if got := s.Stats(); got.LastError == "" || strings.Contains(got.LastError, "secret-path") {
			t.Errorf("%+v", got)
		}
		s.Close()
	})
}
