package operation

// Port is an operation on a TCP port of a workspace's loopback.
type Port struct {
	name Name
	Port int `json:"port"`
}

// OnPort returns the operation with that name on a port.
func OnPort(n Name, port int) Port { return Port{n, port} }

// Op implements Operation.
func (p Port) Op() Name { return p.name }
