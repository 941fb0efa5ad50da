package begin

// What this package says.
const (
	ControlFD = controlFD
	Setup     = setup
	Ready     = ready
)
