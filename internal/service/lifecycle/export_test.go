package lifecycle

// Stuck and Starved are stuck and starved with another /proc.
var (
	Stuck   = stuck
	Starved = starved
)
