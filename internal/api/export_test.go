package api

import (
	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/principal"
)

// Routes lists the paths of the table of routes; RuleOf is what a call of one takes, 0 if
// it has no rule.
func Routes() []string {
	var out []string
	for path := range routes {
		out = append(out, path)
	}
	return out
}

func RuleOf(path string) principal.Permission { return routes[path].rule.Needs() }

// Handled reports whether the server has a handler for path.
func (s *Server) Handled(path string) bool { return s.handlers[path] != nil }

// WithoutRoute takes a row out of the table until the function returned is called.
func WithoutRoute(path string) (restore func()) {
	row := routes[path]
	delete(routes, path)
	return func() { routes[path] = row }
}

// WithoutRule takes only the rule away.
func WithoutRule(path string) (restore func()) {
	row := routes[path]
	routes[path] = route{action.Kind(""), row.maxRequest, row.stream}
	return func() { routes[path] = row }
}
