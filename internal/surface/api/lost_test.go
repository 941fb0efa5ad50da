package api_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

// A connection that is lost at any byte of what a client sends, or of what it reads, leaves no command that runs, and no stream
// that is counted. A command begins only once all that starts it has come.
func TestStreamsAreLostAtEachByte(t *testing.T) {
	g := &apitest.Gate{}
	socket, s := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	commands := commandsOn(t, socket)
	running := func() bool {
		list, err := commands.ListCommands(t.Context(), request(&carrelv1.ListCommandsRequest{Workspace: "demo"}))
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Msg.GetCommands()) > 0
	}
	if running() {
		t.Fatal("a command runs")
	}
	kept := s.Connections()
	whole := streamHead + "Transfer-Encoding: chunked\r\n\r\n" +
		chunk(enveloped(`{"start":{"workspace":"demo","stdin":true,"command":{"argv":["sh","-c","echo begun; cat; sleep 60"]}}}`))
	all := whole
	held := map[int]bool{} // net/http waits for the whole of a chunk whose head has come, before it gives what came before
	for _, m := range []string{`{"stdin":"b25l"}`, `{"signal":10}`, `{"closeStdin":true}`} {
		first := len(all) + len("15\r\n")
		all += chunk(enveloped(m))
		for i := first; i < len(all)-len("\r\n"); i++ {
			held[i] = true
		}
	}
	held[len(all)+len("0\r\n")], held[len(all)+len("0\r\n\r")] = true, true // or of the end
	all += "0\r\n\r\n"
	for cut := range len(all) + 1 {
		c := wireTo(t, socket).c
		if _, err := io.WriteString(c, all[:cut]); err != nil {
			t.Fatalf("cut at byte %d: %v", cut, err)
		}
		began := false
		if cut >= len(whole) && !held[cut] {
			b := make([]byte, len("HTTP/1.1 200"))
			_, err := io.ReadFull(c, b)
			if began = err == nil && strings.HasSuffix(string(b), "200"); !began {
				t.Fatalf("cut at byte %d nothing begins: %q, %v", cut, b, err)
			}
		}
		if cut < len(whole)-len("\r\n") && running() {
			t.Fatalf("cut at byte %d a command runs", cut)
		}
		c.Close()
		if began {
			idle(t, g)
		}
		for s.Connections() > kept+64 { // its user may have so many at once, and the server hears of an end later
			<-time.After(time.Millisecond)
		}
	}
	// The same of the answer.
	w := wireTo(t, socket)
	one := whole + chunk(enveloped(`{"stdin":"b25l"}`))
	w.write(one)
	var answer string
	for b := make([]byte, 1); !strings.Contains(answer, "b25l"); {
		if _, err := io.ReadFull(w.r, b); err != nil {
			t.Fatalf("%q: %v", answer, err)
		}
		answer += string(b)
	}
	w.c.Close()
	idle(t, g)
	for cut := 1; cut <= len(answer); cut += 3 {
		c := wireTo(t, socket).c
		if _, err := io.WriteString(c, one); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, min(cut, len(answer)-20))); err != nil {
			t.Fatalf("answer cut at byte %d: %v", cut, err)
		}
		if cut%2 == 0 { // what was read is read, what comes is not
			if err := c.(*net.UnixConn).CloseRead(); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		idle(t, g)
	}
	if running() {
		t.Error("a command runs on")
	}
	for end := time.Now().Add(10 * time.Second); s.Connections() > kept; <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are counted, and %d are kept", s.Connections(), kept)
		}
	}
}
