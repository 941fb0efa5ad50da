package loop

// Parts are the names and texts of the parts of the system prompt.
func Parts(c Context) (all [][2]string) {
	for _, p := range parts(c) {
		all = append(all, [2]string{p.name, p.text})
	}
	return all
}
