// Package room bounds the memory of one carrel-egress: what is large, or held for long, takes its part before it is held, and is
// refused where there is none left. It counts what callers say, and must not allocate or wait.
package room

import "sync/atomic"

// Bytes is the size of a Room. A process takes 15 MiB for itself and up to 16 for 512 connections that are only copied; so that
// with the Room, and what waits to be collected, it stays well below the 128 MiB of its control group.
const Bytes = 40 << 20

// MemoryLimit is for debug.SetMemoryLimit: near it, memory is collected however much is in use.
const MemoryLimit = 88 << 20

// What things take, in bytes: rather more than they need on average, so that no mix of them passes the whole.
const (
	// Head is for the first bytes of a connection beyond SmallHead, up to the largest head, and what is made of it.
	Head      = 192 << 10
	SmallHead = 4 << 10
	// Web is for a request with a whole URL, and its response.
	Web = 256 << 10
	// Read is for a connection that is read, with TLS and one head; ReadHTTP2 what one of HTTP/2 may take beside it: what the
	// program has sent and the host has not taken.
	Read      = 192 << 10
	ReadHTTP2 = 512 << 10
	// Host is for a connection that is made for those; HostHTTP2 what one of HTTP/2 may take beside it: what the host has sent
	// and the program has not taken.
	Host      = 64 << 10
	HostHTTP2 = 1 << 20
	// Request is for a request on those, beside its fields.
	Request = 96 << 10
	// Model is for a connection to a model, ModelCall for a call, without its body.
	Model     = 48 << 10
	ModelCall = 160 << 10
)

// Room is what is left. Its methods may be called by many goroutines.
type Room struct{ left atomic.Int64 }

// New returns a whole Room.
func New() *Room { return Of(Bytes) }

// Of returns a Room of another size.
func Of(bytes int64) *Room {
	r := &Room{}
	r.left.Store(bytes)
	return r
}

// Take takes a part, which is given back by Give; false if there is not so much.
func (r *Room) Take(bytes int64) bool {
	if r.left.Add(-bytes) >= 0 {
		return true
	}
	r.left.Add(bytes)
	return false
}

// Give gives a part back.
func (r *Room) Give(bytes int64) { r.left.Add(bytes) }

// Left is what can be taken.
func (r *Room) Left() int64 { return r.left.Load() }
