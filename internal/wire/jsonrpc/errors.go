package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// Codes of JSON-RPC 2.0, section 5.1.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// kinds maps error kinds to codes and names on the wire, in both directions. Our
// peers use the name, which is in data.kind; the code is for peers that ignore
// data. Rows may be added, never renumbered.
var kinds = []struct {
	code int
	name string
	err  error
	is   func(error) bool
}{
	{-32001, "unknown", errdefs.ErrUnknown, errdefs.IsUnknown},
	{-32002, "invalid_argument", errdefs.ErrInvalidArgument, errdefs.IsInvalidArgument},
	{-32003, "not_found", errdefs.ErrNotFound, errdefs.IsNotFound},
	{-32004, "already_exists", errdefs.ErrAlreadyExists, errdefs.IsAlreadyExists},
	{-32005, "permission_denied", errdefs.ErrPermissionDenied, errdefs.IsPermissionDenied},
	{-32006, "resource_exhausted", errdefs.ErrResourceExhausted, errdefs.IsResourceExhausted},
	{-32007, "failed_precondition", errdefs.ErrFailedPrecondition, errdefs.IsFailedPrecondition},
	{-32008, "conflict", errdefs.ErrConflict, errdefs.IsConflict},
	{-32009, "not_modified", errdefs.ErrNotModified, errdefs.IsNotModified},
	{-32010, "aborted", errdefs.ErrAborted, errdefs.IsAborted},
	{-32011, "out_of_range", errdefs.ErrOutOfRange, errdefs.IsOutOfRange},
	{-32012, "not_implemented", errdefs.ErrNotImplemented, errdefs.IsNotImplemented},
	{-32013, "internal", errdefs.ErrInternal, errdefs.IsInternal},
	{-32014, "unavailable", errdefs.ErrUnavailable, errdefs.IsUnavailable},
	{-32015, "data_loss", errdefs.ErrDataLoss, errdefs.IsDataLoss},
	{-32016, "unauthenticated", errdefs.ErrUnauthenticated, errdefs.IsUnauthorized},
	{-32017, "deadline_exceeded", context.DeadlineExceeded, errdefs.IsDeadlineExceeded},
	{-32018, "canceled", context.Canceled, errdefs.IsCanceled},
}

// CodeUndelivered says that a request was carried out and its reply could not be handed over, for want of descriptors
// or because it is too long. Its kind is resource_exhausted.
const CodeUndelivered = -32050

// Undelivered reports whether a request was carried out, though its reply did not arrive: what it made must be ended.
func Undelivered(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == CodeUndelivered
}

func undelivered(method string, err error) error {
	return &Error{
		Code: CodeUndelivered, Message: fmt.Sprintf("cannot hand over the result of %s: %s", method, errtext.Text(err)),
		kind: errdefs.ErrResourceExhausted,
	}
}

// untaken is the error of a message whose descriptors this process could not take, because it has no more of them. The
// kernel has closed them.
func untaken(declared, came int) error {
	return &Error{
		Code: CodeUndelivered, Message: fmt.Sprintf("cannot take the %d fds of a message: %d of them came, and this process has as many "+
			"open as it may; try again, or raise its limit (LimitNOFILE)", declared, came),
		kind: errdefs.ErrResourceExhausted,
	}
}

// Error is an error that was received or will be sent. errdefs.IsNotFound and the
// like report its kind. A received one has the text of the peer.
type Error struct {
	Code    int
	Message string
	kind    error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the errdefs kind, if there is one.
func (e *Error) Unwrap() error { return e.kind }

// MethodNotFound returns the error of a handler for a method that it does not serve.
func MethodNotFound(method string) error {
	return &Error{
		Code: CodeMethodNotFound, Message: fmt.Sprintf("cannot call %q: there is no such method", method),
		kind: errdefs.ErrNotImplemented,
	}
}

// Hangup wraps the error of a handler after which the connection must end: the error
// is sent as the reply, and then the connection is closed.
func Hangup(err error) error { return &hangup{err} }

type hangup struct{ err error }

func (h *hangup) Error() string { return h.err.Error() }
func (h *hangup) Unwrap() error { return h.err }

type errorData struct {
	Kind string `json:"kind"`
}

type wireError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// toWire turns the error of a handler into an error object.
func toWire(err error) wireError {
	w := wireError{Code: CodeInternal, Message: clip(errtext.Text(err))}
	var e *Error
	if errors.As(err, &e) {
		w.Code = e.Code
	}
	for _, k := range kinds {
		if k.is(err) {
			if e == nil {
				w.Code = k.code
			}
			w.Data, _ = json.Marshal(errorData{k.name}) // a struct of one string cannot fail
			break
		}
	}
	return w
}

// fromWire turns an error object into an error. Data of another shape than ours is
// ignored, so that the error is not lost.
func fromWire(raw []byte) (*Error, error) {
	var w wireError
	if err := strictjson.UnmarshalNewer(raw, &w); err != nil {
		return nil, err
	}
	var d errorData
	_ = json.Unmarshal(w.Data, &d)
	e := &Error{Code: w.Code, Message: w.Message}
	for _, k := range kinds {
		if k.name == d.Kind || d.Kind == "" && k.code == w.Code {
			e.kind = k.err
			break
		}
	}
	return e, nil
}

// clip cuts text at maxMessage bytes without splitting a character.
func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	n := maxMessage
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
