package strictjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// shape says which objects a type takes.
type shape struct {
	// members of a struct, in its order; nil for any other type.
	members []member
	// of is the shape of what a list or a map holds.
	of *shape
}

type member struct {
	name  string
	shape *shape
}

// free takes any object.
var free = func() *shape {
	s := &shape{}
	s.of = s
	return s
}()

var shapes sync.Map // of reflect.Type to *shape

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := build(t, map[reflect.Type]*shape{})
	shapes.Store(t, s)
	return s
}

// build makes the shape of a type. made has those of the types around it, which it may hold again.
func build(t reflect.Type, made map[reflect.Type]*shape) *shape {
	for t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	if s, ok := made[t]; ok {
		return s
	}
	s := &shape{}
	switch kind := t.Kind(); {
	case decodesItself(t), decodesItself(reflect.PointerTo(t)):
		return free
	case kind == reflect.Struct:
		made[t] = s
		s.members = []member{} // a struct without members takes none
		s.add(t, made)
	case kind == reflect.Slice, kind == reflect.Array, kind == reflect.Map:
		made[t] = s
		s.of = build(t.Elem(), made)
	default: // a scalar takes no object, an interface takes any
		return free
	}
	return s
}

// add adds the members of a struct, and of those that it embeds without a name.
func (s *shape) add(t reflect.Type, made map[reflect.Type]*shape) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		in := f.Type
		if in.Kind() == reflect.Pointer {
			in = in.Elem()
		}
		switch {
		case f.Tag.Get("json") == "-", !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "" && in.Kind() == reflect.Struct:
			s.add(in, made)
			continue
		case name == "":
			name = f.Name
		}
		s.members = append(s.members, member{name, build(f.Type, made)})
	}
	if len(s.members) > 64 {
		panic(fmt.Sprintf("%v has more than 64 members", t))
	}
}

// decodesItself reports whether encoding/json leaves the decoding to the type.
func decodesItself(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Unmarshaler]()) || t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}
