package api_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// values are two valid values of each field that needs a form. Any other gets two of its type.
var values = map[string][2]any{
	"AnswerApprovalRequest.id":      {"ap-0123456789abcdef", "ap-fedcba9876543210"},
	"AttachRequest.command_id":      {"c-0123456789abcdef", "c-fedcba9876543210"},
	"Command.source":                {"user", "llm"},
	"DetachRequest.session":         {"main", "other-2"},
	"JoinStart.command_id":          {"c-0123456789abcdef", "c-fedcba9876543210"},
	"FanOut.max_failures":           {"0", "10%"},
	"FanOut.serial":                 {"5", "20%"},
	"GroupFanOut.hosts":             {"web-1", "web-2"},
	"RunTaskRequest.over":           {"disk_used is 91%", "load is 5"},
	"RunTaskRequest.after":          {"c-0123456789abcdef", "c-fedcba9876543210"},
	"ServeStart.task_id":            {"c-0123456789abcdef", "c-fedcba9876543210"},
	"ServeStart.remotes":            {"web-1", "web-2"},
	"ServeStart.remotes_as":         {"web-1", "web-2"},
	"ServeStart.profile":            {"workspace_write", "read_only"},
	"CreateRequest.allow":           {"userns", "io_uring"},
	"CreateRequest.secret_files":    {"A_KEY=.config/a", "B_KEY=b"},
	"UpdateRequest.secret_files":    {"A_KEY=.config/a", "B_KEY=b"},
	"CreateTokenRequest.owner":      {"uid:1000", "uid:1001"},
	"CreateTokenRequest.roles":      {"agent", "operator"},
	"GetApprovalRequest.id":         {"ap-0123456789abcdef", "ap-fedcba9876543210"},
	"RemoveSecretRequest.owner":     {"uid:1000", "uid:1001"},
	"Limits.disk_bytes":             {1 << 30, 2 << 30},
	"Limits.memory_bytes":           {1 << 30, 2 << 30},
	"Limits.open_files":             {1000, 2000},
	"LogsRequest.command_id":        {"c-0123456789abcdef", "c-fedcba9876543210"},
	"ResizeRequest.command_id":      {"c-0123456789abcdef", "c-fedcba9876543210"},
	"RevokePermissionRequest.id":    {"ap-0123456789abcdef", "ap-fedcba9876543210"},
	"SignalRequest.command_id":      {"c-0123456789abcdef", "c-fedcba9876543210"},
	"WaitRequest.command_id":        {"c-0123456789abcdef", "c-fedcba9876543210"},
	"ReadFileRequest.raw_path":      {"\xff", "\n"},
	"WriteFileStart.raw_path":       {"\xff", "\n"},
	"ReadBySocketRequest.raw_path":  {"\xff", "\n"},
	"WriteBySocketRequest.raw_path": {"\xff", "\n"},
	"WriteBySocketRequest.mode":     {0o600, 0o755},
	"ListFilesRequest.raw_path":     {"\xff", "\n"},
	"StatFileRequest.raw_path":      {"\xff", "\n"},
	"MakeDirectoryRequest.raw_path": {"\xff", "\n"},
	"MoveFileRequest.raw_path":      {"\xff", "\n"},
	"RemoveFileRequest.raw_path":    {"\xff", "\n"},
	"PackFilesRequest.raw_path":     {"\xff", "\n"},
	"UnpackFilesStart.raw_path":     {"\xff", "\n"},
	"SearchFilesRequest.raw_path":   {"\xff", "\n"},
	"WatchFilesRequest.raw_path":    {"\xff", "\n"},
	"ListChangesRequest.raw_path":   {"\xff", "\n"},
	"MoveFileRequest.raw_to":        {"\xff", "\n"},
	"ListFilesRequest.raw_after":    {"\xff", "\n"},
	"ListFilesRequest.depth":        {2, 64},
	"SearchFilesRequest.depth":      {2, 64},
	"WatchFilesRequest.depth":       {2, 64},
	"ListFilesRequest.limit":        {2, 1000},
	"SearchFilesRequest.limit":      {2, 1000},
	"WriteFileStart.mode":           {0o600, 0o755},
	"MakeDirectoryRequest.mode":     {0o700, 0o755},
	"ReadFileRequest.offset":        {1<<53 + 1, 1<<53 + 2},
	"ReadFileRequest.length":        {1<<53 + 1, 1<<53 + 2},
	"FollowTaskRequest.after":       {"3", "4"},
	"FollowTaskRequest.task_id":     {"c-0123456789abcdef", "c-fedcba9876543210"},
	"GetTaskRequest.task_id":        {"c-0123456789abcdef", "c-fedcba9876543210"},
	"StopTaskRequest.task_id":       {"c-0123456789abcdef", "c-fedcba9876543210"},
	"ModelBudget.money":             {"1.50", "2.50"},
	"ModelBudget.per":               {"day", "whole"},
	// A float64, to which some readers of JSON convert numbers, does not hold them.
	"Filter.since":         {1<<53 + 1, 1<<53 + 2},
	"Filter.until":         {1<<53 + 1, 1<<53 + 2},
	"ProveRequest.to_seq":  {1<<53 + 1, 1<<53 + 2},
	"ShowRequest.from_seq": {1<<53 + 1, 1<<53 + 2},
	"WatchRequest.after":   {1<<53 + 1, 1<<53 + 2},
}

// silent are the fields without an effect, with the reason.
var silent = map[string]string{
	"Mount.owner_uid": "it is for answers: the grant says who owns the files",
}

// notFirst are the messages of a stream that do not begin one: see TestEveryLaterMessageArrives.
var notFirst = map[string]bool{
	"StreamRequest.stdin": true, "StreamRequest.close_stdin": true, "StreamRequest.resize": true, "StreamRequest.signal": true,
	"RestoreRequest.data": true, "JoinRequest.stdin": true, "JoinRequest.resize": true, "ConnectRequest.data": true,
	"ServeRequest.result": true, "ServeRequest.patched": true,
	"WriteFileRequest.data": true, "WriteFileRequest.finish": true, "UnpackFilesRequest.data": true, "UnpackFilesRequest.finish": true,
}

// served are the procedures that a connection with descriptors takes.
var served = []string{fdapi.Create, fdapi.Exec, fdapi.Spawn, fdapi.Attach, fdapi.Signal, fdapi.Resize, fdapi.Read, fdapi.Write}

// carried is what takes such a connection: a procedure, or a field of its request.
var carried = map[string]bool{fdapi.Spawn: true, fdapi.Attach: true, fdapi.Read: true, fdapi.Write: true, "CreateRequest.mounts": true}

// transport is one protocol on one kind of connection.
type transport struct {
	name string
	// descriptors: it carries them.
	descriptors bool
	// send sends the messages of a call, one if it is no stream of them, and returns the error that ends it.
	send func(p procedure, messages ...proto.Message) error
}

type procedure = protoreflect.MethodDescriptor

// pathOf is the service and the procedure: "WorkspaceService/Pause".
func pathOf(p procedure) string { return fmt.Sprintf("%s/%s", p.Parent().Name(), p.Name()) }

// keyOf is the message and the field: "Limits.pids".
func keyOf(f protoreflect.FieldDescriptor) string {
	return fmt.Sprintf("%s.%s", f.Parent().Name(), f.Name())
}

// change changes one field of a request.
type change struct {
	field protoreflect.FieldDescriptor
	// path is where it is: "CreateRequest.limits.pids".
	path string
	// cleared: a message was taken out, which may be refused by its name or that of a field in it.
	cleared bool
	apply   func(request protoreflect.Message)
}

// Every field of a request reaches the gate by every transport: another value of it makes another call
// of the gate, and the same call by each.
func TestEveryFieldArrives(t *testing.T) {
	g := &apitest.Recorder{Gate: &apitest.Gate{}}
	x := fieldsTest{T: t, gate: g, transports: transports(t, g), used: map[string]bool{}}
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			x.try(methods.Get(j))
		}
	}
	unused := slices.Concat(slices.Collect(maps.Keys(values)), slices.Collect(maps.Keys(silent)), slices.Collect(maps.Keys(notFirst)))
	for _, key := range slices.DeleteFunc(unused, func(k string) bool { return x.used[k] }) {
		t.Errorf("the tables of this test have %s, and no request has", key)
	}
}

type fieldsTest struct {
	*testing.T

	gate       *apitest.Recorder
	transports []transport
	// used are the fields that a request has.
	used map[string]bool
}

// try tries every field of a request.
func (x *fieldsTest) try(p procedure) {
	message, err := protoregistry.GlobalTypes.FindMessageByName(p.Input().FullName())
	if err != nil {
		x.Fatal(err)
	}
	whole := message.New()
	x.unserved(p, whole.Interface())
	changes := x.fill(whole, string(p.Input().Name()), func(m protoreflect.Message) protoreflect.Message { return m })
	if carried[pathOf(p)] {
		x.compare(p, whole.Interface(), changes, true)
		return
	}
	// Fields that take descriptors are tried apart.
	var with []change
	plain := proto.Clone(whole.Interface())
	for _, f := range fieldsOf(p.Input()) {
		if carried[keyOf(f)] {
			plain.ProtoReflect().Clear(f)
			of := func(c change) bool { return c.path == keyOf(f) || strings.HasPrefix(c.path, keyOf(f)+".") }
			for _, c := range changes {
				if of(c) {
					with = append(with, c)
				}
			}
			changes = slices.DeleteFunc(changes, of)
		}
	}
	x.compare(p, plain, changes, false)
	if len(with) > 0 {
		x.compare(p, whole.Interface(), with, true)
	}
}

// compare sends base, and base with each change.
func (x *fieldsTest) compare(p procedure, base proto.Message, changes []change, carried bool) {
	if len(changes) == 0 {
		return // an empty message
	}
	name := string(p.Input().Name())
	before := x.send(p, base, carried)
	alike := x.alike(name, before)
	for _, a := range before {
		if len(a.calls) == 0 {
			x.Errorf("%s with every field set does not reach the gate by %s: %v; has apitest.Recorder its method, or does one of these need "+
				"a row in values: %s?",
				name, a.by, a.err, strings.Join(generic(changes), ", "))
			return
		}
	}
	for _, c := range changes {
		m := proto.Clone(base)
		c.apply(m.ProtoReflect())
		after := x.send(p, m, carried)
		if alike {
			x.alike(c.path, after)
		}
		wrong := map[string][]string{}
		for i, a := range after {
			if w := judge(c, before[i], a); w != "" {
				wrong[w] = append(wrong[w], a.by)
			}
		}
		for w, by := range wrong {
			if len(by) == len(after) {
				by = []string{"every transport"}
			}
			x.Errorf("%s %s, by %s", c.path, w, strings.Join(by, ", "))
		}
	}
}

// generic lists the fields without a row in values.
func generic(changes []change) (names []string) {
	for _, c := range changes {
		if _, has := values[keyOf(c.field)]; !has && c.field.Message() == nil && !slices.Contains(names, c.path) {
			names = append(names, c.path)
		}
	}
	return names
}

// judge returns what is wrong with how a change arrived.
func judge(c change, before, after arrival) string {
	key, same := keyOf(c.field), reflect.DeepEqual(before.calls, after.calls)
	refused := len(after.calls) == 0
	switch {
	case notFirst[key] && (!refused || !strings.Contains(fmt.Sprint(after.err), "the first message is not a start")):
		return fmt.Sprintf("begins a stream: %v", after.err)
	case silent[key] != "" && !same:
		return fmt.Sprintf("has an effect, though %s: %v", silent[key], after.err)
	case notFirst[key] || silent[key] != "" || refused && c.cleared && names(after.err, c.field):
		return ""
	case refused:
		return fmt.Sprintf("does not reach the gate with a valid value: %v", after.err)
	case same:
		return "is lost"
	}
	return ""
}

// names reports whether an error names the field of a message, or one in it.
func names(err error, f protoreflect.FieldDescriptor) bool {
	return slices.ContainsFunc(append(fieldsOf(f.Message()), f), func(f protoreflect.FieldDescriptor) bool {
		return strings.Contains(fmt.Sprint(err), fmt.Sprintf("the field %q", f.Name()))
	})
}

// arrival is what the gate was asked for by one transport, and what it or the server answered.
type arrival struct {
	by    string
	calls []apitest.Call
	err   error
}

// send sends a request by every transport that serves it. carried: those without descriptors must refuse it.
func (x *fieldsTest) send(p procedure, m proto.Message, carried bool) (all []arrival) {
	for _, tr := range x.transports {
		if tr.descriptors && !slices.Contains(served, pathOf(p)) {
			continue
		}
		err := tr.send(p, m)
		got := x.gate.Take()
		if !carried || tr.descriptors {
			all = append(all, arrival{tr.name, got, err})
		} else if len(got) > 0 || connect.CodeOf(err) != connect.CodeFailedPrecondition {
			x.Errorf("%s takes descriptors, and by %s the gate was asked for %+v, %v", m.ProtoReflect().Descriptor().Name(), tr.name, got, err)
		}
	}
	return all
}

// alike reports whether a request arrived equally by every transport.
func (x *fieldsTest) alike(what string, all []arrival) bool {
	x.Helper()
	for _, a := range all {
		if !reflect.DeepEqual(a.calls, all[0].calls) {
			x.Errorf("%s by %s: %+v\nby %s: %+v", what, all[0].by, all[0].calls, a.by, a.calls)
			return false
		}
	}
	return true
}

// unserved sees that the connection with descriptors takes no procedure that is not in served.
func (x *fieldsTest) unserved(p procedure, m proto.Message) {
	for _, tr := range x.transports {
		if tr.descriptors && !slices.Contains(served, pathOf(p)) {
			if err := tr.send(p, m); !errdefs.IsNotImplemented(err) {
				x.Errorf("%s is served by %s: %v; add it to served", pathOf(p), tr.name, err)
			}
			x.gate.Take()
		}
	}
}

func fieldsOf(m protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	all := make([]protoreflect.FieldDescriptor, m.Fields().Len())
	for i := range all {
		all[i] = m.Fields().Get(i)
	}
	return all
}

// fill sets every field of m, and of a oneof the first, and returns the changes that can be made in it.
// at finds m in a request.
func (x *fieldsTest) fill(m protoreflect.Message, path string, at func(protoreflect.Message) protoreflect.Message) (changes []change) {
	for _, f := range fieldsOf(m.Descriptor()) {
		path := path + "." + string(f.Name())
		x.used[keyOf(f)] = true
		may := func(cleared bool, apply func(m protoreflect.Message)) {
			changes = append(changes, change{f, path, cleared, func(request protoreflect.Message) { apply(at(request)) }})
		}
		first := true
		if o := f.ContainingOneof(); o != nil {
			first = f == o.Fields().Get(0)
		}
		switch {
		case f.IsMap():
			one, two := x.value(f.MapKey(), keyOf(f), path, 0), x.value(f.MapKey(), keyOf(f), path, 1)
			was, is := x.value(f.MapValue(), keyOf(f), path, 0), x.value(f.MapValue(), keyOf(f), path, 1)
			m.Mutable(f).Map().Set(one.MapKey(), was)
			may(false, func(m protoreflect.Message) { m.Mutable(f).Map().Set(one.MapKey(), is) })
			may(false, func(m protoreflect.Message) { m.Mutable(f).Map().Set(two.MapKey(), was) })
		case f.IsList() && f.Message() != nil:
			changes = append(changes, x.fill(m.Mutable(f).List().AppendMutable().Message(), path,
				func(request protoreflect.Message) protoreflect.Message {
					return at(request).Mutable(f).List().Get(0).Message()
				})...)
			may(false, func(m protoreflect.Message) { m.Mutable(f).List().AppendMutable() })
		case f.IsList():
			one, two := x.value(f, keyOf(f), path, 0), x.value(f, keyOf(f), path, 1)
			m.Mutable(f).List().Append(one)
			may(false, func(m protoreflect.Message) { m.Mutable(f).List().Append(two) })
			may(false, func(m protoreflect.Message) { m.Mutable(f).List().Set(0, two) })
		case f.Message() != nil && first:
			changes = append(changes, x.fill(m.Mutable(f).Message(), path,
				func(request protoreflect.Message) protoreflect.Message { return at(request).Mutable(f).Message() })...)
			may(true, func(m protoreflect.Message) { m.Clear(f) })
		case f.Message() != nil:
			may(false, func(m protoreflect.Message) { m.Mutable(f) })
		default:
			if first {
				m.Set(f, x.value(f, keyOf(f), path, 0))
			}
			may(false, func(m protoreflect.Message) { m.Set(f, x.value(f, keyOf(f), path, 1)) })
		}
	}
	return changes
}

// value is the first or the second valid value of a field, or of the keys or values of a map.
func (x *fieldsTest) value(f protoreflect.FieldDescriptor, key, path string, n int) protoreflect.Value {
	text, number := []string{`é<&>"\' one`, `é<&>"\' two`}[n], 20+n
	switch v := values[key][n].(type) {
	case string:
		text = v
	case int:
		number = v
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n == 0)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		if _, given := values[key]; given {
			return protoreflect.ValueOfBytes([]byte(text))
		}
		return protoreflect.ValueOfBytes([]byte{0, 0xff, '\n', byte(n)})
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(2.5 + float64(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(number))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	default:
		x.Fatalf("%s: this test has no values of the type %s; give it some", path, f.Kind())
		return protoreflect.Value{}
	}
}
