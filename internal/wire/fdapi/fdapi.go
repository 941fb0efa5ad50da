// Package fdapi names the protocol by which a client on the local socket makes calls of
// carrel.v1 that carry file descriptors: JSON-RPC 2.0 on an upgraded connection. The bytes of
// a command then go between client and command directly and never through the daemon. It is
// specified in docs/protocols/api.md.
//
// It has no operations of its own: methods are procedures of carrel.v1, params and results
// their messages as JSON, with the names of the schema and all numbers as numbers. That is what
// encoding/json makes of the generated types, which costs a client 0.3 ms less for its first
// message than protojson, and the daemon reads it as it reads all JSON (figure "cli").
package fdapi

//	client                                        daemon
//	  │  POST /carrel.v1/descriptors HTTP/1.1        │
//	  │  Connection: Upgrade                         │
//	  │  Upgrade: carrel-fds/2                       │
//	  ├─────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────┤ 101, or an HTTP error
//	  │  CommandService/Spawn {start}                │
//	  ├─────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────┤ {commandId, pid} + fds
//	  │          bytes go over the fds               │
//	  │  CommandService/Signal, Resize               │
//	  ├─────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────┤ notification Exited
//	  │  end of connection: hang up what still runs  │

// The upgrade.
const (
	Path = "/carrel.v1/descriptors"
	// Protocol is the value of the Upgrade header; its number is the version.
	Protocol = "carrel-fds/2"
	// Prefix stands before a procedure in the path of a request over HTTP.
	Prefix = "/carrel.v1."
)

// The procedures that can be called, and the notification that the daemon sends.
const (
	Create = "WorkspaceService/Create"
	Exec   = "CommandService/Exec"
	Spawn  = "CommandService/Spawn"
	Attach = "CommandService/Attach"
	Signal = "CommandService/Signal"
	Resize = "CommandService/Resize"
	Read   = "FileService/ReadBySocket"
	Write  = "FileService/WriteBySocket"
	Exited = "Exited"
)

// Limits of one connection.
const (
	// MaxFDs is the most descriptors in one message from the daemon. A client sends one, with
	// Create, Read and Write, and else none.
	MaxFDs = 3
	// MaxCommands is how many commands may be attached to it at once.
	MaxCommands = 64
)
