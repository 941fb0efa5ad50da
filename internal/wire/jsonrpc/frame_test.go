package jsonrpc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// rawPeer is a socket whose far end is a Conn that echoes.
func rawPeer(t testing.TB, cfg jsonrpc.Config) (*net.UnixConn, *jsonrpc.Conn) {
	t.Helper()
	a, z := socketPair(t)
	if cfg.Handler == nil {
		cfg.Handler = echo
	}
	s := serve(t, z, cfg)
	t.Cleanup(func() {
		_ = s.Close()
		<-s.Done()
	})
	return a, s
}

func send(t testing.TB, c *net.UnixConn, frame string, files ...*os.File) {
	t.Helper()
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix([]byte(frame), oob, nil); err != nil {
		t.Fatal(err)
	}
}

const good = `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"x"}}`

// TestViolations breaks each rule of the protocol. The answer has the code and id stated, and
// the connection ends unless it may go on.
func TestViolations(t *testing.T) {
	deep := func(n int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"echo","params":` + strings.Repeat(`{"a":`, n-1) + "1" + strings.Repeat("}", n-1) + "}"
	}
	for _, v := range []struct {
		name, frame string
		code        int
		id          string
		goesOn      bool
	}{
		{"not JSON", `hello`, -32700, "null", false},
		{"empty line", ``, -32700, "null", false},
		{"cut off", `{"jsonrpc":"2.0","id":1`, -32700, "null", false},
		{"two values", good + good, -32700, "null", false},
		{"trailing comma", `{"jsonrpc":"2.0","id":1,}`, -32700, "null", false},
		{"bad escape", `{"jsonrpc":"2.0","id":1,"method":"\x"}`, -32700, "null", false},
		{"control byte in a string", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\tb\"}", -32700, "null", false},
		{"NUL", "\x00", -32700, "null", false},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", -32700, "null", false},
		{"nested 65 deep", deep(65), -32700, "null", false},
		{"batch", `[` + good + `]`, -32600, "null", false},
		{"a number", `5`, -32600, "null", false},
		{"no version", `{"id":1,"method":"echo"}`, -32600, "1", false},
		{"version 1.0", `{"jsonrpc":"1.0","id":1,"method":"echo"}`, -32600, "1", false},
		{"version as a number", `{"jsonrpc":2.0,"id":1,"method":"echo"}`, -32600, "1", false},
		{"nothing in it", `{"jsonrpc":"2.0","id":1}`, -32600, "1", false},
		{"method and result", `{"jsonrpc":"2.0","id":1,"method":"echo","result":1}`, -32600, "1", false},
		{"method and error", `{"jsonrpc":"2.0","id":1,"method":"echo","error":{}}`, -32600, "1", false},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, -32600, "1", false},
		{"a member twice", `{"jsonrpc":"2.0","id":1,"method":"echo","method":"other"}`, -32600, "1", false},
		{"the id twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"echo"}`, -32600, "1", false},
		{"an unknown member", `{"jsonrpc":"2.0","id":1,"method":"echo","more":1}`, -32600, "1", false},
		{"a member in another case", `{"jsonrpc":"2.0","id":1,"Method":"echo"}`, -32600, "1", false},
		{"an escaped member", `{"jsonrpc":"2.0","id":1,"\u006dethod":"echo"}`, -32600, "1", false},
		{"a fractional id", `{"jsonrpc":"2.0","id":1.5,"method":"echo"}`, -32600, "null", false},
		{"an object as id", `{"jsonrpc":"2.0","id":{},"method":"echo"}`, -32600, "null", false},
		{"an id too long", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 127) + `","method":"echo"}`, -32600, "null", false},
		{"an escape in an id", `{"jsonrpc":"2.0","id":"\u0061","method":"echo"}`, -32600, "null", false},
		{"a null id", `{"jsonrpc":"2.0","id":null,"method":"echo"}`, -32600, "null", false},
		{"method not a string", `{"jsonrpc":"2.0","id":"a","method":5}`, -32600, `"a"`, false},
		{"empty method", `{"jsonrpc":"2.0","id":"a","method":""}`, -32600, `"a"`, false},
		{"method too long", `{"jsonrpc":"2.0","id":"a","method":"` + strings.Repeat("m", 65) + `"}`, -32600, `"a"`, false},
		{"method with a space", `{"jsonrpc":"2.0","id":"a","method":"a b"}`, -32600, `"a"`, false},
		{"a reply nobody waits for", `{"jsonrpc":"2.0","id":7,"result":1}`, -32600, "null", false},
		{"a reply without id", `{"jsonrpc":"2.0","result":1}`, -32600, "null", false},
		{"a result with id null", `{"jsonrpc":"2.0","id":null,"result":1}`, -32600, "null", false},
		{"a reply with params", `{"jsonrpc":"2.0","id":7,"result":1,"params":{}}`, -32600, "7", false},
		{"fds declared, none sent", `{"jsonrpc":"2.0","id":1,"method":"echo","fds":1}`, -32600, "1", false},
		{"fds zero", `{"jsonrpc":"2.0","id":1,"method":"echo","fds":0}`, -32600, "1", false},
		{"fds negative", `{"jsonrpc":"2.0","id":1,"method":"echo","fds":-1}`, -32600, "1", false},
		{"fds not a number", `{"jsonrpc":"2.0","id":1,"method":"echo","fds":"1"}`, -32600, "1", false},
		{"more fds than accepted", `{"jsonrpc":"2.0","id":1,"method":"echo","fds":3}`, -32600, "1", false},
		{"over-long", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"` + strings.Repeat("x", 5000) + `"}}`, -32600, "null", false},
		{"params as an array", `{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}`, -32602, "1", true},
		{"params as a string", `{"jsonrpc":"2.0","id":1,"method":"echo","params":"x"}`, -32602, "1", true},
		{"an unknown param", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"y":1}}`, -32602, "1", true},
		{"a param twice", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"a","text":"b"}}`, -32602, "1", true},
		{"a param in another case", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"Text":"b"}}`, -32602, "1", true},
		{"a param in both cases", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"a","TEXT":"b"}}`, -32602, "1", true},
		{"an escaped param", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"\u0074ext":"b"}}`, -32602, "1", true},
		{"nested 64 deep", deep(64), -32602, "1", true},
	} {
		t.Run(v.name, func(t *testing.T) {
			c, s := rawPeer(t, jsonrpc.Config{MaxFrame: 4096, MaxFDs: 2})
			send(t, c, v.frame+"\n")
			in := bufio.NewReader(c)
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			var got struct {
				ID    json.RawMessage `json:"id"`
				Error struct {
					Code    int    `json:"code"`
					Message string `json:"message"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatal(err)
			}
			if string(got.ID) != v.id || got.Error.Code != v.code || got.Error.Message == "" {
				t.Errorf("got %swant id %s, code %d", line, v.id, v.code)
			}
			if v.goesOn {
				send(t, c, good+"\n")
				if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, `"result"`) {
					t.Errorf("the connection did not go on: %q, %v", line, err)
				}
				return
			}
			<-s.Done()
			var e *jsonrpc.Error
			if !errors.As(s.Err(), &e) || e.Code != v.code || !errdefs.IsInvalidArgument(e) {
				t.Errorf("the connection ended with %v", s.Err())
			}
			if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("after the answer came %q, %v", rest, err)
			}
		})
	}
}

func TestAcceptedForms(t *testing.T) {
	c, _ := rawPeer(t, jsonrpc.Config{})
	in := bufio.NewReader(c)
	longID := `"` + strings.Repeat("é", 63) + `"`
	for _, f := range []struct{ frame, id string }{
		{` {"method" : "echo" , "params":{"text":"x"},"id":-5,"jsonrpc":"2.0"} ` + "\r\n", "-5"},
		{`{"jsonrpc":"2.0","id":` + longID + `,"method":"echo","params":{"text":"x"}}` + "\n", longID},
		{`{"jsonrpc":"2.0","method":"echo","params":{"text":"a notification has no answer"}}` + "\n" + good + "\n", "1"},
	} {
		send(t, c, f.frame)
		line, err := in.ReadString('\n')
		if want := `{"jsonrpc":"2.0","id":` + f.id + `,"result":{"text":"x"}}` + "\n"; err != nil || line != want {
			t.Errorf("got %q, %v; want %q", line, err, want)
		}
	}
}

func TestByteByByte(t *testing.T) {
	c, _ := rawPeer(t, jsonrpc.Config{})
	for i := range len(good) {
		send(t, c, good[i:i+1])
	}
	send(t, c, "\n"+good[:5])
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, `"result"`) {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestPartialFrame(t *testing.T) {
	c, s := rawPeer(t, jsonrpc.Config{FrameTimeout: 20 * time.Millisecond})
	send(t, c, good+"\n"+good[:10])
	<-s.Done()
	if s.Err() == nil || !strings.Contains(s.Err().Error(), "20ms") {
		t.Errorf("the connection ended with %v", s.Err())
	}
}

func TestIdleIsNotPartial(t *testing.T) {
	c, s := rawPeer(t, jsonrpc.Config{FrameTimeout: time.Millisecond})
	in := bufio.NewReader(c)
	for range 3 {
		send(t, c, good+"\n")
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Done():
			t.Fatalf("an idle connection ended: %v", s.Err())
		case <-time.After(5 * time.Millisecond): // longer than FrameTimeout: the event is that nothing comes
		}
	}
}

func TestDuplicateID(t *testing.T) {
	release := make(chan struct{})
	c, s := rawPeer(t, jsonrpc.Config{Handler: func(context.Context, *jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
		<-release
		return nil, nil, nil
	}})
	send(t, c, good+"\n"+good+"\n")
	<-s.Done()
	close(release)
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, `"id":null`) || !strings.Contains(line, "still being handled") {
		t.Errorf("got %q, %v", line, err)
	}
}

// TestIDIsFreeOnceAnswered: a peer may use an id again as soon as it has the reply.
func TestIDIsFreeOnceAnswered(t *testing.T) {
	c, _ := rawPeer(t, jsonrpc.Config{})
	in := bufio.NewReader(c)
	for i := range 5000 {
		send(t, c, good+"\n")
		if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, `"result"`) {
			t.Fatalf("round %d: %q, %v", i, line, err)
		}
	}
}

func TestHalfClosedPeerGetsItsReplies(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{})
	c, s := rawPeer(t, jsonrpc.Config{Handler: func(ctx context.Context, _ *jsonrpc.Conn, _ *jsonrpc.Request) (any, []*os.File, error) {
		entered <- struct{}{}
		<-release
		return "late", nil, ctx.Err()
	}})
	send(t, c, good+"\n"+strings.Replace(good, `"id":1`, `"id":2`, 1)+"\n")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-entered
	<-entered
	close(release)
	b, err := io.ReadAll(c)
	if err != nil || strings.Count(string(b), `"result":"late"`) != 2 {
		t.Errorf("got %q, %v", b, err)
	}
	<-s.Done()
	if !errors.Is(s.Err(), io.EOF) {
		t.Errorf("the connection ended with %v", s.Err())
	}
}

func TestClosedPeerCancelsHandlers(t *testing.T) {
	for _, half := range []bool{false, true} {
		entered := make(chan struct{})
		left := make(chan struct{})
		c, s := rawPeer(t, jsonrpc.Config{Handler: func(ctx context.Context, _ *jsonrpc.Conn, _ *jsonrpc.Request) (any, []*os.File, error) {
			close(entered)
			<-ctx.Done()
			close(left)
			return nil, nil, nil
		}})
		send(t, c, good+"\n")
		if half {
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		<-entered
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		<-left
		<-s.Done()
	}
}

func TestPeerClosesInsideFrame(t *testing.T) {
	c, s := rawPeer(t, jsonrpc.Config{})
	send(t, c, good)
	_ = c.Close()
	<-s.Done()
	if s.Err() == nil || errors.Is(s.Err(), io.EOF) {
		t.Errorf("the connection ended with %v", s.Err())
	}
}

func TestPeerRefusesOurs(t *testing.T) {
	a, z := socketPair(t)
	c := jsonrpc.New(a, jsonrpc.Config{})
	defer c.Close()
	send(t, z, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"cannot accept the message: nonsense"}}`+"\n")
	<-c.Done()
	if !strings.Contains(c.Err().Error(), "nonsense") {
		t.Errorf("the connection ended with %v", c.Err())
	}
}

// FuzzFrame: whatever a peer sends, every answer is JSON, the connection ends when the
// peer does, and a frame is accepted only if encoding/json accepts it.
func FuzzFrame(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, frame []byte) {
		c, s := rawPeer(t, jsonrpc.Config{MaxFrame: 4096, MaxFDs: 2})
		for _, part := range [][]byte{frame, []byte("\n"), []byte(good + "\n")} {
			if _, err := c.Write(part); err != nil {
				break
			}
		}
		_ = c.CloseWrite()
		out, err := io.ReadAll(c)
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		<-s.Done()
		answers := 0
		for line := range strings.Lines(string(out)) {
			answers++
			if !json.Valid([]byte(line)) {
				t.Errorf("the answer %q is not JSON", line)
			}
		}
		// An error with a null id is the peer's farewell, and needs no answer.
		if answers == 0 && !strings.Contains(string(frame), `error`) {
			t.Errorf("no answer to %q", frame)
		}
		first, _, _ := strings.Cut(string(frame), "\n")
		if len(first) < 4096 && !json.Valid([]byte(first)) && !strings.Contains(string(out), "-32700") {
			t.Errorf("%q is not JSON and was answered %s", first, out)
		}
		if json.Valid([]byte(first)) && strings.HasPrefix(string(out), `{"jsonrpc":"2.0","id":null,"error":{"code":-32700`) &&
			!strings.Contains(string(out), "deeper") && !strings.Contains(string(out), "UTF-8") && first == string(frame) {
			t.Errorf("%q is JSON and was answered %s", first, out)
		}
	})
}
