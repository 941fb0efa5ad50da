package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	// MaxInventory bounds an inventory in bytes.
	MaxInventory   = 1 << 20
	maxYAMLLine    = 8 << 10 // bounds how deep one line can nest
	maxYAMLNesting = 64
	maxBrackets    = 1024 // open ones, also those in comments and texts
	maxListed      = 256  // items of one list, other than the hosts of a group
)

// node is a part of an inventory.
type node = ast.Node

func isMapping(n node) bool {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

// reader reads the nodes of an inventory. Every error has a line and a column.
type reader struct{ name string }

func (r *reader) errorf(n ast.Node, format string, args ...any) error {
	return r.wrap(n, invalid(format, args...))
}

func (r *reader) wrap(n ast.Node, err error) error {
	line, column := 1, 1
	if n != nil && n.GetToken() != nil && n.GetToken().Position != nil {
		line, column = n.GetToken().Position.Line, n.GetToken().Position.Column
	}
	return fmt.Errorf("cannot use %s:%d:%d: %w", r.name, line, column, err)
}

func (r *reader) parse(b []byte) (ast.Node, error) {
	if len(b) > MaxInventory {
		return nil, r.errorf(nil, "it has more than %d bytes", MaxInventory)
	}
	// The parser calls itself for each level, so the levels are bounded before it runs.
	depth := 0
	for line := range strings.SplitSeq(string(b), "\n") {
		if len(line) > maxYAMLLine {
			return nil, r.errorf(nil, "a line has more than %d bytes", maxYAMLLine)
		}
		depth = max(0, depth+strings.Count(line, "[")+strings.Count(line, "{")-strings.Count(line, "]")-strings.Count(line, "}"))
		if depth > maxBrackets || strings.Count(line, "- ")+strings.Count(line, "? ") > maxYAMLNesting ||
			len(line)-len(strings.TrimLeft(line, " ")) > 2*maxYAMLNesting {
			return nil, r.errorf(nil, "it is nested more than %d deep", maxYAMLNesting)
		}
	}
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) && syntax.GetToken() != nil && syntax.GetToken().Position != nil {
			p := syntax.GetToken().Position
			return nil, invalid("cannot use %s:%d:%d: %s", r.name, p.Line, p.Column, strings.Join(strings.Fields(syntax.GetMessage()), " "))
		}
		return nil, r.errorf(nil, "%v", err)
	}
	var root ast.Node
	for _, doc := range f.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			return nil, r.errorf(doc.Body, "there is a second document; give one")
		default:
			root = doc.Body
		}
	}
	return root, nil
}

// entry is one key of a mapping with its value.
type entry struct {
	key   string
	at    ast.Node
	value ast.Node
}

// entries returns the keys of a mapping in their order, which the parser has seen to be there once. Nothing is an empty one.
func (r *reader) entries(n ast.Node) (list []entry, err error) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil, nil
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return nil, r.errorf(n, "a mapping is needed here")
	}
	for _, v := range values {
		key, err := r.text(v.Key)
		if err != nil {
			return nil, err
		}
		list = append(list, entry{key, v.Key, v.Value})
	}
	return list, nil
}

// mapping returns the values of a mapping that may have these keys only.
func (r *reader) mapping(n ast.Node, keys ...string) (map[string]ast.Node, error) {
	entries, err := r.entries(n)
	if err != nil {
		return nil, err
	}
	fields := map[string]ast.Node{}
	for _, e := range entries {
		if !slices.Contains(keys, e.key) {
			return nil, r.errorf(e.at, "no setting is named %.80q%s", e.key, near(e.key, keys))
		}
		fields[e.key] = e.value
	}
	return fields, nil
}

func (r *reader) items(n ast.Node, most int) ([]ast.Node, error) {
	switch n := n.(type) {
	case *ast.NullNode:
		return nil, nil
	case *ast.SequenceNode:
		if len(n.Values) > most {
			return nil, r.errorf(n, "there are more than %d items", most)
		}
		return n.Values, nil
	}
	return nil, r.errorf(n, "a list is needed here, as [a, b]")
}

// text returns the text of a scalar as it is written, so that the port 0o17 and the name 1e3 stay what they are.
func (r *reader) text(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return strings.TrimSpace(n.GetToken().Value), nil
	}
	return "", r.errorf(n, "a text is needed here, without anchor, alias or tag")
}

func (r *reader) checked(n ast.Node, check func(string) error) (string, error) {
	s, err := r.text(n)
	if err != nil {
		return "", err
	}
	if check != nil {
		if err := check(s); err != nil {
			return "", r.wrap(n, err)
		}
	}
	return s, nil
}

func (r *reader) texts(n ast.Node, check func(string) error) ([]string, error) {
	items, err := r.items(n, maxListed)
	if err != nil {
		return nil, err
	}
	list := make([]string, 0, len(items))
	for _, item := range items {
		s, err := r.checked(item, check)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}
