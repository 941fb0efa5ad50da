package netns

// The parts of Open, for tests that try them without the rights.
var (
	Route    = route
	Redirect = redirect
)
