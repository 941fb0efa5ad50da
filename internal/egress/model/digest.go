package model

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
)

// Call says what went to the host and what came from it, without its text. It is made of the bytes that this process sent and
// read, so no program can have it say something else.
type Call struct {
	// Sent is the SHA-256 in hexadecimal of the body that the host got; "" if the host got none.
	Sent      string
	SentBytes int64
	// Came is that of the body of its response, as far as it came; "" if there was no response.
	Came      string
	CameBytes int64
	// Status is that of the response; 0 if there was none.
	Status int
	// Whole: the response came to its end.
	Whole bool
}

// digest returns the SHA-256 of what is sent to the host. It reads what is held anyway.
func (b *body) digest() string {
	h := sha256.New()
	for _, p := range b.pieces {
		_, _ = h.Write(p) // never fails
	}
	return hexOf(h)
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
