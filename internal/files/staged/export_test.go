package staged

// OnStep has a function called before each operation that changes something on disk, until undo is called.
func OnStep(f func(op string) error) (undo func()) {
	before := step
	step = f
	return func() { step = before }
}

// CannotMove has old contents copied to the journal, as to another file system, until undo is called.
func CannotMove() (undo func()) {
	canMove = false
	return func() { canMove = true }
}

// FoldCase has every directory take names in any case for the same, until undo is called.
func FoldCase() (undo func()) {
	before := foldsCase
	foldsCase = func(folder) bool { return true }
	return func() { foldsCase = before }
}

// DoNotWait has changes not wait for others until undo is called.
func DoNotWait() (undo func()) {
	before := lockWait
	lockWait = 0
	return func() { lockWait = before }
}

// HideName has directories that fold case not list a name, as one that is there under another form, until undo is called.
func HideName(name string) (undo func()) {
	hidden = name
	return func() { hidden = "" }
}
