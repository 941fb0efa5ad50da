package ca

// Kept returns how many certificates are kept.
func Kept(l *Leaves) int { return len(l.kept) }
