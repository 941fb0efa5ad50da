// Package hostfiles holds the names of files by which a project makes programs of the host act: git, shells, editors, version
// managers, package clients, linters and agents read them when a person enters, opens or builds the project. names.txt is the
// list, with the reader, what makes it act, whether it asks, and what carrel does about the name.
//
// The package compares names. It reads no directory, holds and moves nothing, and does not look into files: package sandbox holds
// names during a run, and what ends a run moves aside what is new.
//
// Build products and installed packages are not listed, because no list of names has all of them.
package hostfiles

import (
	_ "embed"
	"slices"
	"sync"
)

// Asks says whether the reader asks a person before it acts.
type Asks int

// Unasked: it acts without a question. ByPath: it asks once for a path, and then trusts what is there later. ByContent: it asks
// again when the content changes. AsSource: the name brings no more than the source beside it does, since it names no program, or
// the trigger runs code of the project by its purpose.
const (
	Unasked Asks = iota
	ByPath
	ByContent
	AsSource
)

// Act is what carrel does about a name. A later value does more.
type Act int

// Report: it is named at the end of a run. Back: one that a run makes is moved aside. HeldPresent: one that is there is read-only
// during a run. Held: the same, and an empty directory takes the name where it is absent; Entry.Absent says where.
const (
	Report Act = iota
	Back
	HeldPresent
	Held
)

// When says where a name that is absent is placed.
type When int

// Never, only where the mount is a person's home directory, only where it is no repository, or always.
const (
	Never When = iota
	InHome
	NoRepository
	Always
)

var (
	asksNames = []string{"never", "path", "content", "source"}
	actNames  = []string{"report", "back", "held-present", "held"}
	whenNames = []string{"never", "in a home", "outside of repositories", "always"}
)

func (a Asks) String() string { return asksNames[a] }
func (a Act) String() string  { return actNames[a] }
func (w When) String() string { return whenNames[w] }

// Entry is one pattern of names.txt.
type Entry struct {
	// Pattern is a path relative to the top of a mount or, with Any, to any directory in it. Its last part may have one *, which
	// stands for any text. Letter case is ignored unless Exact.
	Pattern string
	Exact   bool
	Any     bool
	// Home: it counts only at the top of a mount that is a person's home directory.
	Home bool
	Act  Act
	// Absent says where a Held name is placed.
	Absent When
	Asks   Asks
	// Reader is the program, Trigger the ordinary action that makes it act, and Source where that is documented.
	Reader, Trigger, Source string
	// Date is when the entry was checked, as 2006-01-02.
	Date string
}

// Aside reports whether one that a run makes is moved aside at its end: nobody is asked about what is in it.
func (e Entry) Aside() bool { return e.Asks == Unasked || e.Asks == ByPath }

// weight orders entries that name the same path.
func (e Entry) weight() int {
	if e.Aside() {
		return int(e.Act) + int(Held) + 1
	}
	return int(e.Act)
}

//go:embed names.txt
var names string

// table is filled when it is first asked for. It has a sync.Once in place of a sync.OnceValue, whose closure would have the linker
// keep names.txt in programs that use Protected alone.
var table struct {
	sync.Once
	entries []Entry
	index   *index
}

func load() {
	entries, err := Parse(names)
	if err != nil {
		panic(err) // names.txt is embedded, and a test parses it
	}
	table.entries, table.index = entries, newIndex(entries)
}

// All returns the entries in the order of names.txt.
func All() []Entry {
	table.Do(load)
	return slices.Clone(table.entries)
}
