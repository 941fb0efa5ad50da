package fdapi_test

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// fill sets every field of a message to something.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	value := func(f protoreflect.FieldDescriptor, fresh func() protoreflect.Value) protoreflect.Value {
		switch f.Kind() { //nolint:exhaustive // the others panic
		case protoreflect.MessageKind:
			v := fresh()
			fill(v.Message())
			return v
		case protoreflect.StringKind:
			return protoreflect.ValueOfString("a \"ü\"\n<&>")
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte{0, 255, 62})
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(-1 << 31)
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(1<<32 - 1)
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(-1 << 63)
		}
		panic("a kind that no message had so far: " + f.Kind().String())
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.ContainingOneof() != nil:
			panic("encoding/json cannot write a oneof: " + string(f.FullName()))
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), value(f.MapValue(), nil))
		case f.IsList():
			l := m.Mutable(f).List()
			l.Append(value(f, l.NewElement))
		default:
			m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }))
		}
	}
}

// What encoding/json writes of a message is what protojson reads, in every field, and what it
// writes and reads itself is the same.
func TestEveryField(t *testing.T) {
	for _, m := range []proto.Message{
		&carrelv1.CreateRequest{}, &carrelv1.CreateResponse{}, &carrelv1.ExecRequest{}, &carrelv1.ExecResponse{}, &carrelv1.SpawnRequest{},
		&carrelv1.SpawnResponse{}, &carrelv1.AttachRequest{}, &carrelv1.AttachResponse{}, &carrelv1.SignalRequest{}, &carrelv1.SignalResponse{},
		&carrelv1.ResizeRequest{}, &carrelv1.ResizeResponse{}, &carrelv1.Exited{},
	} {
		fill(m.ProtoReflect())
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func([]byte, proto.Message) error{
			"protojson":     protojson.Unmarshal,
			"encoding/json": func(b []byte, m proto.Message) error { return json.Unmarshal(b, m) },
		} {
			got := m.ProtoReflect().New().Interface()
			if err := read(b, got); err != nil || !proto.Equal(got, m) {
				t.Errorf("%T by %s: %v\n%s\n%v", m, name, err, b, got)
			}
		}
	}
}
