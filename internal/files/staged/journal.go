package staged

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"

	"golang.org/x/sys/unix"
)

// name is a path in a journal. JSON takes texts alone, and a name may have any bytes.
type name string

// MarshalText writes a name with escapes.
func (n name) MarshalText() ([]byte, error) { return []byte(strconv.QuoteToASCII(string(n))), nil }

// UnmarshalText reads what MarshalText wrote.
func (n *name) UnmarshalText(b []byte) error {
	s, err := strconv.Unquote(string(b))
	*n = name(s)
	return err
}

// action is what is done to one name.
type action string

const (
	create  action = "create"
	replace action = "replace"
	remove  action = "remove"
	// chmod changes the mode of a directory that stays. It is done last, after the commit mark.
	chmod action = "chmod"
)

// item is one file, directory or link of a tree that is put or removed with one rename. Rel is relative to the tree's top,
// "" for the top itself.
type item struct {
	Rel    name   `json:"rel"`
	Stamp  stamp  `json:"stamp"`
	Target name   `json:"target,omitempty"`
	Digest string `json:"digest,omitempty"` // of a file whose times do not tell enough
}

// op is one operation on one name of the lower directory.
type op struct {
	Path name   `json:"path"`
	Do   action `json:"do"`
	// Temp is a name beside it: of what is new before the exchange, and of what was there after it.
	Temp name `json:"temp"`
	// Old is what was there, and New what is put there. A chmod has the directory itself as Old.
	Old []item `json:"old,omitempty"`
	New []item `json:"new,omitempty"`
	// Open and Mode are the modes of a directory during the change, and after it.
	Open uint32 `json:"open,omitempty"`
	Mode uint32 `json:"mode,omitempty"`
	// Base: what was there is older than the run. In is that for the directory that it is in.
	Base bool `json:"base,omitempty"`
	In   bool `json:"in,omitempty"`

	// source of New; the plan alone has it, and the journal does not.
	nodes []node
	from  source
}

// journal is what is known of a transaction.
type journal struct {
	ID string `json:"id"`
	// Dev and Ino are those of the lower directory.
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
	// Undoes is the transaction that this one undoes.
	Undoes string `json:"undoes,omitempty"`
	// Copied: what was there is copied before it is exchanged, since it cannot be moved to the journal.
	Copied bool  `json:"copied,omitempty"`
	Ops    []*op `json:"ops"`
}

// add adds an operation.
func (j *journal) add(o *op) { j.Ops = append(j.Ops, o) }

// names gives the operations their temporary names.
func (j *journal) names() {
	b := make([]byte, 8)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	for i, o := range j.Ops {
		o.Temp = name(".carrel-" + hex.EncodeToString(b) + "-" + strconv.Itoa(i))
	}
}

// node is what is to be made: one file, directory or link of a tree.
type node struct {
	rel      string
	mode     uint32 // with the type
	target   string
	uid, gid int // -1: who makes it
	mtime    *[2]int64
	// content is that of a file; nil is the source's.
	content []byte
	attrs   attrs
}

// attrs says whose extended attributes a file gets.
type attrs int

const (
	noAttrs     attrs = iota
	sourceAttrs       // those of the source
	oldAttrs          // those of the file that it replaces
)

// source is where the contents of nodes are: a path in a directory.
type source struct {
	in   folder
	path string
}

// nodesOf are what makes a tree again as it was.
func nodesOf(items []item) (all []node) {
	for _, i := range items {
		s := i.Stamp
		n := node{rel: string(i.Rel), mode: s.Mode, target: string(i.Target), uid: int(s.UID), gid: int(s.GID), attrs: sourceAttrs}
		switch s.kind() {
		case unix.S_IFREG:
			n.mtime = &s.MTime
		case unix.S_IFLNK:
			n.mtime, n.attrs = &s.MTime, noAttrs
		}
		all = append(all, n)
	}
	return all
}
