package jsonrpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// socketPair returns the two ends of a connected Unix stream socket.
func socketPair(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

// pair returns two connected Conns.
func pair(t testing.TB, client, server jsonrpc.Config) (*jsonrpc.Conn, *jsonrpc.Conn) {
	t.Helper()
	a, z := socketPair(t)
	c, s := jsonrpc.New(a, client), jsonrpc.New(z, server)
	t.Cleanup(func() {
		_ = c.Close()
		_ = s.Close()
		<-c.Done()
		<-s.Done()
	})
	return c, s
}

type args struct {
	Text string `json:"text"`
}

func echo(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	var a args
	if err := r.Decode(&a); err != nil {
		return nil, nil, err
	}
	return a, nil, nil
}

func TestCall(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{Handler: echo})
	for _, text := range []string{"", "x", "<&>\u2028 \n\t\"", strings.Repeat("é", 300_000)} {
		var got args
		if _, err := c.Call(t.Context(), "echo", args{text}, &got); err != nil {
			t.Fatal(err)
		}
		if got.Text != text {
			t.Errorf("got %d bytes back for %d", len(got.Text), len(text))
		}
	}
}

func TestBothSidesCall(t *testing.T) {
	h := func(ctx context.Context, c *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
		if r.Method == "back" {
			var got args
			_, err := c.Call(ctx, "echo", args{"there and back"}, &got)
			return got, nil, err
		}
		return nil, nil, jsonrpc.MethodNotFound(r.Method)
	}
	c, _ := pair(t, jsonrpc.Config{Handler: echo}, jsonrpc.Config{Handler: h})
	var got args
	if _, err := c.Call(t.Context(), "back", nil, &got); err != nil || got.Text != "there and back" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{Handler: echo, MaxInFlight: 3})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for j := range 20 {
				want := fmt.Sprint(i, "/", j, strings.Repeat("x", j*500))
				var got args
				if _, err := c.Call(t.Context(), "echo", args{want}, &got); err != nil || got.Text != want {
					t.Errorf("got %q, %v; want %q", got.Text, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestErrorsKeepTheirKind(t *testing.T) {
	for _, k := range []struct {
		err error
		is  func(error) bool
	}{
		{errdefs.ErrUnknown, errdefs.IsUnknown},
		{errdefs.ErrInvalidArgument, errdefs.IsInvalidArgument},
		{errdefs.ErrNotFound, errdefs.IsNotFound},
		{errdefs.ErrAlreadyExists, errdefs.IsAlreadyExists},
		{errdefs.ErrPermissionDenied, errdefs.IsPermissionDenied},
		{errdefs.ErrResourceExhausted, errdefs.IsResourceExhausted},
		{errdefs.ErrFailedPrecondition, errdefs.IsFailedPrecondition},
		{errdefs.ErrConflict, errdefs.IsConflict},
		{errdefs.ErrNotModified, errdefs.IsNotModified},
		{errdefs.ErrAborted, errdefs.IsAborted},
		{errdefs.ErrOutOfRange, errdefs.IsOutOfRange},
		{errdefs.ErrNotImplemented, errdefs.IsNotImplemented},
		{errdefs.ErrInternal, errdefs.IsInternal},
		{errdefs.ErrUnavailable, errdefs.IsUnavailable},
		{errdefs.ErrDataLoss, errdefs.IsDataLoss},
		{errdefs.ErrUnauthenticated, errdefs.IsUnauthorized},
		{context.DeadlineExceeded, errdefs.IsDeadlineExceeded},
		{context.Canceled, errdefs.IsCanceled},
	} {
		want := fmt.Errorf("cannot open the drawer: it is locked: %w", k.err)
		c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{Handler: func(
			context.Context, *jsonrpc.Conn, *jsonrpc.Request,
		) (any, []*os.File, error) {
			return nil, nil, want
		}})
		_, err := c.Call(t.Context(), "open", nil, nil)
		if err == nil || err.Error() != errtext.Text(want) || !k.is(err) {
			t.Errorf("%v came back as %v", want, err)
		}
	}
}

func TestErrorWithoutKind(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{Handler: func(context.Context, *jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
		return nil, nil, errors.New(strings.Repeat("é", 10_000))
	}})
	_, err := c.Call(t.Context(), "x", nil, nil)
	var e *jsonrpc.Error
	if !errors.As(err, &e) || e.Code != jsonrpc.CodeInternal || !strings.HasSuffix(e.Message, "é…") || len(e.Message) > 9000 {
		t.Fatalf("got %T of %d bytes", err, len(err.Error()))
	}
}

func TestDecodeIsStrict(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{Handler: echo})
	for _, params := range []any{map[string]any{"text": "x", "more": 1}, map[string]any{"text": 5}} {
		_, err := c.Call(t.Context(), "echo", params, nil)
		var e *jsonrpc.Error
		if !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams || !errdefs.IsInvalidArgument(err) {
			t.Errorf("params %v: got %v", params, err)
		}
	}
	if _, err := c.Call(t.Context(), "echo", []int{1}, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an array as params: got %v", err)
	}
	if _, err := c.Call(t.Context(), "echo", nil, nil); err != nil {
		t.Errorf("after three refusals and without params: %v", err)
	}
}

func TestCallCancelled(t *testing.T) {
	entered, leave, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c, _ := pair(t, jsonrpc.Config{MaxFDs: 1}, jsonrpc.Config{Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		if r.Method == "ping" {
			return nil, nil, nil
		}
		close(entered)
		<-leave
		pr, pw, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(func() { _ = pr.Close() })
		go func() { // EOF proves that both copies of pw were closed
			_, _ = io.Copy(io.Discard, pr)
			close(closed)
		}()
		return nil, []*os.File{pw}, nil
	}})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	go func() {
		<-entered
		cancel(cause)
	}()
	if _, err := c.Call(ctx, "slow", nil, nil); !errors.Is(err, cause) {
		t.Fatalf("got %v", err)
	}
	close(leave)
	<-closed
	if _, err := c.Call(t.Context(), "ping", nil, nil); err != nil {
		t.Fatalf("the connection did not survive a late reply: %v", err)
	}
}

func TestTimeout(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{
		Timeout: func(m string) time.Duration {
			if m == "slow" {
				return time.Millisecond
			}
			return 0
		},
		Handler: func(ctx context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			if r.Method == "slow" {
				<-ctx.Done()
				return nil, nil, context.Cause(ctx)
			}
			return nil, nil, ctx.Err()
		},
	})
	_, err := c.Call(t.Context(), "slow", nil, nil)
	if !errdefs.IsDeadlineExceeded(err) || !strings.Contains(err.Error(), "1ms") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Call(t.Context(), "fast", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestHangup(t *testing.T) {
	c, s := pair(t, jsonrpc.Config{}, jsonrpc.Config{Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		return nil, nil, jsonrpc.Hangup(jsonrpc.MethodNotFound(r.Method))
	}})
	_, err := c.Call(t.Context(), "nonsense", nil, nil)
	if !errdefs.IsNotImplemented(err) {
		t.Errorf("got %v", err)
	}
	<-s.Done()
	<-c.Done()
	if !errors.Is(c.Err(), io.EOF) {
		t.Errorf("the client saw %v", c.Err())
	}
	if _, err := c.Call(t.Context(), "more", nil, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("a call afterwards: %v", err)
	}
}

func TestCloseFailsCallsAndCancelsHandlers(t *testing.T) {
	entered := make(chan struct{})
	left := make(chan error, 1)
	closed := make(chan error, 1)
	c, _ := pair(t, jsonrpc.Config{
		OnClose: func(err error) { closed <- err },
	}, jsonrpc.Config{Handler: func(ctx context.Context, _ *jsonrpc.Conn, _ *jsonrpc.Request) (any, []*os.File, error) {
		close(entered)
		<-ctx.Done()
		left <- ctx.Err()
		return nil, nil, ctx.Err()
	}})
	go func() {
		<-entered
		_ = c.Close()
	}()
	if _, err := c.Call(t.Context(), "wait", nil, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	<-left
	if err := <-closed; !errors.Is(err, jsonrpc.ErrClosed) || !errors.Is(c.Err(), err) {
		t.Errorf("OnClose got %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

func TestBackPressure(t *testing.T) {
	started := make(chan struct{}, 100)
	leave := make(chan struct{})
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{MaxInFlight: 2, Handler: func(
		context.Context, *jsonrpc.Conn, *jsonrpc.Request,
	) (any, []*os.File, error) {
		started <- struct{}{}
		<-leave
		return nil, nil, nil
	}})
	for range 10 {
		if err := c.Notify(t.Context(), "n", nil); err != nil {
			t.Fatal(err)
		}
	}
	<-started
	<-started
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	select {
	case <-started:
		t.Error("a third handler ran beside two")
	case <-ctx.Done():
	}
	close(leave)
	for range 8 {
		<-started
	}
}

func TestPeerThatDoesNotRead(t *testing.T) {
	a, _ := socketPair(t)
	c := jsonrpc.New(a, jsonrpc.Config{WriteTimeout: 20 * time.Millisecond})
	defer c.Close()
	// A cancelled call leaves at once although its frame is stuck.
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "x", args{strings.Repeat("x", 900_000)}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	for {
		err := c.Notify(t.Context(), "x", args{strings.Repeat("x", 900_000)})
		if errdefs.IsUnavailable(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	<-c.Done()
	if !errors.Is(c.Err(), os.ErrDeadlineExceeded) {
		t.Errorf("the connection ended with %v", c.Err())
	}
}

func TestTooLongToSend(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{MaxFrame: 200}, jsonrpc.Config{MaxFrame: 200, Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		if r.Method == "long" {
			return args{strings.Repeat("x", 500)}, nil, nil
		}
		return nil, nil, nil
	}})
	if _, err := c.Call(t.Context(), "x", args{strings.Repeat("x", 300)}, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a long request: %v", err)
	}
	if _, err := c.Call(t.Context(), "x", nil, nil); err != nil {
		t.Errorf("after a long request: %v", err)
	}
	if _, err := c.Call(t.Context(), "bad method", nil, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a bad method: %v", err)
	}
}

// A result of a newer peer may say more, but nothing in two ways.
func TestResultsAreOfOneMeaning(t *testing.T) {
	for text, taken := range map[string]bool{
		`{"text":"a"}`:                     true,
		`{"text":"a","more":{"x":[1,2]}}`:  true,
		`{"text":"a","text":"b"}`:          false,
		`{"text":"a","Text":"b"}`:          false,
		`{"TEXT":"b"}`:                     false,
		`{"\u0074ext":"b"}`:                false,
		`{"more":{"text":1,"text":2}}`:     true, // nobody reads it
		`{"text":"a","more":1,"\u0074":2}`: true,
	} {
		c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{
			Handler: func(context.Context, *jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
				return json.RawMessage(text), nil, nil
			},
		})
		var got args
		_, err := c.Call(t.Context(), "echo", nil, &got)
		if (err == nil) != taken || taken && strings.HasPrefix(text, `{"text"`) && got.Text != "a" {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
}
