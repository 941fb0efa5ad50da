package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}

// desk serves a double with the workspaces "demo" and "other", and MCP over it, bound to one of them or to none.
func desk(t *testing.T, gate api.Gate, bound string) *mcp.Server {
	t.Helper()
	return deskOf(t, &alice, gate, bound)
}

func deskOf(t *testing.T, who *principal.Principal, gate api.Gate, bound string) *mcp.Server {
	t.Helper()
	socket, _ := apitest.Serve(t, gate, who, api.Options{Version: "v1"})
	c, err := carrel.Dial(t.Context(), "unix://"+socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for _, key := range []string{"demo", "other"} {
		if _, err := c.Workspaces().Create(t.Context(), connect.NewRequest(&carrelv1.CreateRequest{Key: key})); err != nil {
			t.Fatal(err)
		}
	}
	s, err := mcp.New(t.Context(), mcp.Config{Client: c, Workspace: bound, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// old is the newest protocol with a session.
const old = "2025-11-25"

// client connects to a server over a pipe, until the test ends.
func client(t *testing.T, s *mcp.Server, version string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Run(t.Context(), far, far) }()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(),
		&sdk.IOTransport{Reader: near, Writer: near}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-served
	})
	return c
}

type args = map[string]any

// use calls a tool, and returns its texts and whether it was an error.
func use(t *testing.T, c *sdk.ClientSession, tool string, a args) (text string, failed bool) {
	t.Helper()
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: a})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, a, err)
	}
	return textOf(r), r.IsError
}

func textOf(r *sdk.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		switch v := c.(type) {
		case *sdk.TextContent:
			all = append(all, v.Text)
		case *sdk.ResourceLink:
			all = append(all, "link "+v.URI)
		}
	}
	return strings.Join(all, "\n")
}

// works calls a tool that must succeed with an answer that has a text.
func works(t *testing.T, c *sdk.ClientSession, tool string, a args, want string) string {
	t.Helper()
	text, failed := use(t, c, tool, a)
	if failed || !strings.Contains(text, want) {
		t.Errorf("%s %v: failed %v, want %q in: %s", tool, a, failed, want, text)
	}
	return text
}

// fails calls a tool that must fail with a text.
func fails(t *testing.T, c *sdk.ClientSession, tool string, a args, want string) {
	t.Helper()
	text, failed := use(t, c, tool, a)
	if !failed || !strings.Contains(text, want) {
		t.Errorf("%s %v: failed %v, want the error %q in: %s", tool, a, failed, want, text)
	}
}

func TestTools(t *testing.T) {
	g := &apitest.Gate{}
	s := desk(t, g, "")
	for _, version := range []string{old, "2026-07-28"} {
		c := client(t, s, version, nil)
		in := func(a args) args { a["workspace"] = "demo"; return a }
		works(t, c, "exec", in(args{"command": "echo $A; echo to >&2; exit 3", "env": args{"A": "alpha"}}), "exit code 3")
		if p := g.Last().Asked; p.Source != "llm" || !strings.HasPrefix(p.Thread, "mcp-") {
			t.Errorf("asked as %+v", p)
		}
		text := works(t, c, "exec", in(args{"argv": []string{"cat"}, "stdin": "fed"}), "stdout:\nfed")
		if strings.Contains(text, "stderr") {
			t.Errorf("an empty stream is shown: %s", text)
		}
		works(t, c, "exec", in(args{"command": "pwd", "cwd": "/"}), "stdout:\n/\n")
		works(t, c, "exec", in(args{"command": "sleep 100", "timeout_s": 0.05}), "ended at its timeout")
		works(t, c, "exec", in(args{"command": `printf 'a\377b'`}), "a\uFFFDb")
		fails(t, c, "exec", in(args{}), "give command or argv")
		fails(t, c, "exec", in(args{"command": "x", "argv": []string{"x"}}), "give command or argv")
		fails(t, c, "exec", in(args{"command": "x", "comand": "y"}), "comand")
		fails(t, c, "exec", in(args{"command": "x", "timeout_s": -1}), "timeout_s")
		fails(t, c, "exec", in(args{"argv": []string{"no-such-program"}}), "not found in the workspace")
		fails(t, c, "exec", args{"command": "true"}, "workspace is missing")
		fails(t, c, "exec", args{"command": "true", "workspace": "none"}, "there is none with that key")
		works(t, c, "write_file", in(args{"path": "f", "content": "one two one"}), "f was written")
		works(t, c, "read_file", in(args{"path": "f"}), "one two one")
		fails(t, c, "read_file", in(args{"path": ""}), "path is empty")
		works(t, c, "list_workspaces", args{}, "other")
		works(t, c, "inspect_workspace", in(args{}), `"key":"demo"`)
		works(t, c, "create_workspace", args{"key": "new " + version}, "was made")
		works(t, c, "create_workspace", args{"key": "new " + version}, "was there already")
		works(t, c, "stop_workspace", in(args{}), "stopped")
		works(t, c, "start_workspace", in(args{}), "running")
		works(t, c, "explain_policy", in(args{"command": "rm -rf /"}), `"reasons"`)
		works(t, c, "list_commands", in(args{}), "there are no commands")
	}
}

// The record of a workspace is found by its key too, as the other tools name it, and that of one that is gone by its name.
func TestRecordByKey(t *testing.T) {
	g := &apitest.Gate{}
	c := client(t, deskOf(t, &principal.Principal{Kind: principal.User}, g, ""), old, nil)
	text := works(t, c, "inspect_workspace", args{"workspace": "demo"}, `"name":"`)
	_, rest, _ := strings.Cut(text, `"name":"`)
	name, _, _ := strings.Cut(rest, `"`)
	g.RecordConnection(name, `"principal":"uid:0"`, `"host":"here.example"`)
	g.RecordConnection("ws-00000000", `"principal":"uid:0"`, `"host":"gone.example"`)
	works(t, c, "show_record", args{"workspace": "demo"}, "here.example")
	works(t, c, "show_record", args{"workspace": name}, "here.example")
	works(t, c, "show_record", args{"workspace": "ws-00000000"}, "gone.example")
	works(t, c, "show_record", args{"workspace": "other"}, "no such records")
}

func TestBoundToOneWorkspace(t *testing.T) {
	g := &apitest.Gate{}
	s := desk(t, g, "demo")
	c := client(t, s, old, nil)
	list, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil || strings.Contains(string(schema), aboutWorkspace) {
			t.Errorf("%s can name a workspace: %s, %v", tool.Name, schema, err)
		}
		if tool.Name == "list_workspaces" || tool.Name == "create_workspace" {
			t.Errorf("%s is about other workspaces", tool.Name)
		}
	}
	works(t, c, "exec", args{"command": "echo here"}, "here")
	for _, escape := range []string{"other", "demo", ""} {
		fails(t, c, "exec", args{"command": "true", "workspace": escape}, "serves the workspace demo alone")
		fails(t, c, "read_file", args{"path": "f", "workspace": escape}, "serves the workspace demo alone")
	}
	fails(t, c, "exec", args{"command": "true", "Workspace": "other"}, "Workspace")
	fails(t, c, "show_record", args{"workspace": "other"}, "serves demo alone")
	// A command of another workspace, which is there.
	all := client(t, desk(t, g, ""), old, nil)
	text := works(t, all, "exec", args{"workspace": "other", "command": "echo hidden", "detach": true}, "started as")
	theirs := strings.TrimSuffix(strings.Fields(text)[2], ";")
	works(t, all, "command_output", args{"workspace": "other", "command": theirs, "wait_s": 30}, "hidden")
	fails(t, c, "command_output", args{"command": theirs}, "cannot find output")
	for _, address := range []string{
		"carrel://other/commands/" + theirs + "/output", "carrel://ws-d9298a10/commands/" + theirs + "/output",
		"carrel://other/commands/c-1/output", "carrel://demo%2F..%2Fother/commands/c-1/output", "carrel:///commands/c-1/output",
		"carrel://demo/commands/c-1/output#x", "carrel://x@demo/commands/c-1/output", "file:///etc/passwd", "carrel://demo/../other/output",
	} {
		if r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: address}); err == nil {
			t.Errorf("%s is served: %+v", address, r.Contents)
		}
	}
	if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "create_workspace", Arguments: args{"key": "x"}}); err == nil {
		t.Error("a tool that is not listed is served")
	}
}

const aboutWorkspace = "the workspace: its key"

// A workspace that is not there is an error at the start and not at each call.
func TestBoundToNone(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{Version: "v1"})
	c, err := carrel.New(carrel.Options{Host: "unix://" + socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = mcp.New(t.Context(), mcp.Config{Client: c, Workspace: "none"})
	if err == nil || !strings.Contains(err.Error(), "carrel create") {
		t.Errorf("%v", err)
	}
}

// Output is bounded in the answer, and more of it can be read in parts.
func TestOutputBomb(t *testing.T) {
	c := client(t, desk(t, &apitest.Gate{}, "demo"), old, nil)
	text := works(t, c, "exec", args{"command": "seq 1 1000000; echo end"}, "left out here")
	if len(text) > 20<<10 || !strings.Contains(text, "stdout:\n1\n2\n") || !strings.Contains(text, "\n999999\n1000000\nend\n") {
		t.Errorf("%d bytes: %.200s", len(text), text)
	}
	_, address, ok := strings.Cut(text, "link ")
	if !ok {
		t.Fatalf("no link: %.300s", text)
	}
	var read string
	for _, query := range []string{"&offset=10&length=20", "&offset=200000", "&offset=99999999999"} {
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: address + query})
		if err != nil || len(r.Contents[0].Text) > 40<<10 {
			t.Fatalf("%s: %v", address+query, err)
		}
		read += query + ":" + r.Contents[0].Text + "\n"
	}
	if !strings.Contains(read, "&offset=10&length=20:6\n7\n8\n9\n10\n11\n12\n13\n") || !strings.Contains(read, "are no longer kept]") {
		t.Errorf("%.600s", read)
	}
	if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: address + "&offset=-1"}); err == nil {
		t.Error("a negative offset is served")
	}
	id := strings.Fields(text)[strings.Count(text[:strings.Index(text, "c-")], " ")]
	works(t, c, "command_output", args{"command": strings.TrimSpace(id), "offset": 100}, "bytes 100 to ")
	fails(t, c, "command_output", args{"command": "c-0000000000000000"}, "cannot find output")
}

func TestDetached(t *testing.T) {
	c := client(t, desk(t, &apitest.Gate{}, "demo"), old, nil)
	const line = `echo one; sleep 0.2; printf 'tw\303'; sleep 0.2; printf '\251'; exit 4`
	text := works(t, c, "exec", args{"command": line, "detach": true}, "started as c-")
	id := strings.TrimSuffix(strings.Fields(text)[2], ";")
	var all strings.Builder
	for offset := 0; ; {
		text := works(t, c, "command_output", args{"command": id, "offset": offset, "wait_s": 20}, "next offset ")
		head, body, _ := strings.Cut(text, "\n")
		all.WriteString(body)
		if _, err := fmt.Sscanf(head[strings.Index(head, "next offset"):], "next offset %d", &offset); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(head, "exit code 4") && body == "" {
			break
		}
	}
	if all.String() != "one\ntwé" {
		t.Errorf("%q", all.String())
	}
	text = works(t, c, "exec", args{"command": "sleep 1000", "detach": true}, "started as c-")
	id = strings.TrimSuffix(strings.Fields(text)[2], ";")
	works(t, c, "list_commands", args{}, id)
	works(t, c, "command_output", args{"command": id, "wait_s": 0.05}, "it runs")
	works(t, c, "command_signal", args{"command": id, "signal": 9}, "was sent")
	works(t, c, "command_output", args{"command": id, "wait_s": 30}, "signal 9")
}

func TestPatch(t *testing.T) {
	c := client(t, desk(t, &apitest.Gate{}, "demo"), old, nil)
	works(t, c, "write_file", args{"path": "f", "content": "one two one\nthree\n"}, "written")
	edits := func(pairs ...string) (all []args) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, args{"old": pairs[i], "new": pairs[i+1]})
		}
		return all
	}
	fails(t, c, "patch_file", args{"path": "f", "edits": edits("one", "1")}, "more than once")
	fails(t, c, "patch_file", args{"path": "f", "edits": edits("four", "4")}, "is not in it")
	fails(t, c, "patch_file", args{"path": "f", "edits": edits("", "4")}, "is empty")
	fails(t, c, "patch_file", args{"path": "f", "edits": edits()}, "1 to 100 edits")
	fails(t, c, "patch_file", args{"path": "f", "edits": edits("two", "2", "four", "4")}, "edit 2 is not in it")
	works(t, c, "read_file", args{"path": "f"}, "one two one\nthree")
	fails(t, c, "patch_file", args{"path": "f", "edits": edits("two", "2"), "sha256": strings.Repeat("0", 64)}, "somebody else has changed it")
	works(t, c, "patch_file", args{"path": "f", "edits": edits("two", "2", "three", "3")}, "2 edits")
	works(t, c, "read_file", args{"path": "f"}, "one 2 one\n3\n")
	fails(t, c, "patch_file", args{"path": "none", "edits": edits("a", "b")}, "cannot")
	fails(t, c, "write_file", args{"path": "big", "content": strings.Repeat("x", 3<<20)}, "at most 2097152 at once")
	// Many at once: each makes its edit, or says why not.
	works(t, c, "write_file", args{"path": "g", "content": "<0><1><2><3><4><5><6><7>"}, "written")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "patch_file", Arguments: args{
				"path": "g", "edits": edits(fmt.Sprintf("<%d>", i), fmt.Sprintf("[%d]", i)),
			}})
			if err != nil || r.IsError {
				t.Errorf("edit %d: %v, %s", i, err, textOf(r))
			}
		})
	}
	all.Wait()
	works(t, c, "read_file", args{"path": "g"}, "[0][1][2][3][4][5][6][7]")
}

// A call that is cancelled ends its command, and no other.
func TestCancelled(t *testing.T) {
	g := &apitest.Gate{}
	s := desk(t, g, "demo")
	c, other := client(t, s, old, nil), client(t, s, old, nil)
	bystander := works(t, other, "exec", args{"command": "sleep 1000", "detach": true}, "started as")
	id := strings.TrimSuffix(strings.Fields(bystander)[2], ";")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "sleep 1001"}})
		ended <- err
	}()
	running(t, g, "sleep 1001")
	cancel()
	if err := <-ended; err == nil {
		t.Error("the call did not end with an error")
	}
	until(t, other, "list_commands", args{}, func(text string) bool { return !strings.Contains(text, "sleep 1001") })
	works(t, other, "list_commands", args{}, id)
	works(t, c, "exec", args{"command": "echo goes on"}, "goes on") // the session does
	works(t, other, "command_signal", args{"command": id, "signal": 9}, "sent")
}

// A client that goes away in mid-call ends what it had started and not detached.
func TestClientGone(t *testing.T) {
	g := &apitest.Gate{}
	s := desk(t, g, "demo")
	other := client(t, s, old, nil)
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Run(t.Context(), far, far) }()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "gone", Version: "1"}, nil).Connect(t.Context(),
		&sdk.IOTransport{Reader: near, Writer: near}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := works(t, c, "exec", args{"command": "sleep 1002", "detach": true}, "started as")
	id := strings.TrimSuffix(strings.Fields(text)[2], ";")
	go func() {
		_, _ = c.CallTool(t.Context(), &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "sleep 1003"}})
	}()
	running(t, g, "sleep 1003")
	near.Close()
	if err := <-served; err != nil && !strings.Contains(err.Error(), "closed pipe") {
		t.Errorf("served: %v", err)
	}
	until(t, other, "list_commands", args{}, func(text string) bool { return !strings.Contains(text, "sleep 1003") })
	works(t, other, "list_commands", args{}, id)
	works(t, other, "command_signal", args{"command": id, "signal": 9}, "sent")
	c.Close()
}

// running waits until the newest command has a text.
func running(t *testing.T, g *apitest.Gate, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := g.Await(ctx, func(last execapi.ExecParams, _ execapi.ResizeParams) bool {
		return strings.Contains(strings.Join(last.Argv, " "), text)
	}); err != nil {
		t.Fatal(err)
	}
}

// until asks again until the answer is as it should be. What it waits for happens outside of this process.
func until(t *testing.T, c *sdk.ClientSession, tool string, a args, done func(string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		text, _ := use(t, c, tool, a)
		if done(text) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %s", tool, text)
		}
	}
}

// Progress is told to who asks for it.
func TestProgress(t *testing.T) {
	told := make(chan string, 64)
	c := client(t, desk(t, &apitest.Gate{}, "demo"), old, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { told <- r.Params.Message },
	})
	p := &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "sleep 0.1"}}
	p.SetProgressToken("t1")
	if r, err := c.CallTool(t.Context(), p); err != nil || r.IsError {
		t.Fatalf("%v", err)
	}
	if m := <-told; !strings.HasPrefix(m, "c-") || !strings.Contains(m, "of output") {
		t.Errorf("%q", m)
	}
}

// docs/mcp.md has every tool and no other.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Tools\n")
	text, _, _ = strings.Cut(text, "\n## ")
	listed := map[string]bool{}
	for row := range strings.Lines(text) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for i, word := range strings.Split(first, "`") {
			if i%2 == 1 {
				listed[word] = true
			}
		}
	}
	list, err := client(t, desk(t, &apitest.Gate{}, ""), old, nil).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list.Tools {
		if !listed[x.Name] {
			t.Errorf("docs/mcp.md does not have the tool %s", x.Name)
		}
		delete(listed, x.Name)
	}
	if len(listed) > 0 {
		t.Errorf("docs/mcp.md has what is no tool: %v", listed)
	}
}
