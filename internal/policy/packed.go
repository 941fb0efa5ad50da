package policy

import (
	_ "embed"
	"encoding/binary"
	"fmt"

	"github.com/containerd/errdefs"
)

// The built-in sources as they stand in the binary beside their text: parsed. Reading
// them as YAML would take a process that judges one command ten times as long as all
// else that it does. A test holds that both say the same.
//
//go:generate go test -run ^TestPacked$ -count=1 -packed .
//go:embed builtin.bin
var packed string

// A packed source is its name and its tree; all numbers are unsigned varints.
//
//	file   = count { source }
//	source = len name, node
//	node   = kind | quoted<<3, line, column, value
//	value  = len text                        of a scalar
//	       | len { count { node } }          of a list
//	       | len { count { node node } }     of a mapping: keys with their values
//
// The length stands before what is in a list or a mapping so that it can be left for
// later.
const packedQuoted = 1 << 3

func packTree(b []byte, t *tree) []byte {
	head := uint64(t.kind)
	if t.quoted {
		head |= packedQuoted
	}
	b = binary.AppendUvarint(b, head)
	b = binary.AppendUvarint(b, uint64(t.line))
	b = binary.AppendUvarint(b, uint64(t.col))
	switch t.kind {
	case scalar:
		b = binary.AppendUvarint(b, uint64(len(t.text)))
		return append(b, t.text...)
	case list, mapping:
		in := binary.AppendUvarint(nil, uint64(len(t.items)))
		for i, item := range t.items {
			if t.kind == mapping {
				in = packTree(in, t.keys[i])
			}
			in = packTree(in, item)
		}
		b = binary.AppendUvarint(b, uint64(len(in)))
		return append(b, in...)
	case null:
	}
	return b
}

// packSources is the content of builtin.bin.
func packSources(sources []Source) ([]byte, error) {
	b := binary.AppendUvarint(nil, uint64(len(sources)))
	for _, s := range sources {
		_, t, err := readTree(s)
		if err != nil {
			return nil, err
		}
		b = binary.AppendUvarint(b, uint64(len(s.Name)))
		b = append(b, s.Name...)
		b = packTree(b, t)
	}
	return b, nil
}

// unpacker reads packed nodes. Texts are parts of what it reads.
type unpacker struct {
	text string
	bad  bool
}

func (u *unpacker) number() int {
	var n uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if u.text == "" {
			break
		}
		c := u.text[0]
		u.text = u.text[1:]
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if n > maxSource {
				break
			}
			return int(n)
		}
	}
	u.bad = true
	return 0
}

func (u *unpacker) take(n int) string {
	if n > len(u.text) {
		u.bad, n = true, 0
	}
	s := u.text[:n]
	u.text = u.text[n:]
	return s
}

// node reads a node. Lists and mappings below so many levels are left as they are until
// they are opened.
func (u *unpacker) node(levels int) *tree {
	head := u.number()
	t := &tree{kind: kind(head & 7), quoted: head&packedQuoted != 0, line: u.number(), col: u.number()}
	switch t.kind {
	case scalar:
		t.text = u.take(u.number())
	case list, mapping:
		t.later = u.take(u.number())
		if levels > 0 {
			u.bad = u.bad || !t.openTo(levels-1)
		}
	case null:
	default:
		u.bad = true
	}
	return t
}

// openTo reads what is in a list or mapping that was left for later; false if it is not
// as it was packed.
func (t *tree) openTo(levels int) bool {
	if t.later == "" {
		return true
	}
	u := unpacker{text: t.later}
	t.later = ""
	n := u.number()
	if n > len(u.text) {
		return false
	}
	t.items = make([]*tree, 0, n)
	if t.kind == mapping {
		t.keys = make([]*tree, 0, n)
	}
	for range n {
		if t.kind == mapping {
			t.keys = append(t.keys, u.node(levels))
		}
		t.items = append(t.items, u.node(levels))
	}
	return !u.bad && u.text == ""
}

// maxLevels is more than any tree has.
const maxLevels = maxDepth + 2

// unpack finds a built-in source.
func unpack(name string, levels int) (*reader, *tree, error) {
	u := unpacker{text: packed}
	for range u.number() {
		at := u.take(u.number())
		if at != name {
			u.node(0)
			continue
		}
		t := u.node(levels)
		if u.bad {
			break
		}
		return &reader{name: name}, t, nil
	}
	return nil, nil, errPacked(name)
}

func errPacked(name string) error {
	return fmt.Errorf("cannot read the built-in policy %s: this binary was not built as it should be; run go generate ./internal/policy and build it again: %w", name, errdefs.ErrInternal)
}
