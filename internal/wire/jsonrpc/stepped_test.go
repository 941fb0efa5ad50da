package jsonrpc_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// stepped makes serve serve in steps. Only TestStepped sets it, and no test of this
// package runs in parallel.
var stepped bool

// serve is jsonrpc.New for the side under test.
func serve(t testing.TB, c *net.UnixConn, cfg jsonrpc.Config) *jsonrpc.Conn {
	cfg.Stepped = stepped
	s := jsonrpc.New(c, cfg)
	if stepped {
		var loop sync.WaitGroup
		loop.Go(func() {
			for {
				fd := s.Descriptor()
				if fd < 0 {
					return
				}
				// The time-out is for a connection that ends between the lines above and below.
				if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50); n > 0 && s.Step() != nil {
					return
				}
			}
		})
		t.Cleanup(loop.Wait)
	}
	return s
}

// TestStepped runs the tests of framing, of descriptors and of violations again against
// a connection that its owner steps.
func TestStepped(t *testing.T) {
	stepped = true
	defer func() { stepped = false }()
	for _, tt := range []struct {
		name string
		test func(*testing.T)
	}{
		{"FDsFindTheirMessage", TestFDsFindTheirMessage},
		{"FDViolations", TestFDViolations},
		{"Violations", TestViolations},
		{"AcceptedForms", TestAcceptedForms},
		{"ByteByByte", TestByteByByte},
		{"PartialFrame", TestPartialFrame},
		{"PeerClosesInsideFrame", TestPeerClosesInsideFrame},
	} {
		t.Run(tt.name, tt.test)
	}
}

// TestLater: a handler that keeps its request blocks nothing else, and the reply is sent when
// it is made.
func TestLater(t *testing.T) {
	for _, mode := range []bool{false, true} {
		stepped = mode
		kept := make(chan *jsonrpc.Request, 1)
		a, z := socketPair(t)
		s := serve(t, z, jsonrpc.Config{Handler: func(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			if r.Method == "later" {
				kept <- r
				return jsonrpc.Later, nil, nil
			}
			return "now", nil, nil
		}})
		c := jsonrpc.New(a, jsonrpc.Config{MaxFDs: 1})
		type answer struct {
			text string
			fds  []*os.File
			err  error
		}
		got := make(chan answer, 1)
		go func() {
			var text string
			fds, err := c.Call(t.Context(), "later", nil, &text)
			got <- answer{text, fds, err}
		}()
		r := <-kept
		var now string
		if _, err := c.Call(t.Context(), "now", nil, &now); err != nil || now != "now" {
			t.Errorf("stepped %v: %q %v", mode, now, err)
		}
		select {
		case x := <-got:
			t.Errorf("stepped %v: answered early: %+v", mode, x)
		default:
		}
		pr, pw := pipe(t)
		pw.Close()
		go r.Reply("at last", []*os.File{pr}, nil)
		x := <-got
		if x.err != nil || x.text != "at last" || len(x.fds) != 1 {
			t.Errorf("stepped %v: %+v", mode, x)
		}
		for _, f := range x.fds {
			f.Close()
		}
		c.Close()
		<-s.Done()
	}
	stepped = false
}

// TestSteppedIsNotFlooded: beyond MaxInFlight a stepped connection answers instead of
// waiting, as it must not block.
func TestSteppedIsNotFlooded(t *testing.T) {
	stepped = true
	defer func() { stepped = false }()
	kept := make(chan *jsonrpc.Request, 2)
	a, z := socketPair(t)
	s := serve(t, z, jsonrpc.Config{MaxInFlight: 2, Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		kept <- r
		return jsonrpc.Later, nil, nil
	}})
	c := jsonrpc.New(a, jsonrpc.Config{})
	errs := make(chan error, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 3 {
		go func() {
			_, err := c.Call(ctx, "keep", nil, nil)
			errs <- err
		}()
	}
	if err := <-errs; !errdefs.IsResourceExhausted(err) {
		t.Errorf("the third: %v", err)
	}
	for range 2 {
		(<-kept).Reply(nil, nil, nil)
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	c.Close()
	<-s.Done()
}
