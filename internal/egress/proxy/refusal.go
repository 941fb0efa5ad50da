package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Refusal returns an HTTP/1.1 response that says why a request is refused and what to do about it, which may be
// "". It is JSON, {"error", "remedy"}, if the field Accept of the request asks for JSON and plain text otherwise.
// The connection ends after it.
func Refusal(status int, accept, reason, remedy string) []byte {
	kind, body := RefusalBody(accept, reason, remedy)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n"+
		"X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), kind, len(body), body)
}

// RefusalBody returns the type and the body of the response that Refusal returns.
func RefusalBody(accept, reason, remedy string) (kind, body string) {
	if strings.Contains(strings.ToLower(accept), "application/json") {
		type refusal struct {
			Error  string `json:"error"`
			Remedy string `json:"remedy,omitempty"`
		}
		if b, err := json.Marshal(refusal{"egress: " + reason, remedy}); err == nil {
			return "application/json", string(b) + "\n"
		}
	}
	body = "egress: " + reason + "\n"
	if remedy != "" {
		body += remedy + "\n"
	}
	return "text/plain; charset=utf-8", body
}
