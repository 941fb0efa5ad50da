package patch

// New returns the content that each file has afterwards, by the path that the patch names.
func New(p *Prepared) map[string]string {
	all := map[string]string{}
	for _, f := range p.files {
		all[f.name()] = string(f.new)
	}
	return all
}

// OnStep has a function called before each operation that changes something on disk, until undo is called.
func OnStep(f func(op string) error) (undo func()) {
	before := step
	step = f
	return func() { step = before }
}
