package api

// Routes lists the paths that are served.
func Routes() []string {
	var out []string
	for path := range routes {
		out = append(out, path)
	}
	return out
}

// Handled reports whether the server has a handler for path.
func (s *Server) Handled(path string) bool { return s.handlers[path] != nil }

// WithoutRoute takes a row out of the table until the function returned is called.
func WithoutRoute(path string) (restore func()) {
	row := routes[path]
	delete(routes, path)
	return func() { routes[path] = row }
}

// Taken is taken.
var Taken = taken
