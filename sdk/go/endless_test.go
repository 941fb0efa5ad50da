package carrel_test

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// A daemon that answers without an end is given up, and its answer is not kept.
func TestEndlessAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carrel.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 8)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		n, chunk := 0, make([]byte, 1<<20)
		for {
			m, err := w.Write(chunk)
			if n += m; err != nil || n > 1<<30 {
				break
			}
		}
		sent <- n
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	client, err := carrel.New(carrel.Options{Host: "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Workspaces().List(t.Context(), connect.NewRequest(&carrelv1.ListRequest{}))
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("the endless answer: %v", err)
	}
	if n := <-sent; n > 64<<20 {
		t.Errorf("%d bytes were read", n)
	}
}
