package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFile bounds the file, in bytes.
const maxFile = 64 << 10

// readFile returns the settings of the file at path, by the names of their keys. If path is "",
// it reads the file at optional if that exists.
func readFile(path, optional string) (map[string]value, error) {
	wanted := path != ""
	if !wanted {
		path = optional
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !wanted:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot open the configuration: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	b, err := readTrusted(f, "configuration", maxFile, false)
	if err != nil {
		return nil, err
	}
	return parse(path, b)
}

// ReadTrusted returns the content of a file that the daemon's behaviour depends on. Only root and
// this process's user may be able to change or replace it, or the error is failed_precondition.
// what names the file in errors. Of a file longer than most it returns most+1 bytes.
func ReadTrusted(path, what string, most int64) ([]byte, error) {
	return readChecked(path, what, most, false)
}

// ReadSecret is ReadTrusted for a file with secrets. If every user may read it, the error is
// permission_denied.
func ReadSecret(path, what string, most int64) ([]byte, error) {
	return readChecked(path, what, most, true)
}

func readChecked(path, what string, most int64, secret bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil, fmt.Errorf("cannot open the %s: %w: %w", what, err, errdefs.ErrInvalidArgument)
	}
	// A user who may write to the directory can replace the file.
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the %s: %w: %w", what, err, errdefs.ErrInvalidArgument), f.Close())
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(real)} {
		fi, err := os.Stat(dir)
		if err == nil && (fi.Mode()&fs.ModeSticky == 0 || !fi.IsDir()) {
			err = owned(dir, what, fi)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return readTrusted(f, what, most, secret)
}

// readTrusted reads and closes f.
func readTrusted(f *os.File, what string, most int64, secret bool) ([]byte, error) {
	defer f.Close()
	// Checked on the open file, which is the one that is read.
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read the %s: %w", what, err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("cannot use %s as %s: it is not a regular file: %w", f.Name(), what, errdefs.ErrInvalidArgument)
	}
	if err := owned(f.Name(), what, fi); err != nil {
		return nil, err
	}
	if secret && fi.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("cannot use %s as %s: every user of the host can read it (mode %#o); as root: chmod o-rwx %s, and chgrp it to "+
			"the daemon's group: %w",
			f.Name(), what, fi.Mode().Perm(), f.Name(), errdefs.ErrPermissionDenied)
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the %s: %w", what, err)
	}
	return b, nil
}

// owned refuses a file that others than root and the daemon's user may change.
func owned(path, what string, fi fs.FileInfo) error {
	if fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("cannot use %s as %s: other users may change it (mode %#o); run: chmod go-w %s: %w",
			path, what, fi.Mode().Perm(), path, errdefs.ErrFailedPrecondition)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("cannot use %s as %s: it belongs to uid %d, who is neither root nor the daemon; run: chown root %s: %w",
			path, what, st.Uid, path, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// parse returns the text and the position of each setting in a file. It is strict: an unknown
// or repeated name is an error, and so is anything except plain scalars and one level of
// nesting.
func parse(path string, b []byte) (map[string]value, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: cannot read the configuration: it is longer than %d bytes: %w", path, maxFile, errdefs.ErrInvalidArgument)
	}
	file, err := parser.ParseBytes(b, 0)
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			return nil, at(path, syntax.GetToken(), "%s", strings.Join(strings.Fields(syntax.GetMessage()), " "))
		}
		return nil, fmt.Errorf("%s: cannot read the configuration: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	w := walk{path: path, found: make(map[string]value)}
	for i, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if i > 0 {
			return nil, at(path, doc.Body.GetToken(), "there is a second document; give one")
		}
		if err := w.mapping("", doc.Body); err != nil {
			return nil, err
		}
	}
	return w.found, nil
}

type walk struct {
	path  string
	found map[string]value
}

func (w *walk) mapping(level string, n ast.Node) error {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.CommentGroupNode:
		return nil
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return at(w.path, n.GetToken(), "here must be settings, as in \"name: value\"")
	}
	seen := make(map[string]bool)
	for _, v := range values {
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			return at(w.path, v.Key.GetToken(), "%q is no name of a setting", v.Key.String())
		}
		name := key.Value
		if seen[name] {
			return at(w.path, key.Token, "%s stands here for the second time; remove one", level+name)
		}
		seen[name] = true
		if err := w.setting(level, name, key.Token, v.Value); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) setting(level, name string, tok *token.Token, v ast.Node) error {
	full := level + name
	if !slices.Contains(names(level), name) || strings.Contains(name, ".") {
		hint := ""
		if n := nearest(name, names(level)); n != "" {
			hint = fmt.Sprintf("; did you mean %q?", level+n)
		}
		return at(w.path, tok, "there is no setting %q%s", full, hint)
	}
	if !slices.ContainsFunc(keys, func(k Key) bool { return k.Name == full }) {
		return w.mapping(full+".", v)
	}
	scalar, ok := scalarText(v)
	if !ok {
		return at(w.path, v.GetToken(), "%s must be one plain value", full)
	}
	w.found[full] = value{text: scalar, from: place(w.path, v.GetToken())}
	return nil
}

// scalarText returns a scalar as it is written: 0660 stays "0660".
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func place(path string, tok *token.Token) string {
	if tok == nil || tok.Position == nil {
		return path
	}
	return fmt.Sprintf("%s:%d:%d", path, tok.Position.Line, tok.Position.Column)
}

func at(path string, tok *token.Token, format string, args ...any) error {
	return fmt.Errorf("%s: cannot read the configuration: %s: %w", place(path, tok), fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
