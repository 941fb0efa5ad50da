package keylock

// Names is how many names are remembered.
func (t *Turns) Names() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of)
}
