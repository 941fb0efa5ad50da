package checkpoint

import (
	"crypto/ed25519"
	"errors"
)

// publicOf returns the public key of an Ed25519 seed.
func publicOf(seed []byte) (ed25519.PublicKey, error) {
	pub, ok := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("not an Ed25519 key")
	}
	return pub, nil
}
