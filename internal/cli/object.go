package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// object is a message of the API as JSON, with its fields in their order. It is an interface:
// fields are added, never renamed or removed. docs/cli.md lists them.
//
//   - A time, NAME_unix_ms or NAME_unix_ns, is NAME_at in RFC 3339, and null for 0.
//   - Numbers are numbers. A list is never null. A message that is not set is null.
type object []member

type member struct {
	name  string
	value any
}

// renamed are the members that are not called after their fields.
var renamed = map[string]string{"until_at": "until"}

func objectOf(m proto.Message) object { return reflected(m.ProtoReflect()) }

// objectsOf is a list of messages, which is never null.
func objectsOf[M proto.Message](list []M) []object {
	out := make([]object, 0, len(list))
	for _, m := range list {
		out = append(out, objectOf(m))
	}
	return out
}

func reflected(m protoreflect.Message) object {
	fields := m.Descriptor().Fields()
	o := make(object, 0, fields.Len())
	for i := range fields.Len() {
		f := fields.Get(i)
		name, v := string(f.Name()), m.Get(f)
		switch {
		case f.IsList():
			list := make([]any, 0, v.List().Len())
			for j := range v.List().Len() {
				list = append(list, single(f, v.List().Get(j)))
			}
			o = o.with(name, list)
		case strings.HasSuffix(name, "unix_ms"):
			o = o.withTime(strings.TrimSuffix(name, "unix_ms"), time.UnixMilli(v.Int()), v.Int() == 0)
		case strings.HasSuffix(name, "unix_ns"):
			o = o.withTime(strings.TrimSuffix(name, "unix_ns"), time.Unix(0, v.Int()), v.Int() == 0)
		case f.Message() != nil && !m.Has(f):
			o = o.with(name, nil)
		default:
			o = o.with(name, single(f, v))
		}
	}
	return o
}

func single(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	if f.Message() != nil {
		return reflected(v.Message())
	}
	return v.Interface()
}

// with is the object with one member more, or with another value for one that it has.
func (o object) with(name string, value any) object {
	for i := range o {
		if o[i].name == name {
			o[i].value = value
			return o
		}
	}
	return append(o, member{name, value})
}

func (o object) withTime(prefix string, at time.Time, unset bool) object {
	name := prefix + "at"
	if r, ok := renamed[name]; ok {
		name = r
	}
	if unset {
		return o.with(name, nil)
	}
	return o.with(name, at.UTC())
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		if err := e.Encode(m.name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := e.Encode(m.value); err != nil {
			return nil, err
		}
	}
	if len(o) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
