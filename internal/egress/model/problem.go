package model

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"
)

// kindOf is what a problem is called in each API, and whether it is worth a second attempt.
type kindOf struct {
	status             int
	anthropic          string
	openAI, openAICode string
	lasts              bool
}

// problem is an error that the handler answers a request with itself.
type problem struct {
	kind *kindOf
	text string
}

// wrong is what both APIs call a request that they do not take.
const wrong = "invalid_request_error"

// The official clients repeat a request after 408, 409, 429 and 5xx, and whatever says x-should-retry: true. A budget
// that is used up is still so in a second, so it is 400: that is the status of each API's own limit on money
// ("credit balance is too low", billing_hard_limit_reached), and every client shows its text at once.
var (
	unknown    = &kindOf{http.StatusNotFound, "not_found_error", wrong, "unknown_url", true}
	badMethod  = &kindOf{http.StatusMethodNotAllowed, wrong, wrong, "", true}
	invalid    = &kindOf{http.StatusBadRequest, wrong, wrong, "", true}
	spent      = &kindOf{http.StatusBadRequest, wrong, "insufficient_quota", "billing_hard_limit_reached", true}
	forbidden  = &kindOf{http.StatusForbidden, "permission_error", wrong, "", true}
	large      = &kindOf{http.StatusRequestEntityTooLarge, "request_too_large", wrong, "", true}
	late       = &kindOf{http.StatusRequestTimeout, wrong, wrong, "", false}
	overloaded = &kindOf{http.StatusServiceUnavailable, "overloaded_error", "server_error", "", false}
	broken     = &kindOf{http.StatusBadGateway, "api_error", "server_error", "", false}
)

var (
	notJSON  = &problem{kind: invalid, text: "the body of the request is not one JSON object"}
	tooLarge = &problem{kind: large, text: "the body of the request has more than 32 MiB"}
	noRoom   = &problem{kind: overloaded, text: "too many large requests are under way; try again when one has ended"}
)

// refusal is the problem that Reserve's error is.
func refusal(err error) *problem {
	if errdefs.IsUnavailable(err) {
		return &problem{kind: overloaded, text: text(err)}
	}
	return &problem{kind: spent, text: text(err)}
}

// text is the text of an error without that of its kind.
func text(err error) string {
	s := err.Error()
	for _, kind := range []error{
		errdefs.ErrUnavailable, errdefs.ErrPermissionDenied, errdefs.ErrNotFound, errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition,
		errdefs.ErrResourceExhausted,
	} {
		s = strings.TrimSuffix(s, ": "+kind.Error())
	}
	return s
}

// say answers a request with a problem, in the form of the API.
func (h *Handler) say(w http.ResponseWriter, p *problem) {
	type anthropicError struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	type openAIError struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	var shape any
	message := "carrel: " + strings.ToValidUTF8(p.text, "")
	switch h.cfg.API {
	case Anthropic:
		shape = struct {
			Type  string         `json:"type"`
			Error anthropicError `json:"error"`
		}{"error", anthropicError{p.kind.anthropic, message}}
	default:
		e := openAIError{Message: message, Type: p.kind.openAI}
		if p.kind.openAICode != "" {
			e.Code = &p.kind.openAICode
		}
		shape = struct {
			Error openAIError `json:"error"`
		}{e}
	}
	b, _ := json.Marshal(shape) // texts always marshal
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	if p.kind.lasts {
		header.Set("X-Should-Retry", "false")
	}
	w.WriteHeader(p.kind.status)
	_, _ = w.Write(append(b, '\n'))
}
