package e2b

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/gen/e2b/filesystem/filesystemconnect"
	"github.com/carrel-dev/carrel/gen/e2b/process/processconnect"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

// statuses are the HTTP codes that SDKs expect. What is not here is 500.
var statuses = map[connect.Code]int{
	connect.CodeNotFound: 404, connect.CodeInvalidArgument: 400, connect.CodeOutOfRange: 400, connect.CodePermissionDenied: 403,
	connect.CodeUnauthenticated: 401, connect.CodeAlreadyExists: 409, connect.CodeFailedPrecondition: 409, connect.CodeAborted: 409,
	connect.CodeResourceExhausted: 429, connect.CodeUnavailable: 503, connect.CodeUnimplemented: 501, connect.CodeDeadlineExceeded: 504,
}

// fail answers with an error in the form of E2B's API.
func fail(w http.ResponseWriter, err error) {
	status, ok := statuses[errcode.Code(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	failAs(w, status, errtext.Text(err))
}

// refuse answers what is not admitted. The body was not read; on HTTP/1.1 it would be taken for the next request.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second)) // of what comes of it, so that the answer arrives
	answerWith(w, r, err)
}

// answerWith answers with an error in the form that the caller's client reads: of a call of a service, whose streams cannot say
// it by the status alone, in that of Connect.
func answerWith(w http.ResponseWriter, r *http.Request, err error) {
	if calls(r) && inConnect.IsSupported(r) {
		_ = inConnect.Write(w, r, errcode.ToWire(err)) // as in answer
		return
	}
	fail(w, err)
}

var inConnect = connect.NewErrorWriter()

// calls reports whether a request is a call of one of the services.
func calls(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/"+processconnect.ProcessName+"/") ||
		strings.HasPrefix(r.URL.Path, "/"+filesystemconnect.FilesystemName+"/")
}

func failAs(w http.ResponseWriter, status int, text string) {
	answer(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, text})
}

// answer sends a value as JSON; nil is no body.
func answer(w http.ResponseWriter, status int, v any) {
	if v == nil {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that has gone needs no answer
}

func notFound(format string, args ...any) error {
	return fmt.Errorf("cannot find it: "+format+": %w", append(args, errdefs.ErrNotFound)...)
}

func forbidden(text string) error {
	return fmt.Errorf("cannot serve this: %s: %w", text, errdefs.ErrPermissionDenied)
}

func wrong(format string, args ...any) error {
	return fmt.Errorf("cannot use this request: "+format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

func notImplemented(format string, args ...any) error {
	return fmt.Errorf("cannot do this yet: "+format+": %w", append(args, errdefs.ErrNotImplemented)...)
}
