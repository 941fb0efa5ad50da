package api_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// wire is a connection of HTTP/1.1, as a program without a library has it.
type wire struct {
	t   *testing.T
	c   net.Conn
	r   *bufio.Reader
	res *http.Response
}

func wireTo(t *testing.T, socket string) *wire {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &wire{t: t, c: c, r: bufio.NewReader(c)}
}

func (w *wire) write(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w.c, s); err != nil {
		w.t.Fatal(err)
	}
}

const streamHead = "POST /carrel.v1.CommandService/Stream HTTP/1.1\r\nHost: carrel\r\nContent-Type: application/connect+json\r\n"

func enveloped(text string) string {
	return "\x00" + string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// begin reads the head of a response.
func (w *wire) begin() *wire {
	w.t.Helper()
	var err error
	if w.res, err = http.ReadResponse(w.r, nil); err != nil { //nolint:bodyclose // its connection is closed at the end of the test
		w.t.Fatal(err)
	}
	return w
}

// next reads a message. last says that it ends the stream.
func (w *wire) next() (m map[string]any, last bool) {
	w.t.Helper()
	var head [5]byte
	if _, err := io.ReadFull(w.res.Body, head[:]); err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(w.res.Body, b); err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		w.t.Fatalf("%q: %v", b, err)
	}
	return m, head[0] == 2
}

// rest reads a stream to its end, and returns what was in it.
func (w *wire) rest() string {
	w.t.Helper()
	var all []string
	for {
		m, last := w.next()
		b, err := json.Marshal(m)
		if err != nil {
			w.t.Fatal(err)
		}
		if all = append(all, string(b)); last {
			break
		}
	}
	if b, err := io.ReadAll(w.res.Body); err != nil || len(b) > 0 {
		w.t.Errorf("after its end the stream has %q, %v", b, err)
	}
	return strings.Join(all, " ")
}

// A client of HTTP/1.1 sends and reads at the same time.
func TestStreamOverHTTP1(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	w := wireTo(t, socket)
	w.write(streamHead + "Transfer-Encoding: chunked\r\n\r\n" +
		chunk(enveloped(`{"start":{"workspace":"demo","stdin":true,"command":{"argv":["sh","-c","cat; exit 4"]}}}`)))
	if m, _ := w.begin().next(); m["commandId"] == "" || !w.res.Close {
		t.Errorf("it begins with %v; %v", m, w.res.Header)
	}
	for _, text := range []string{"b25l", "dHdv"} { // each comes back before the next is sent
		w.write(chunk(enveloped(`{"stdin":"` + text + `"}`)))
		if m, _ := w.next(); m["stdout"] != text {
			t.Errorf("%v came back, not %s", m, text)
		}
	}
	w.write(chunk(enveloped(`{"closeStdin":true}`)))
	if got := w.rest(); !strings.Contains(got, `"code":4`) {
		t.Errorf("it ended with %s", got)
	}
	if _, err := w.r.ReadByte(); err != io.EOF {
		t.Errorf("the connection goes on: %v", err)
	}
}

// A request whose length is known leaves the connection to the next one.
func TestAWholeStreamKeepsItsConnection(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	w := wireTo(t, socket)
	for i := range 5 {
		body := enveloped(fmt.Sprintf(`{"start":{"workspace":"demo","stdin":true,"command":{"argv":["sh","-c","cat; exit %d"]}}}`, i+1)) +
			enveloped(`{"stdin":"b25l"}`)
		w.write(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", streamHead, len(body), body))
		got := w.begin().rest()
		if !strings.Contains(got, fmt.Sprintf(`"code":%d`, i+1)) || !strings.Contains(got, `"stdout":"b25l"`) || w.res.Close {
			t.Errorf("%d: %s, %v", i, got, w.res.Header)
		}
	}
}

// The command of a client that goes is hung up, whichever way it sent its request.
func TestAClientOfHTTP1ThatGoesHangsTheCommandUp(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	for _, argv := range []string{`["sleep","60"]`, `["cat","/dev/zero"]`} {
		body := enveloped(`{"start":{"workspace":"demo","stdin":true,"command":{"argv":` + argv + `}}}`)
		whole := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
		for _, rest := range []string{whole, "Transfer-Encoding: chunked\r\n\r\n" + chunk(body)} {
			w := wireTo(t, socket)
			w.write(streamHead + rest)
			w.begin().next()
			if !running(t, socket) {
				t.Fatalf("%s does not run", argv)
			}
			w.c.Close()
			idle(t, g)
		}
	}
}

// What a client has sent beyond what was read of a stream is not taken for a request.
func TestWhatIsLeftOfAStreamIsNoRequest(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	hidden := "POST /carrel.v1.WorkspaceService/Create HTTP/1.1\r\nHost: carrel\r\nContent-Type: application/json\r\n" +
		"Content-Length: 16\r\n\r\n{\"key\":\"hidden\"}"
	bad := enveloped(`{"signal":15}`)
	for name, s := range map[string]string{
		"in a chunk":            "Transfer-Encoding: chunked\r\n\r\n" + chunk(bad) + chunk(hidden),
		"behind a broken chunk": "Transfer-Encoding: chunked\r\n\r\n" + chunk(bad) + "zz\r\n" + hidden,
		"in a body":             fmt.Sprintf("Content-Length: %d\r\n\r\n%s%s", len(bad)+len(hidden), bad, hidden),
	} {
		w := wireTo(t, socket)
		w.write(streamHead + s)
		if got := w.begin().rest(); !strings.Contains(got, "invalid_argument") {
			t.Errorf("%s: %s", name, got)
		}
		_ = w.c.(*net.UnixConn).CloseWrite() // where it is kept, nothing more comes
		if b, err := io.ReadAll(w.r); err == nil && len(b) > 0 {
			t.Errorf("%s: it is answered with %q", name, b)
		}
	}
	list, err := workspacesOn(t, socket).List(t.Context(), request(&carrelv1.ListRequest{}))
	if err != nil || len(list.Msg.GetWorkspaces()) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// gRPC needs HTTP/2, and says so.
func TestGRPCNeedsHTTP2(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	w := wireTo(t, socket)
	w.write("POST /carrel.v1.CommandService/Stream HTTP/1.1\r\nHost: carrel\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n")
	if w.begin(); w.res.StatusCode != http.StatusHTTPVersionNotSupported {
		t.Errorf("status %d", w.res.StatusCode)
	}
}

// refusing takes no file.
type refusing struct{ *apitest.Gate }

func (refusing) OnFiles(context.Context, principal.Principal, string, fileapi.Request, fileapi.Streams) (fileapi.Result, error) {
	return fileapi.Result{}, fmt.Errorf("cannot find it: %w", errdefs.ErrNotFound)
}

// What the daemon says before a file has come to its end arrives, and nobody is left who waits for the rest.
func TestAnUploadOverHTTP1IsRefusedBeforeItsEnd(t *testing.T) {
	socket, _ := apitest.Serve(t, refusing{&apitest.Gate{}}, &alice, api.Options{})
	w := wireTo(t, socket)
	w.write(strings.Replace(streamHead, "CommandService/Stream", "FileService/WriteFile", 1) + "Transfer-Encoding: chunked\r\n\r\n" +
		chunk(enveloped(`{"start":{"workspace":"nobody's","path":"x"}}`)))
	if m, last := w.begin().next(); !last || !strings.Contains(fmt.Sprint(m), "not_found") {
		t.Errorf("it is answered with %v", m)
	}
	if b, err := io.ReadAll(w.res.Body); err != nil || len(b) > 0 {
		t.Errorf("after its end there is %q, %v", b, err)
	}
}
