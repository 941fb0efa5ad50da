package rules

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of a source. Every use of an alias counts.
const (
	maxSource = 16 << 20
	maxNodes  = 4 << 20
	maxDepth  = 64
)

// tree is a YAML node with its position, so that every error has a line and column.
type tree struct {
	kind      kind
	text      string  // of a scalar
	items     []*tree // of a list
	keys      []*tree // of a map, with values in items
	quoted    bool
	line, col int
}

type kind uint8

const (
	scalar kind = iota
	list
	mapping
	null
)

func (k kind) String() string {
	return [...]string{"a text", "a list", "a mapping", "nothing"}[k]
}

// Source is a file of rules or knowledge. Errors use its name.
type Source struct {
	Name string
	Data []byte
}

// sourceError returns an error at a position of a source.
func sourceError(name string, line, col int, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %w: %w", name, line, col, fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

// reader reads the nodes of one source.
type reader struct {
	name    string
	anchors map[string]*tree
	nodes   int
}

func (r *reader) errorf(t *tree, format string, args ...any) error {
	return sourceError(r.name, t.line, t.col, format, args...)
}

// readTree parses a source of one document. An empty one gives a null.
func readTree(s Source) (*reader, *tree, error) {
	r := &reader{name: s.Name, anchors: map[string]*tree{}}
	if len(s.Data) > maxSource {
		return nil, nil, sourceError(s.Name, 1, 1, "cannot read it: it is longer than %d bytes", maxSource)
	}
	file, err := parser.ParseBytes(s.Data, 0)
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			p := syntax.GetToken().Position
			return nil, nil, sourceError(s.Name, p.Line, p.Column, "%s", strings.Join(strings.Fields(syntax.GetMessage()), " "))
		}
		return nil, nil, sourceError(s.Name, 1, 1, "cannot read it as YAML: %w", err)
	}
	t := &tree{kind: null, line: 1, col: 1}
	for i, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if i > 0 {
			p := doc.Body.GetToken().Position
			return nil, nil, sourceError(s.Name, p.Line, p.Column, "there is a second document; give one")
		}
		if t, err = r.node(doc.Body, 0); err != nil {
			return nil, nil, err
		}
	}
	return r, t, nil
}

func (r *reader) node(n ast.Node, depth int) (*tree, error) {
	t := &tree{line: 1, col: 1}
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		t.line, t.col = tk.Position.Line, tk.Position.Column
	}
	if r.nodes++; r.nodes > maxNodes {
		return nil, r.errorf(t, "there are more than %d values", maxNodes)
	}
	if depth > maxDepth {
		return nil, r.errorf(t, "it is nested more than %d deep", maxDepth)
	}
	switch n := n.(type) {
	case *ast.NullNode:
		t.kind = null
	case *ast.StringNode:
		t.text = n.Value
		t.quoted = n.Token.Type == token.DoubleQuoteType || n.Token.Type == token.SingleQuoteType
	case *ast.LiteralNode:
		t.text, t.quoted = n.Value.Value, true
		if p := n.Value.GetToken(); p != nil && p.Position != nil {
			t.line, t.col = n.Start.Position.Line, n.Start.Position.Column
		}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		t.text = strings.TrimSpace(n.GetToken().Value)
	case *ast.TagNode:
		return r.node(n.Value, depth+1)
	case *ast.MappingKeyNode: // "? a long key"
		return r.node(n.Value, depth+1)
	case *ast.AnchorNode:
		v, err := r.node(n.Value, depth+1)
		if err == nil {
			r.anchors[n.Name.GetToken().Value] = v
		}
		return v, err
	case *ast.AliasNode:
		v, ok := r.anchors[n.Value.GetToken().Value]
		if !ok {
			return nil, r.errorf(t, "the alias *%s has no anchor before it", n.Value.GetToken().Value)
		}
		if r.nodes += v.size(maxNodes); r.nodes > maxNodes {
			return nil, r.errorf(t, "there are more than %d values", maxNodes)
		}
		return v, nil
	case *ast.SequenceNode:
		t.kind = list
		for _, v := range n.Values {
			item, err := r.node(v, depth+1)
			if err != nil {
				return nil, err
			}
			t.items = append(t.items, item)
		}
	case *ast.MappingNode:
		return t, r.mapping(t, n.Values, depth)
	case *ast.MappingValueNode:
		return t, r.mapping(t, []*ast.MappingValueNode{n}, depth)
	default:
		return nil, r.errorf(t, "cannot use a YAML %s here", strings.ToLower(n.Type().String()))
	}
	return t, nil
}

func (r *reader) mapping(t *tree, values []*ast.MappingValueNode, depth int) error {
	t.kind = mapping
	if len(values) > 0 {
		p := values[0].Key.GetToken().Position
		t.line, t.col = p.Line, p.Column
	}
	seen := map[string]bool{}
	var merged []*tree
	for _, v := range values {
		if v.Key.IsMergeKey() {
			m, err := r.node(v.Value, depth+1)
			if err != nil {
				return err
			}
			merged = append(merged, m)
			continue
		}
		k, err := r.node(v.Key, depth+1)
		if err != nil {
			return err
		}
		if k.kind != scalar {
			return r.errorf(k, "a key must be a text")
		}
		if seen[k.text] {
			return r.errorf(k, "%q is defined twice", k.text)
		}
		seen[k.text] = true
		item, err := r.node(v.Value, depth+1)
		if err != nil {
			return err
		}
		t.keys, t.items = append(t.keys, k), append(t.items, item)
	}
	for len(merged) > 0 {
		m := merged[0]
		merged = merged[1:]
		switch m.kind {
		case list:
			merged = append(m.items, merged...)
		case mapping:
			for i, k := range m.keys {
				if !seen[k.text] {
					seen[k.text] = true
					t.keys, t.items = append(t.keys, k), append(t.items, m.items[i])
				}
			}
		case scalar, null:
			return r.errorf(m, "only a mapping can be merged, this is %s", m.kind)
		}
	}
	return nil
}

// size counts nodes up to a limit.
func (t *tree) size(limit int) int {
	n := 1
	for _, i := range t.items {
		if n > limit {
			break
		}
		n += i.size(limit - n)
	}
	return n + len(t.keys)
}

// field reads the value of a key.
type field struct {
	name string
	read func(*tree) error
}

// fields reads a mapping with the given keys, each at most once; the required ones must be there.
func (r *reader) fields(t *tree, what string, required []string, fs ...field) error {
	if t.kind != mapping {
		return r.errorf(t, "%s must be a mapping, this is %s", what, t.kind)
	}
keys:
	for i, k := range t.keys {
		for _, f := range fs {
			if f.name == k.text {
				if err := f.read(t.items[i]); err != nil {
					return err
				}
				continue keys
			}
		}
		names := make([]string, len(fs))
		for i, f := range fs {
			names[i] = f.name
		}
		return r.errorf(k, "%s has no key %q; it has: %s", what, k.text, strings.Join(names, ", "))
	}
	for _, name := range required {
		if t.get(name) == nil {
			return r.errorf(t, "%s needs the key %q", what, name)
		}
	}
	return nil
}

// get returns the value of a key, nil if there is none.
func (t *tree) get(name string) *tree {
	for i, k := range t.keys {
		if k.text == name {
			return t.items[i]
		}
	}
	return nil
}

func (r *reader) str(t *tree, what string) (string, error) {
	if t.kind != scalar {
		return "", r.errorf(t, "%s must be a text, this is %s", what, t.kind)
	}
	return t.text, nil
}

func (r *reader) boolean(t *tree, what string) (bool, error) {
	if t.kind == scalar && !t.quoted {
		switch strings.ToLower(t.text) {
		case "true", "yes", "on":
			return true, nil
		case "false", "no", "off":
			return false, nil
		}
	}
	return false, r.errorf(t, "%s must be true or false", what)
}

// texts reads a list of texts.
func (r *reader) texts(t *tree, what string) ([]string, error) {
	if t.kind == null {
		return nil, nil
	}
	if t.kind != list {
		return nil, r.errorf(t, "%s must be a list of texts, this is %s; write [%s]", what, t.kind, t.text)
	}
	out := make([]string, 0, len(t.items))
	for _, i := range t.items {
		s, err := r.str(i, "each item of "+what)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// textField and the functions after it return fields that set a variable.
func (r *reader) textField(name string, to *string) field {
	return field{name, func(t *tree) (err error) { *to, err = r.str(t, name); return err }}
}

func (r *reader) boolField(name string, to *bool) field {
	return field{name, func(t *tree) (err error) { *to, err = r.boolean(t, name); return err }}
}

func (r *reader) textsField(name string, to *[]string) field {
	return field{name, func(t *tree) (err error) { *to, err = r.texts(t, name); return err }}
}
