package fast

// What the tests look at.
var (
	Parse    = parse
	SocketOf = socketOf
)

type (
	SpawnRequest  = spawnRequest
	SpawnResponse = spawnResponse
	SignalRequest = signalRequest
	Exited        = exited
)

func (p *plain) Request() spawnRequest { return p.request() }
