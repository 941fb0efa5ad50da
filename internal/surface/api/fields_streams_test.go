package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// later are the messages of streams, and what those after the first bring: data, and calls of the gate.
var later = []struct {
	procedure string
	messages  []proto.Message
	data      string
	calls     []apitest.Call
}{
	{
		"CommandService.Stream",
		[]proto.Message{
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{Workspace: "demo", Stdin: true}}},
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: []byte("one\x00\xff")}},
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: []byte("two")}},
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_CloseStdin{CloseStdin: true}},
		},
		"one\x00\xfftwo", nil,
	},
	{
		"CommandService.Stream",
		[]proto.Message{
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{
				Workspace: "demo", Terminal: &carrelv1.WindowSize{},
			}}},
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Resize{Resize: &carrelv1.WindowSize{Rows: 20, Cols: 21}}},
			&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Signal{Signal: 9}},
		},
		"",
		[]apitest.Call{
			{Method: "Resize", Args: []any{"demo", execapi.ResizeParams{ID: ranID, Rows: 20, Cols: 21}}},
			{Method: "Signal", Args: []any{"demo", execapi.StopTaskParams{ID: ranID, Signal: 9}}},
		},
	},
	{
		"CommandService.Join",
		[]proto.Message{
			&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Start{Start: &carrelv1.JoinStart{Workspace: "demo", CommandId: string(ranID)}}},
			&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Stdin{Stdin: []byte("one\x00\xff")}},
			&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Resize{Resize: &carrelv1.WindowSize{Rows: 20, Cols: 21}}},
			&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Stdin{Stdin: []byte("two")}},
		},
		"one\x00\xfftwo",
		[]apitest.Call{{Method: "Resize", Args: []any{"demo", execapi.ResizeParams{ID: ranID, Rows: 20, Cols: 21, Client: 7}}}},
	},
	{
		"AgentService.Serve",
		[]proto.Message{
			&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Start{Start: &carrelv1.ServeStart{
				Workspace: "demo", TaskId: string(ranID), RemotePatches: true,
			}}},
			&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Result{Result: &carrelv1.StepResult{
				Number: 1, Status: &carrelv1.Status{Code: 137, Signal: 9, TimedOut: true}, Stdout: []byte("out\x00and more"), Stderr: []byte("err\xff"),
				Lost: 5, Held: "read_only", Error: "it is odd", Path: "/b",
			}}},
			&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Patched{Patched: &carrelv1.PatchResult{
				Number: 2, Digest: "sha256:aa", Diff: "+b", Files: []string{"/f"}, Risks: []string{"odd"}, Id: "u1", Error: "no",
				Merged: []string{"m"}, Made: "sha256:cc",
				Parts: []*carrelv1.PatchPart{{Path: "f", Digest: "sha256:bb", Shown: 2, Files: []string{"/f"}, Risks: []string{"odd"}}},
			}}},
		},
		"out\x00 err\xff 13 read_only /b it is odd: unavailable 137 9 true " +
			"sha256:aa +b [/f] [odd] [{f sha256:bb 2 [/f] [odd]}] u1 [m] sha256:cc no: unavailable", nil,
	},
	{
		"PortService.Connect",
		[]proto.Message{
			&carrelv1.ConnectRequest{Message: &carrelv1.ConnectRequest_Start{Start: &carrelv1.ConnectStart{Workspace: "demo", Port: 80}}},
			&carrelv1.ConnectRequest{Message: &carrelv1.ConnectRequest_Data{Data: []byte("one\x00\xff")}},
			&carrelv1.ConnectRequest{Message: &carrelv1.ConnectRequest_Data{Data: []byte("two")}},
		},
		"one\x00\xfftwo", nil,
	},
	{
		"ArchiveService.Restore",
		[]proto.Message{
			&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Start{Start: &carrelv1.RestoreStart{Key: "demo"}}},
			&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Data{Data: []byte("one\x00\xff")}},
			&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Data{Data: []byte("two")}},
		},
		"one\x00\xfftwo", nil,
	},
	{
		"FileService.WriteFile",
		[]proto.Message{
			&carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Start{Start: &carrelv1.WriteFileStart{Workspace: "demo"}}},
			&carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Data{Data: []byte("one\x00\xff")}},
			&carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Data{Data: []byte("two")}},
			&carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Finish{Finish: true}},
		},
		"one\x00\xfftwo", nil,
	},
	{
		"FileService.UnpackFiles",
		[]proto.Message{
			&carrelv1.UnpackFilesRequest{Kind: &carrelv1.UnpackFilesRequest_Start{Start: &carrelv1.UnpackFilesStart{Workspace: "demo"}}},
			&carrelv1.UnpackFilesRequest{Kind: &carrelv1.UnpackFilesRequest_Data{Data: []byte("one\x00\xff")}},
			&carrelv1.UnpackFilesRequest{Kind: &carrelv1.UnpackFilesRequest_Finish{Finish: true}},
		},
		"one\x00\xff", nil,
	},
}

// The messages of a stream after the first arrive by every transport.
func TestEveryLaterMessageArrives(t *testing.T) {
	g := &carryingGate{Recorder: &apitest.Recorder{Gate: &apitest.Gate{}}}
	sent := map[string]bool{}
	for _, tr := range transports(t, g) {
		if tr.descriptors {
			continue // it has no streams
		}
		for _, x := range later {
			p, err := find(x.procedure)
			if err != nil {
				t.Fatal(err)
			}
			err = tr.send(p, x.messages...)
			calls, data := g.Take(), g.data()
			if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
				t.Fatalf("%s by %s does not end by %v", x.procedure, tr.name, x.messages[len(x.messages)-1])
			}
			after := calls[min(1, len(calls)):] // the start
			if data != x.data || len(after)+len(x.calls) > 0 && !reflect.DeepEqual(after, x.calls) {
				t.Errorf("%s by %s: what follows the start came as %q and %+v instead of %q and %+v, %v",
					x.procedure, tr.name, data, after, x.data, x.calls, err)
			}
			for _, m := range x.messages[1:] {
				m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
					sent[keyOf(f)] = true
					if f.Message() != nil {
						for _, in := range fieldsOf(f.Message()) {
							sent[keyOf(f)] = sent[keyOf(f)] && v.Message().Has(in)
						}
					}
					return true
				})
			}
		}
	}
	for key := range notFirst {
		if !sent[key] {
			t.Errorf("no message has %s with all that is in it", key)
		}
	}
}

// find is the procedure of a service: "CommandService.Stream".
func find(name string) (procedure, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("carrel.v1." + name))
	if err != nil {
		return nil, err
	}
	return d.(procedure), nil
}

// carryingGate takes the data of streams. Its commands do nothing: one on pipes ends with its input,
// and one on a terminal with a signal.
type carryingGate struct {
	*apitest.Recorder

	joined   sync.WaitGroup // clients of sessions
	mu       sync.Mutex
	received []byte
	running  *bareCommand
}

const ranID = id.Command("c-0123456789abcdef")

var _ api.Gate = (*carryingGate)(nil)

// data returns the data since the last call.
func (g *carryingGate) data() string {
	g.joined.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.received
	g.received = nil
	return string(b)
}

func (g *carryingGate) take(in io.Reader) error {
	b, err := io.ReadAll(in)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.received = append(g.received, b...)
	return err
}

func (g *carryingGate) Restore(
	ctx context.Context, p principal.Principal, want workspace.RestoreWanted, in io.Reader, progress func(workspace.Progress),
) (api.Workspace, error) {
	_, noted := g.Recorder.Restore(ctx, p, want, in, progress)
	return api.Workspace{}, errors.Join(noted, g.take(in))
}

// OnFiles takes what is whole: without the last message it is an error, and nothing is taken.
func (g *carryingGate) OnFiles(
	ctx context.Context, p principal.Principal, ref string, r fileapi.Request, s fileapi.Streams,
) (fileapi.Result, error) {
	if s.In != nil {
		if err := g.take(s.In); err != nil {
			return fileapi.Result{}, err
		}
		s.In = nil
	}
	return g.Recorder.OnFiles(ctx, p, ref, r, s)
}

// Output joins a session of which nothing is drawn.
func (g *carryingGate) Output(
	ctx context.Context, p principal.Principal, ref string, o execapi.OutputParams, attach bool,
) (execapi.OutputResult, []*os.File, error) {
	res, _, err := g.Recorder.Output(ctx, p, ref, o, attach)
	if !o.Join {
		return res, nil, err
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return res, nil, err
	}
	near := os.NewFile(uintptr(fds[1]), "near")
	g.joined.Go(func() {
		defer near.Close()
		_ = g.take(near) // the test sees what is missing
	})
	res.Client = 7
	return res, []*os.File{os.NewFile(uintptr(fds[0]), "far")}, nil
}

// DialPort connects to what takes everything.
func (g *carryingGate) DialPort(ctx context.Context, p principal.Principal, ref string, port int) (*portconn.Conn, error) {
	_, _ = g.Recorder.DialPort(ctx, p, ref, port) // it is noted, and goes on here
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := apitest.Loopback(l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		return nil, err
	}
	far, err := l.Accept()
	if err != nil {
		return nil, err
	}
	g.joined.Go(func() {
		defer far.Close()
		_ = g.take(far) // the test sees what is missing
	})
	return c, nil
}

func (g *carryingGate) Spawn(
	ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool, _ ...*os.File,
) (id.Command, runtime.Process, error) {
	_, _, _ = g.Recorder.Spawn(ctx, p, ref, e, tty) // it is noted, and goes on here
	c := &bareCommand{done: make(chan struct{})}
	var in *os.File
	if !tty {
		r, w, err := os.Pipe()
		if err != nil {
			return "", nil, err
		}
		in, c.far = r, append(c.far, w)
	}
	outputs := 2
	if tty {
		outputs = 1
	}
	for range outputs {
		r, w, err := os.Pipe()
		if err != nil {
			return "", nil, err
		}
		c.far, c.near = append(c.far, r), append(c.near, w)
	}
	g.mu.Lock()
	g.running = c
	g.mu.Unlock()
	if in != nil {
		go func() {
			defer in.Close()
			_ = g.take(in) // the test sees what is missing
			c.end()
		}()
	}
	return ranID, c, nil
}

func (g *carryingGate) Resize(ctx context.Context, p principal.Principal, ref string, r execapi.ResizeParams) error {
	_ = g.Recorder.Resize(ctx, p, ref, r) // it is noted
	return nil
}

func (g *carryingGate) Signal(ctx context.Context, p principal.Principal, ref string, s execapi.StopTaskParams) error {
	_ = g.Recorder.Signal(ctx, p, ref, s) // it is noted
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running.end()
	return nil
}

// bareCommand is a command without a process.
type bareCommand struct {
	far, near []*os.File
	once      sync.Once
	done      chan struct{}
}

var _ runtime.Process = (*bareCommand)(nil)

func (c *bareCommand) end() {
	c.once.Do(func() {
		for _, f := range c.near {
			f.Close()
		}
		close(c.done)
	})
}

func (c *bareCommand) Files() []*os.File { return c.far }
func (c *bareCommand) PID() int          { return 1 }
func (c *bareCommand) Close() error      { c.end(); return nil }

func (c *bareCommand) Wait(ctx context.Context) (execapi.Status, error) {
	select {
	case <-c.done:
		return execapi.Status{}, nil
	case <-ctx.Done():
		return execapi.Status{}, context.Cause(ctx)
	}
}
