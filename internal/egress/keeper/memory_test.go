package keeper_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// peak is the most memory that a process has had of its own, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("the kernel does not tell how much memory a process has")
	return 0
}

// A workspace cannot have its carrel-egress take as much memory as its control group has: with bodies of requests to models and
// heads of requests that do not end, on all the connections that there may be.
func TestMemory(t *testing.T) {
	const most = 100 << 20 // of 128 MiB
	b := &budget{left: 1000}
	w, err := startWith(t, binary, func(c *keeper.Config) {
		c.Reserve = b.reserve
		c.Setup.Models = []egressapi.Model{{Name: "gpt", API: "openai", Upstream: "https://127.0.0.1/v1", Key: egressapi.NewPrivate("sk-a-key")}}
	})
	if err != nil {
		t.Fatal(err)
	}
	pid := w.PID()
	var all sync.WaitGroup
	end := make(chan struct{})
	open := func(text string, more int) {
		all.Go(func() {
			c, err := net.Dial("tcp", w.proxy)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(8 * time.Second)) // less than a request may take
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
			piece := []byte(strings.Repeat("word ", 4000))
			for more > 0 {
				n, err := c.Write(piece[:min(len(piece), more)])
				if err != nil {
					return // there is no room for it
				}
				more -= n
			}
			<-end
		})
	}
	for range 40 {
		open("POST http://gpt.carrel.internal/v1/chat/completions HTTP/1.1\r\nHost: gpt.carrel.internal\r\nContent-Length: 31457280\r\n\r\n"+
			`{"model":"m","x":"`, 30<<20)
	}
	for range 400 {
		open("GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", 62<<10)
	}
	var highest int64
	for deadline := time.Now().Add(6 * time.Second); time.Now().Before(deadline); {
		highest = max(highest, peak(t, pid))
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // it is sampled
	}
	close(end)
	all.Wait()
	if highest > most || highest < 20<<20 {
		t.Errorf("it has had %d MiB", highest>>20)
	}
	if w.PID() != pid {
		t.Error("it has ended")
	}
	c, no := w.connect(t)
	if no != "" {
		t.Fatal(no)
	}
	defer c.Close()
	if err := echo(c); err != nil {
		t.Error(err)
	}
}
