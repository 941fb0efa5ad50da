package llm_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

// piped is a real transport of HTTP/1.1, whose connections end in a function of the test.
func piped(t *testing.T, serve func(in *bufio.Reader, out net.Conn)) *http.Transport {
	return &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			in := bufio.NewReader(theirs)
			r, err := http.ReadRequest(in)
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			if err != nil {
				t.Errorf("the request: %v", err)
				return
			}
			serve(in, theirs)
		}()
		return ours, nil
	}}
}

const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

// gone waits until the client has given its connection up.
func gone(in *bufio.Reader) { _, _ = in.ReadByte() }

// drip writes a beginning, and a piece each time, until the client has given its connection up.
func drip(out io.Writer, begin, piece string, each time.Duration) {
	_, err := io.WriteString(out, begin)
	for err == nil {
		<-time.After(each)
		_, err = io.WriteString(out, piece)
	}
}

// What does not come in time ends the request, once, and the connection is given up.
func TestTimes(t *testing.T) {
	const late = 10 * time.Minute
	for _, c := range []struct {
		name  string
		serve func(in *bufio.Reader, out net.Conn)
		cfg   llm.Config
		took  time.Duration
		says  string
	}{
		{"no head", func(in *bufio.Reader, _ net.Conn) { gone(in) }, llm.Config{}, 30 * time.Second, "it did not answer for 30s"},
		{"half a head", func(in *bufio.Reader, out net.Conn) {
			_, _ = io.WriteString(out, "HTTP/1.1 200 OK\r\nConte")
			gone(in)
		}, llm.Config{}, 30 * time.Second, "it did not answer for 30s"},
		{"no piece", func(in *bufio.Reader, out net.Conn) {
			_, _ = io.WriteString(out, head)
			gone(in)
		}, llm.Config{}, 60 * time.Second, "nothing of it came for 1m0s"},
		{"no second piece", func(in *bufio.Reader, out net.Conn) {
			_, _ = io.WriteString(out, head+data(yes)+"data: {")
			gone(in)
		}, llm.Config{}, 60 * time.Second, "nothing of it came for 1m0s"},
		{"shorter times", func(in *bufio.Reader, out net.Conn) {
			_, _ = io.WriteString(out, head+data(yes))
			gone(in)
		}, llm.Config{Head: time.Second, Idle: 2 * time.Second}, 2 * time.Second, "nothing of it came for 2s"},
		{"pings without an end", func(_ *bufio.Reader, out net.Conn) {
			drip(out, head, ": ping\n\n", 50*time.Second)
		}, llm.Config{}, 30 * time.Minute, "was not whole after all attempts for 30m0s"},
		{"an error without an end", func(_ *bufio.Reader, out net.Conn) {
			drip(out, "HTTP/1.1 500 Oh\r\n\r\n", "x", 5*time.Second)
		}, llm.Config{}, 30 * time.Second, "it fails with 500"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.cfg.Transport = piped(t, c.serve)
			ctx, cancel := context.WithTimeout(t.Context(), late*10)
			defer cancel()
			began := time.Now()
			a, err := client(t, c.cfg).Stream(ctx, hello(), nil)
			if took := time.Since(began); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), c.says) || took != c.took || a.Stop != "" {
				t.Errorf("%s: %v after %s, %q", c.name, err, took, a.Stop)
			}
			// A provider that is silent may be at work; one that fails is not.
			if counts := !strings.Contains(c.name, "error"); counts != (a.Usage.Input > 10) || counts != a.Usage.Estimated {
				t.Errorf("%s: %+v", c.name, a.Usage)
			}
			<-time.After(time.Minute) // whoever writes sees that the connection is closed
		})
	}
}

// Pieces that come in time are waited for however long all of them take, and the time that the caller takes is its own.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, waited := time.Now(), false
		one := client(t, llm.Config{Transport: piped(t, func(_ *bufio.Reader, out net.Conn) {
			<-time.After(29 * time.Second)
			_, _ = io.WriteString(out, head)
			for range 10 {
				<-time.After(59 * time.Second)
				_, _ = io.WriteString(out, data(`{"choices":[{"delta":{"content":"x"}}]}`))
			}
			_, _ = io.WriteString(out, short)
		})})
		a, err := one.Stream(t.Context(), hello(), func(e llm.Event) error {
			if e.Kind == llm.TextDelta && !waited { // more is to be read after it
				waited = true
				<-time.After(5 * time.Minute)
			}
			return nil
		})
		if err != nil || a.Text != "xxxxxxxxxxyes" || time.Since(began) < 14*time.Minute {
			t.Errorf("%q, %v after %s", a.Text, err, time.Since(began))
		}
	})
}

// again answers in place of a transport; it fails so many times, and notes when it was asked.
type again struct {
	fail  func() (*reply, error)
	times int
	asked []time.Time
}

func (a *again) trip(r *http.Request) (*reply, error) {
	a.asked = append(a.asked, time.Now())
	if b, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(b), "hello") {
		return nil, fmt.Errorf("the body is not sent again: %q, %w: %w", b, err, errdefs.ErrInvalidArgument)
	}
	if len(a.asked) <= a.times {
		return a.fail()
	}
	return answered(strings.NewReader(short)), nil
}

func TestRetries(t *testing.T) {
	status := func(n int, header ...string) func() (*reply, error) {
		return func() (*reply, error) { return withStatus(n, `{"error":{"message":"busy"}}`, header...), nil }
	}
	fails := func(err error) func() (*reply, error) {
		return func() (*reply, error) { return nil, err }
	}
	refusal := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	type times []time.Duration
	usual := times{time.Second, 2 * time.Second, 4 * time.Second} // at most; at least half of it
	for _, c := range []struct {
		name  string
		fail  func() (*reply, error)
		times int
		cfg   llm.Config
		asked int
		kind  error // of what comes back in the end
		least times // waited before each attempt again; nil for half of usual
		most  times
	}{
		{"429", status(429), 3, llm.Config{}, 4, nil, nil, usual},
		{"503", status(503), 1, llm.Config{}, 2, nil, nil, usual},
		{"529", status(529), 2, llm.Config{}, 3, nil, nil, usual},
		{"refused", fails(refusal), 3, llm.Config{}, 4, nil, nil, usual},
		{"reset", fails(io.ErrUnexpectedEOF), 1, llm.Config{}, 2, nil, nil, usual},
		{"closed", fails(io.EOF), 1, llm.Config{}, 2, nil, nil, usual},
		{"429 for ever", status(429), 9, llm.Config{}, 4, errdefs.ErrResourceExhausted, nil, usual},
		{"503 for ever", status(503), 9, llm.Config{}, 4, errdefs.ErrUnavailable, nil, usual},
		{"refused for ever", fails(refusal), 9, llm.Config{}, 4, errdefs.ErrUnavailable, nil, usual},
		{"never again", status(429), 9, llm.Config{Retries: -1}, 1, errdefs.ErrResourceExhausted, nil, nil},
		{"once", status(429), 9, llm.Config{Retries: 1}, 2, errdefs.ErrResourceExhausted, nil, usual},
		{"500", status(500), 9, llm.Config{}, 1, errdefs.ErrUnavailable, nil, nil},
		{"502", status(502), 9, llm.Config{}, 1, errdefs.ErrUnavailable, nil, nil},
		{"504", status(504), 9, llm.Config{}, 1, errdefs.ErrUnavailable, nil, nil},
		{"408", status(408), 9, llm.Config{}, 1, errdefs.ErrUnavailable, nil, nil},
		{"409", status(409), 9, llm.Config{}, 1, errdefs.ErrUnavailable, nil, nil},
		{"after 7 s", status(429, "Retry-After", "7"), 1, llm.Config{}, 2, nil, times{7 * time.Second}, times{7 * time.Second}},
		{
			"after 7.5 s", status(503, "Retry-After-Ms", "7500", "Retry-After", "8"), 1,
			llm.Config{},
			2, nil,
			times{7500 * time.Millisecond},
			times{7500 * time.Millisecond},
		},
		{"after a minute", status(429, "Retry-After", "60"), 1, llm.Config{}, 2, nil, times{time.Minute}, times{time.Minute}},
		{"after an hour", status(429, "Retry-After", "3600"), 9, llm.Config{}, 1, errdefs.ErrResourceExhausted, nil, nil},
		{"after no time", status(429, "Retry-After", "-5"), 1, llm.Config{}, 2, nil, nil, usual},
		{"not again", status(429, "X-Should-Retry", "false"), 9, llm.Config{}, 1, errdefs.ErrResourceExhausted, nil, nil},
		{
			"another's certificate", fails(&tls.CertificateVerificationError{Err: errors.New("x509: unknown authority")}), 9,
			llm.Config{},
			1,
			errdefs.ErrUnavailable, nil, nil,
		},
		{
			"no network at all", fails(fmt.Errorf("the cassette has none: %w", errdefs.ErrNotFound)), 9,
			llm.Config{},
			1,
			errdefs.ErrNotFound, nil, nil,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &again{fail: c.fail, times: c.times}
			c.cfg.Transport = tripper(a.trip)
			answer, err := client(t, c.cfg).Stream(t.Context(), hello(), nil)
			if (c.kind == nil) != (err == nil) || c.kind != nil && !errors.Is(err, c.kind) || len(a.asked) != c.asked {
				t.Errorf("%s: %v after %d requests", c.name, err, len(a.asked))
				return
			}
			if err == nil && answer.Text != "yes" {
				t.Errorf("%s: %q", c.name, answer.Text)
			}
			for i, at := range a.asked[1:] {
				waited, least := at.Sub(a.asked[i]), c.most[i]/2
				if c.least != nil {
					least = c.least[i]
				}
				if waited < least || waited > c.most[i] {
					t.Errorf("%s: attempt %d came after %s, and %s to %s were to be waited", c.name, i+2, waited, least, c.most[i])
				}
			}
		})
	}
}

// The pauses differ from client to client, so that not all of them come again at once.
func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 20 {
			a := &again{times: 1, fail: func() (*reply, error) { return withStatus(503, ""), nil }}
			if _, err := client(t, llm.Config{Transport: tripper(a.trip)}).Stream(t.Context(), hello(), nil); err != nil {
				t.Fatal(err)
			}
			seen[a.asked[1].Sub(a.asked[0])] = true
		}
		if len(seen) < 10 {
			t.Errorf("20 pauses have %d lengths", len(seen))
		}
	})
}

// Once an answer has begun nothing is sent again, though its first byte never came.
func TestNoRetryInStream(t *testing.T) {
	asked := 0
	one := client(t, llm.Config{Transport: tripper(func(*http.Request) (*reply, error) {
		asked++
		return answered(readerFunc(func([]byte) (int, error) { return 0, syscall.ECONNRESET })), nil
	})})
	if _, err := one.Stream(t.Context(), hello(), nil); !errdefs.IsDataLoss(err) || asked != 1 {
		t.Errorf("%v after %d requests", err, asked)
	}
}

// A caller that goes away is not waited for between two attempts.
func TestCancelledPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		a := &again{times: 9, fail: func() (*reply, error) { return withStatus(429, "", "Retry-After", "50"), nil }}
		time.AfterFunc(3*time.Second, func() { cancel(mine) })
		began := time.Now()
		_, err := client(t, llm.Config{Transport: tripper(a.trip)}).Stream(ctx, hello(), nil)
		if took := time.Since(began); !errors.Is(err, mine) || took != 3*time.Second || len(a.asked) != 1 {
			t.Errorf("%v after %s and %d requests", err, took, len(a.asked))
		}
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for text, want := range map[string]time.Duration{
			"": 0, "5": 5 * time.Second, "0.5": 500 * time.Millisecond, "-1": 0, "soon": 0, "NaN": 0, "Inf": 24 * time.Hour, "1e300": 24 * time.Hour,
			time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat): 90 * time.Second,
			time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):       0, "Mon, 01 Jan 9999 00:00:00 GMT": 24 * time.Hour,
		} {
			if got := llm.RetryAfter(http.Header{"Retry-After": {text}}); got != want {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}
	})
}
