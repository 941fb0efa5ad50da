package operation

import (
	"encoding/base64"
	"unicode/utf8"
)

// File is an operation on files of a workspace. A path that is no UTF-8 is kept in base64 instead, so that two
// operations on different names differ.
type File struct {
	name Name
	Path string `json:"path,omitempty"`
	Raw  string `json:"raw_path,omitempty"`
	// To is where it is moved.
	To    string `json:"to,omitempty"`
	RawTo string `json:"raw_to,omitempty"`
	// Tree: not one file but a stream of them.
	Tree bool `json:"tree,omitempty"`
	// Recursive: with all that is below it. Replace: what is there may be replaced.
	Recursive bool  `json:"recursive,omitempty"`
	Replace   bool  `json:"replace,omitempty"`
	Mode      int64 `json:"mode,omitempty"`
	// Search is what is looked for: a pattern of names, and a regular expression.
	Search string `json:"search,omitempty"`
	Text   string `json:"text,omitempty"`
}

// OnFile returns the operation with that name on a path.
func OnFile(n Name, path, to []byte) File {
	f := File{name: n}
	f.Path, f.Raw = textOf(path)
	f.To, f.RawTo = textOf(to)
	return f
}

// Op implements Operation.
func (f File) Op() Name { return f.name }

func textOf(path []byte) (text, raw string) {
	if utf8.Valid(path) {
		return string(path), ""
	}
	return "", base64.StdEncoding.EncodeToString(path)
}
