// Package webhook sends signed messages to the administrator's address. Messages have the form of
// Standard Webhooks (https://www.standardwebhooks.com): headers webhook-id, webhook-timestamp and
// webhook-signature, the latter "v1," and the base64 of HMAC-SHA256 over "ID.TIMESTAMP.BODY".
//
// It must not decide what is sent, and nothing waits for it: a receiver that hangs or fails costs a
// bounded amount of memory and nothing else. The body of an answer is not used.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Bounds.
const (
	// MaxQueue bounds the waiting messages; further ones are dropped and counted.
	MaxQueue = 1000
	// Timeout bounds one attempt, from the connection to the end of the answer's header.
	Timeout = 10 * time.Second
	// MaxBody is the longest message, in bytes.
	MaxBody = 64 << 10
	// workers is the number of concurrent attempts, so that one hanging attempt does not block all.
	workers = 4
	// The length of a secret in bytes, by Standard Webhooks.
	minSecret, maxSecret = 24, 64
)

// retries are the pauses between attempts. A message is given up after the last.
var retries = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// secretPrefix begins a secret in text.
const secretPrefix = "whsec_"

// ParseSecret reads a secret: base64 of 24 to 64 bytes behind "whsec_".
func ParseSecret(text string) ([]byte, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), secretPrefix)
	b, err := base64.StdEncoding.DecodeString(rest)
	if !ok || err != nil || len(b) < minSecret || len(b) > maxSecret {
		return nil, fmt.Errorf("cannot use the webhook's secret: it is %q and the base64 of %d to %d bytes; "+
			"make one with: echo %s$(head -c 32 /dev/urandom | base64): %w",
			secretPrefix, minSecret, maxSecret, secretPrefix, errdefs.ErrInvalidArgument)
	}
	return b, nil
}

// CheckURL returns an error unless messages may be sent to an address: https, or http to this host
// only, without a name and password in it.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case u.User != nil:
		why = "it has a name or password in it, which would be logged; the signature says who sends"
	case u.Host == "" || u.Fragment != "":
		why = "it has no host, or a fragment"
	case u.Scheme == "https":
	case u.Scheme != "http":
		why = "it must begin with https://"
	case !local(u.Hostname()):
		why = "http:// is for this host alone, as anybody on the way could read and change it; use https://"
	}
	if why != "" {
		return fmt.Errorf("cannot send webhooks to that address: %s: %w", why, errdefs.ErrInvalidArgument)
	}
	return nil
}

func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Message is one message to send.
type Message struct {
	// ID is the same in every attempt, so that the receiver can recognise a repetition.
	ID string
	// Body is JSON of at most MaxBody bytes.
	Body []byte
	// Until is the time after which the message is useless; zero means never.
	Until time.Time
}

// Config holds the dependencies of New. All are required except Transport.
type Config struct {
	// URL has passed CheckURL, Secret is what ParseSecret returned.
	URL    string
	Secret []byte
	Log    *slog.Logger
	// Transport sends the requests; nil means a transport without a proxy.
	Transport http.RoundTripper
}

// Sender sends messages. Its methods may be called from any goroutine.
type Sender struct {
	cfg    Config
	client *http.Client
	queue  chan Message
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu    sync.Mutex
	stats Stats
}

// Stats counts the messages so far.
type Stats struct {
	Sent, Dropped, GivenUp int64
	// LastError is the error of the last failed attempt, and At its time; empty after a success.
	LastError string
	At        time.Time
}

// New returns a Sender that runs until Close.
func New(c Config) (*Sender, error) {
	if err := CheckURL(c.URL); err != nil {
		return nil, err
	}
	transport := c.Transport
	if transport == nil {
		transport = &http.Transport{
			MaxConnsPerHost: workers, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10, TLSHandshakeTimeout: Timeout,
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sender{cfg: c, queue: make(chan Message, MaxQueue), cancel: cancel, client: &http.Client{
		Transport: transport, Timeout: Timeout,
		// Redirects are not followed: the receiver must not choose another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for range workers {
		s.ended.Go(func() { s.work(ctx) })
	}
	return s, nil
}

// Send queues a message and does not wait. It drops the message if too many are waiting.
func (s *Sender) Send(m Message) {
	if len(m.Body) > MaxBody {
		s.drop(m, "it is too long")
		return
	}
	select {
	case s.queue <- m:
	default:
		s.drop(m, "too many wait")
	}
}

func (s *Sender) drop(m Message, why string) {
	s.mu.Lock()
	s.stats.Dropped++
	s.mu.Unlock()
	s.cfg.Log.Warn("a webhook is not sent", "id", m.ID, "why", why)
}

// Stats returns the counts of the messages so far.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close stops sending; waiting messages are lost.
func (s *Sender) Close() {
	s.cancel()
	s.ended.Wait()
	s.client.CloseIdleConnections()
}

func (s *Sender) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-s.queue:
			s.deliver(ctx, m)
		}
	}
}

// deliver tries until the message is sent, useless or given up.
func (s *Sender) deliver(ctx context.Context, m Message) {
	for attempt := 0; ; attempt++ {
		err := s.post(ctx, m)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		if err == nil {
			s.stats.Sent++
			s.stats.LastError, s.stats.At = "", time.Time{}
			s.mu.Unlock()
			return
		}
		s.stats.LastError, s.stats.At = err.Error(), time.Now()
		last := attempt == len(retries) || errors.Is(err, errdefs.ErrFailedPrecondition)
		pause := time.Duration(0)
		if !last {
			pause = retries[attempt]
			last = !m.Until.IsZero() && time.Now().Add(pause).After(m.Until)
		}
		if last {
			s.stats.GivenUp++
		}
		s.mu.Unlock()
		if last {
			s.cfg.Log.Warn("a webhook is given up", "id", m.ID, "attempts", attempt+1, "error", err)
			return
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// post makes one attempt. failed_precondition: the receiver wants no more messages (410).
func (s *Sender) post(ctx context.Context, m Message) error {
	at := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(m.Body))
	if err != nil {
		return fmt.Errorf("cannot send the webhook: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "carrel")
	r.Header.Set("Webhook-Id", m.ID)
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	r.Header.Set("Webhook-Signature", Sign(s.cfg.Secret, m.ID, at, m.Body))
	res, err := s.client.Do(r)
	if err != nil {
		return fmt.Errorf("cannot send the webhook: %w", withoutURL(err))
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // so that the connection can be used again
	switch {
	case res.StatusCode/100 == 2:
		return nil
	case res.StatusCode == http.StatusGone:
		return fmt.Errorf("cannot send the webhook: the receiver answered %s: %w", res.Status, errdefs.ErrFailedPrecondition)
	default:
		return fmt.Errorf("cannot send the webhook: the receiver answered %s: %w", res.Status, errdefs.ErrUnavailable)
	}
}

// withoutURL removes the address, whose path may contain a secret, from an error of package http.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// Sign returns the signature of a message that is sent at the given time.
func Sign(secret []byte, id string, at time.Time, body []byte) string {
	h := hmac.New(sha256.New, secret)
	fmt.Fprintf(h, "%s.%d.", id, at.Unix())
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}
