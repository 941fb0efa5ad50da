package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// word is a text that some servers write as a number.
type word string

// UnmarshalJSON implements json.Unmarshaler.
func (w *word) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) != nil {
		s = string(b)
	}
	*w = word(clip(s, 64))
	return nil
}

// wireError is what all wires call an error, in a body or in a stream.
type wireError struct {
	Type    word   `json:"type"`
	Code    word   `json:"code"`
	Message string `json:"message"`
}

// UnmarshalJSON implements json.Unmarshaler. Some servers have a text in place of the object.
func (e *wireError) UnmarshalJSON(b []byte) error {
	type plain wireError
	if json.Unmarshal(b, (*plain)(e)) == nil {
		return nil
	}
	var s string
	if json.Unmarshal(b, &s) != nil {
		s = "it does not say why"
	}
	*e = wireError{Message: s}
	return nil
}

// refused is an error that the provider told.
type refused struct {
	text string
	kind error
}

func (r *refused) Error() string { return r.text }
func (r *refused) Unwrap() error { return r.kind }

// kinds maps types and codes of errors in streams. Any other is unavailable.
var kinds = map[word]error{
	"invalid_request_error": errdefs.ErrInvalidArgument, "invalid_prompt": errdefs.ErrInvalidArgument,
	"authentication_error": errdefs.ErrUnauthenticated, "permission_error": errdefs.ErrPermissionDenied,
	"not_found_error": errdefs.ErrNotFound, "rate_limit_error": errdefs.ErrResourceExhausted,
	"rate_limit_exceeded": errdefs.ErrResourceExhausted, "insufficient_quota": errdefs.ErrResourceExhausted,
}

// during returns the error for a stream that this ended.
func (e *wireError) during() error {
	if e == nil {
		e = &wireError{}
	}
	kind := kinds[e.Code]
	if kind == nil {
		kind = kinds[e.Type]
	}
	if kind == nil {
		kind = errdefs.ErrUnavailable
	}
	text := "it failed while it answered"
	if said := e.said(); said != "" {
		text += " and says: " + said
	}
	return &refused{text + "; ask again", kind}
}

// said is the text of a server for people, "" if it has none.
func (e *wireError) said() string {
	var words []string
	for _, w := range []string{string(e.Type), string(e.Code)} {
		if w = clean(w); w != "" && w != "null" && (len(words) == 0 || words[0] != w) {
			words = append(words, w)
		}
	}
	text := clip(clean(e.Message), maxSaid)
	if len(words) == 0 {
		return text
	}
	return strings.TrimPrefix(text+" ("+strings.Join(words, ", ")+")", " ")
}

// spent reports whether a quota is used up, so that another attempt is useless. The way out of a workspace uses the code
// billing_hard_limit_reached for carrel's own budgets.
func (e *wireError) spent() bool {
	return e.Code == "insufficient_quota" || e.Type == "insufficient_quota" || e.Code == "billing_hard_limit_reached"
}

// wayOut is what errors begin with that the way out of a workspace answers in place of the provider.
const wayOut = "carrel: "

// maxSaid bounds what of a server's text is shown, in bytes.
const maxSaid = 300

// parseError reads the body of an answer that is no success.
func parseError(body []byte) *wireError {
	var v struct {
		Error   *wireError `json:"error"`
		Message string     `json:"message"`
		Detail  word       `json:"detail"`
	}
	if strictjson.Depth(body) > MaxDepth || json.Unmarshal(body, &v) != nil {
		return &wireError{}
	}
	switch {
	case v.Error != nil:
		return v.Error
	case v.Message != "":
		return &wireError{Message: v.Message}
	}
	return &wireError{Message: string(v.Detail)}
}

// refusal is the error of an answer with a status that is no success.
func (c *Client) refusal(model string, status int, e *wireError) error {
	row := c.cfg.Provider
	says := ""
	if said := e.said(); said != "" {
		says = " and says: " + said
	}
	no := func(kind error, format string, a ...any) error { return &refused{fmt.Sprintf(format, a...), kind} }
	switch {
	case status >= 300 && status < 400:
		return no(errdefs.ErrFailedPrecondition, "it answers %d, a redirect, and none is followed; set the base URL to where the API is", status)
	case status >= 400 && e.spent():
		return no(errdefs.ErrResourceExhausted, "its quota or budget for this is used up%s; raise it where it is set", says)
	case status == http.StatusUnauthorized: // some repeat a part of the key
		where := "that carrel keeps for it is the provider's" // c.host is a name of carrel's then
		if c.cfg.Key != nil && row.KeyVariable != "" {
			where = fmt.Sprintf("in %s is of %s", row.KeyVariable, c.host)
		}
		return no(errdefs.ErrUnauthenticated, "it does not take the key; see that the key %s, and still valid", where)
	case status == http.StatusPaymentRequired:
		return no(errdefs.ErrResourceExhausted, "its account has no money left%s; add some there", says)
	case status == http.StatusForbidden:
		return no(errdefs.ErrPermissionDenied,
			"it forbids this%s; see whether the key may use the model %s, and whether this place may reach it", says, quoted(model))
	case status == http.StatusNotFound:
		return no(errdefs.ErrNotFound, "it has no model %s, or no %s%s; correct the model or the base URL", quoted(model), c.wire.path(), says)
	case status == http.StatusTooManyRequests:
		return no(errdefs.ErrResourceExhausted, "it has too many requests of this key%s; wait, or ask for less at once", says)
	case status == http.StatusRequestEntityTooLarge:
		return no(errdefs.ErrInvalidArgument, "the request is too large for it%s; shorten the conversation", says)
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusConflict:
		return no(errdefs.ErrInvalidArgument, "it refuses the request with %d%s; change what is sent, or use another model", status, says)
	case status >= 200 && status < 300:
		return no(errdefs.ErrFailedPrecondition, "it answers %d without a stream%s; see that the base URL is of an API of the wire %s",
			status, says, row.Wire)
	}
	if said, ours := strings.CutPrefix(e.Message, wayOut); ours && status == http.StatusBadGateway {
		return no(errdefs.ErrUnavailable, "%s; see that its url in egress.yaml is right, and that this host may reach it",
			clip(clean(said), maxSaid))
	}
	return no(errdefs.ErrUnavailable, "it fails with %d%s; try again later", status, says)
}

// broken is the error of an answer that cannot be used.
func broken(why error) error {
	return fmt.Errorf("its answer cannot be used: %w; ask again: %w", why, errdefs.ErrDataLoss)
}

// explain returns the error of Stream, without the key.
func (c *Client) explain(model string, err error) error {
	return &failure{c.hide(fmt.Sprintf("cannot ask %s at %s: %s", quoted(model), c.host, errtext.Text(err))), err}
}

// failure is an error of this package with its text. Its tree keeps the kinds.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

// hide masks the key in a text, and words that look like keys.
func (c *Client) hide(text string) string {
	if c.cfg.Key != nil {
		if key := c.cfg.Key(); len(key) >= 4 {
			text = strings.ReplaceAll(text, key, "***")
		}
	}
	for i := 0; ; {
		at := strings.Index(text[i:], "sk-")
		if at < 0 {
			return text
		}
		begin := i + at
		end := begin + len("sk-")
		for end < len(text) && (!unnamed(rune(text[end])) || text[end] == '*' || text[end] == '.') {
			end++
		}
		i = end
		if end-begin >= 12 && (begin == 0 || unnamed(rune(text[begin-1]))) {
			text = text[:begin] + "***" + text[end:]
			i = begin + len("***")
		}
	}
}

// clean turns a foreign text into one line that is safe to show.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, s[:min(len(s), 4<<10)])
	return strings.Join(strings.Fields(s), " ")
}

// clip returns the beginning of a text of at most so many bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// quoted returns a name for an error message.
func quoted(name string) string { return clip(clean(name), MaxName) }
