package egressapi

// Bounds of what is told of open connections.
const (
	// MostOpen is more than are ever open at once.
	MostOpen = 1024
	// OpenEach is how many there are in one Report, which has room for names of the longest kind.
	OpenEach = 16
)

// MovedEach is how many a Report has of Moved.
const MovedEach = 128

// Moved is what has passed so far on a connection that has begun, in bytes.
type Moved struct {
	ID       uint64 `json:"id"`
	Sent     int64  `json:"sent"`
	Received int64  `json:"received"`
}

// List asks for the connections that are open. It is put again only once the last part of the answer has come, or after
// a while.
type List struct {
	ID uint64 `json:"id"`
}

// Open is a part of the answer to a List.
type Open struct {
	ID uint64 `json:"id"`
	// List has no Rule, Secrets or Requests. DurationMS is how long the connection has been open.
	List []Connection `json:"list,omitempty"`
	// Last: no other part comes.
	Last bool `json:"last,omitempty"`
}
