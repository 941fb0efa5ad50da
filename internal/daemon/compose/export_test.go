package compose

// Settle waits for what the gate does beside requests.
func (f *Flow) Settle() { f.gate.Settle() }
