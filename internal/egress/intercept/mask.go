package intercept

import "net/http"

// Mask hides a text in what a host answers, in the way that an Interceptor hides secrets.
type Mask struct{ r *replacer }

// NewMask returns a Mask that shows a text in the place of a secret.
func NewMask(secret, shown string) *Mask {
	r := &replacer{}
	r.add("", secret, shown)
	return &Mask{r}
}

// Header hides the secret in all values of a header.
func (m *Mask) Header(h http.Header) { m.r.header(h) }

// Bytes returns b without the secret, up to rest: that is an end of b which may be the beginning of the secret, and has
// to come before what follows b. It is empty if b is the last there is. Both may be part of b.
func (m *Mask) Bytes(b []byte, last bool) (out, rest []byte) { return m.r.bytes(b, last, ignore) }

// Reason says for people why TLS with a host failed, and nothing that the host wrote.
func Reason(err error) string { return reason(err) }
