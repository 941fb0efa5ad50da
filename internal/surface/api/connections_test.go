package api_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// A user who opens connection after connection is refused those beyond the limit, upgraded
// ones included, and gets new ones for old ones.
func TestConnectionsAreBounded(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	const limit = 64
	open := func() (net.Conn, bool) {
		t.Helper()
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = c.Write([]byte("POST " + fdapi.Path + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: " +
			"" + fdapi.Protocol + "\r\nContent-Length: 0\r\n\r\n"))
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 12)
		_, err = io.ReadFull(c, buf)
		return c, err == nil && string(buf) == "HTTP/1.1 101"
	}
	var held []net.Conn
	for i := range limit {
		c, ok := open()
		if !ok {
			t.Fatalf("connection %d was refused", i)
		}
		held = append(held, c)
	}
	if _, ok := open(); ok {
		t.Error("one too many was accepted")
	}
	held[0].Close()
	for end := time.Now().Add(10 * time.Second); ; {
		if _, ok := open(); ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the place of one that was closed is not given again")
		}
	}
	if _, ok := open(); ok {
		t.Error("one too many was accepted")
	}
}
