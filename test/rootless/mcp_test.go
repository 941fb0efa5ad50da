//go:build linux

package rootless_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpProcess is carrel mcp with a client.
type mcpProcess struct {
	*sdk.ClientSession
	stdin io.WriteCloser
	cmd   *exec.Cmd
}

// mcp starts carrel mcp with arguments and speaks to it, until the test ends.
func (u *user) mcp(o *sdk.ClientOptions, args ...string) *mcpProcess {
	u.t.Helper()
	c := u.own(append([]string{"mcp"}, args...)...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil && !strings.Contains(err.Error(), "killed") && !errors.Is(err, context.Canceled) {
			u.t.Errorf("carrel mcp: %v", err)
		}
	})
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(u.t.Context(),
		&sdk.IOTransport{Reader: out, Writer: in}, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		u.t.Fatalf("carrel mcp %v: %v\n%s", args, err, u.log())
	}
	return &mcpProcess{s, in, c}
}

// tool calls a tool.
func tool(t *testing.T, s *mcpProcess, name string, args map[string]any) (text string, failed bool) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	for _, c := range r.Content {
		if x, ok := c.(*sdk.TextContent); ok {
			text += x.Text + "\n"
		}
	}
	return text, r.IsError
}

type arguments = map[string]any

// A model works in a workspace by tools of the real programs. What it does is recorded as a model's.
func TestMCP(t *testing.T) {
	u := newOwner(t)
	u.must("create", "demo")
	u.must("create", "other")
	s := u.mcp(nil, "demo")
	want := func(text, name string, args arguments) {
		t.Helper()
		if got, failed := tool(t, s, name, args); failed || !strings.Contains(got, text) {
			t.Errorf("%s %v: %v, %s", name, args, failed, got)
		}
	}
	want("exit code 3", "exec", arguments{"command": "echo out; echo err >&2; exit 3"})
	want("stdout:\n/\n", "exec", arguments{"command": "pwd", "cwd": "/"})
	want("was written", "write_file", arguments{"path": "src/a.txt", "content": "one two\n", "parents": true})
	want("1 edits", "patch_file", arguments{"path": "src/a.txt", "edits": []arguments{{"old": "two", "new": "2"}}})
	want("one 2\n", "exec", arguments{"command": "cat a.txt", "cwd": "src"})
	want("one 2\n", "read_file", arguments{"path": "~/src/a.txt"})
	want("a.txt", "list_files", arguments{"path": "src"})
	want("1 other files were changed", "list_changes", arguments{"path": "src"})
	want("src/a.txt:1:one 2", "search_files", arguments{"text": "one .", "name": "*.txt"})
	want(`"state":"running"`, "inspect_workspace", nil)
	want("SAFE", "explain_policy", arguments{"command": "ls"})
	want(`"ok":true`, "verify_record", nil)
	want(`"source":"llm"`, "show_record", arguments{"last": 40})

	// A file that another process changes between the read and the write is not overwritten: the digest says so.
	before, _ := tool(t, s, "read_file", arguments{"path": "src/a.txt"})
	_, digest, _ := strings.Cut(before, "sha256 ")
	digest, _, _ = strings.Cut(digest, "\n")
	want("", "exec", arguments{"command": "echo else > src/a.txt"})
	if got, failed := tool(t, s, "patch_file", arguments{
		"path": "src/a.txt", "sha256": digest, "edits": []arguments{{"old": "else", "new": "x"}},
	}); !failed || !strings.Contains(got, "somebody else has changed it") {
		t.Errorf("a conflict: %v, %s", failed, got)
	}
	if got, failed := tool(t, s, "exec", arguments{"command": "true", "workspace": "other"}); !failed || !strings.Contains(got, "demo alone") {
		t.Errorf("it left the workspace: %v, %s", failed, got)
	}
	if r := u.carrel("mcp", "none"); r.code == 0 || !strings.Contains(r.err, "carrel create") {
		t.Errorf("a workspace that is not there: %+v", r)
	}
}

// A client that is killed, or goes away, ends what it had started: the processes are gone and the record says how. What it
// had detached goes on, and so does everybody else.
func TestMCPClientGone(t *testing.T) {
	u := newOwner(t)
	u.must("create", "demo")
	other := u.mcp(nil, "demo")
	for _, end := range []struct {
		name string
		end  func(s *mcpProcess, cancel context.CancelFunc)
	}{
		{"cancelled", func(_ *mcpProcess, cancel context.CancelFunc) { cancel() }},
		{"closed", func(s *mcpProcess, _ context.CancelFunc) { s.stdin.Close() }},
		{"killed", func(s *mcpProcess, _ context.CancelFunc) { _ = s.cmd.Process.Kill() }},
	} {
		t.Run(end.name, func(t *testing.T) {
			s := u.mcp(nil, "demo")
			detached, _ := tool(t, s, "exec", arguments{"command": "sleep 3000", "detach": true})
			id := strings.TrimSuffix(strings.Fields(detached)[2], ";")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			mark := "sleep 300" + fmt.Sprint(len(end.name))
			go func() {
				defer close(ended)
				_, _ = s.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: arguments{"argv": strings.Fields(mark)}})
			}()
			list := func() string {
				got, _ := tool(t, other, "list_commands", nil)
				return got
			}
			for !strings.Contains(list(), mark) {
				if t.Context().Err() != nil {
					t.Fatal("the command did not start")
				}
			}
			end.end(s, cancel)
			<-ended
			late := time.After(30 * time.Second)
			for strings.Contains(list(), mark) {
				select {
				case <-late:
					t.Fatalf("the command of a client that has gone runs on: %s", list())
				default:
				}
			}
			if got := list(); !strings.Contains(got, id) || strings.Contains(got, id+"  detached  exit") {
				t.Errorf("the detached command: %s", got)
			}
			if got, failed := tool(t, other, "command_signal", arguments{"command": id, "signal": 9}); failed {
				t.Errorf("%s", got)
			}
			// Nobody waits for how it ended, so that the record has it a moment after the list.
			until(t, "the end of "+mark+" in the record", func() bool {
				return strings.Contains(outcomeOf(t, u.must("audit", "show", "--last", "30", "-o", "json"), strings.Fields(mark)),
					`"code":129,"signal":1`)
			})
		})
	}
	if got := u.must("audit", "verify"); !strings.HasPrefix(got, "ok:") {
		t.Errorf("%s", got)
	}
}

// outcomeOf is the line of a record, as JSON, that says how a command ended; "" if there is none.
func outcomeOf(t *testing.T, record string, argv []string) string {
	t.Helper()
	intent := int64(-1)
	for line := range strings.Lines(record) {
		var e struct {
			Seq, Intent int64
			Action      struct{ Argv []string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if slices.Equal(e.Action.Argv, argv) {
			intent = e.Seq
		}
		if e.Intent == intent {
			return line
		}
	}
	return ""
}

// served starts carrel mcp by HTTP and returns its address and the token of its clients.
func (u *user) served(args ...string) (address, token string) {
	address, token, _ = u.serving(args...)
	return address, token
}

// serving is served, with the process.
func (u *user) serving(args ...string) (address, token string, c *exec.Cmd) {
	u.t.Helper()
	file := filepath.Join(u.home, "mcp-token")
	c = u.own(append([]string{"mcp", "--listen", "127.0.0.1:0", "--client-token-file", file}, args...)...)
	out, err := c.StderrPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait() // a test's end kills it otherwise
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, ok := strings.Cut(strings.TrimSpace(line), "served at ")
	if err != nil || !ok {
		u.t.Fatalf("carrel mcp --listen: %v, %q", err, line)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		u.t.Fatal(err)
	}
	return address, strings.TrimSpace(string(b)), c
}

// sends adds the token of a server to requests.
type sends struct {
	*http.Transport
	token string
}

func (b sends) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

// The same by HTTP: clients need the token, the end of the server ends what runs for them, and a daemon that was killed and
// started again is used again.
func TestMCPHTTP(t *testing.T) {
	u := newOwner(t)
	u.must("create", "demo")
	address, token, server := u.serving("demo")
	if fi, err := os.Stat(filepath.Join(u.home, "mcp-token")); err != nil || fi.Mode() != 0o600 {
		t.Errorf("the file of the token: %v, %v", fi, err)
	}
	connect := func(token string) (*mcpProcess, error) {
		tr := &http.Transport{}
		t.Cleanup(tr.CloseIdleConnections)
		s, err := sdk.NewClient(&sdk.Implementation{Name: "web", Version: "1"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{
			Endpoint: address, HTTPClient: &http.Client{Transport: sends{tr, token}}, MaxRetries: -1,
		}, nil)
		return &mcpProcess{ClientSession: s}, err
	}
	if _, err := connect("another"); err == nil {
		t.Error("a client with another token is served")
	}
	s, err := connect(token)
	if err != nil {
		t.Fatal(err)
	}
	if got, failed := tool(t, s, "exec", arguments{"command": "echo by HTTP"}); failed || !strings.Contains(got, "by HTTP") {
		t.Errorf("%v, %s", failed, got)
	}
	u.killDaemon()
	if got, failed := tool(t, s, "exec", arguments{"command": "echo lost"}); !failed || !strings.Contains(got, "cannot ") {
		t.Errorf("without a daemon: %v, %s", failed, got)
	}
	u.must("ls") // starts another
	if got, failed := tool(t, s, "exec", arguments{"command": "echo back"}); failed || !strings.Contains(got, "back") {
		t.Errorf("with another daemon: %v, %s", failed, got)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "exec", Arguments: arguments{"command": "exec sleep 3333"}})
		ended <- err
	}()
	late := time.After(30 * time.Second)
	wait := func(there bool) {
		t.Helper()
		for strings.Contains(u.must("ps", "demo"), "sleep 3333") != there {
			select {
			case <-late:
				t.Fatalf("%s", u.must("ps", "demo"))
			default:
			}
		}
	}
	wait(true)
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("the server: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("a call to a server that has ended succeeds")
	}
	wait(false)
}

// A question is answered by a person elsewhere, and the call runs then, once. Accepting an elicitation is no answer.
func TestMCPApproval(t *testing.T) {
	u := newOwner(t)
	rules := "version: 1\nrules:\n  - {id: test.ask, level: CONFIRM, risk_score: 50, reason: a test asks, capabilities: [], match: {command: [factor]}}\n"
	u.sh("cat > .config/carrel/policy.yaml <<'E'\n" + rules + "E")
	u.must("create", "demo")
	shown := make(chan string, 4)
	s := u.mcp(&sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			shown <- r.Params.Message
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
		},
	}, "demo")
	plain := u.mcp(nil, "demo")
	command := arguments{"command": "factor 91 >> ran; echo it ran"}

	done := make(chan string, 1)
	go func() {
		got, _ := tool(t, s, "exec", command)
		done <- got
	}()
	var text string
	select {
	case text = <-shown:
	case got := <-done:
		t.Fatalf("nobody was asked: %s\n%s", got, u.must("policy", "explain", "--workspace", "demo", "factor 91"))
	}
	_, id, _ := strings.Cut(text, "carrel approvals show ")
	id, _, _ = strings.Cut(id, "\n")
	if r := u.carrel("exec", "demo", "--", "cat", "ran"); r.code == 0 {
		t.Errorf("it ran when the elicitation was accepted: %+v", r)
	}
	u.must("approvals", "approve", id)
	if got := <-done; !strings.Contains(got, "it ran") {
		t.Errorf("%s", got)
	}

	got, failed := tool(t, plain, "exec", command)
	if !failed || !strings.Contains(got, "not run: a person has to approve it") {
		t.Fatalf("%v, %s", failed, got)
	}
	_, id, _ = strings.Cut(got, "(approval ")
	id, _, _ = strings.Cut(id, ")")
	go u.carrel("approvals", "approve", id)
	if got, failed := tool(t, plain, "wait_approval", arguments{"approval": id, "wait_s": 60}); failed || !strings.Contains(got, "it ran") {
		t.Errorf("%v, %s", failed, got)
	}
	if got, failed := tool(t, plain, "wait_approval", arguments{"approval": id}); !failed {
		t.Errorf("twice: %s", got)
	}
	if got := u.must("exec", "demo", "--", "cat", "ran"); got != "91: 7 13\n91: 7 13" {
		t.Errorf("it ran: %q", got)
	}
}
