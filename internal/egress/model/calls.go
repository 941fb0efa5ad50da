package model

import (
	"net/http"
	"strings"
)

// call is something that a program may ask for.
type call struct {
	api    API
	method string
	// path is as the program has it; one that ends with "/" is followed by the name of a model.
	path string
	// model: the body is JSON that names a model. counted: the model works, and tokens are used.
	model, counted bool
	// chat: a stream tells usage only if that was asked for.
	chat bool
}

// table has every call there is. What works later, such as batches, and what was stored for others is not in it: it could
// not be counted, or is not the workspace's.
var table = []call{
	{api: Anthropic, method: http.MethodPost, path: "/v1/messages", model: true, counted: true},
	{api: Anthropic, method: http.MethodPost, path: "/v1/messages/count_tokens", model: true},
	{api: Anthropic, method: http.MethodGet, path: "/v1/models"},
	{api: Anthropic, method: http.MethodGet, path: "/v1/models/"},
	{api: OpenAI, method: http.MethodPost, path: "/v1/responses", model: true, counted: true},
	{api: OpenAI, method: http.MethodPost, path: "/v1/responses/compact", model: true, counted: true},
	{api: OpenAI, method: http.MethodPost, path: "/v1/responses/input_tokens", model: true},
	{api: OpenAI, method: http.MethodPost, path: "/v1/chat/completions", model: true, counted: true, chat: true},
	{api: OpenAI, method: http.MethodPost, path: "/v1/completions", model: true, counted: true, chat: true},
	{api: OpenAI, method: http.MethodPost, path: "/v1/embeddings", model: true, counted: true},
	{api: OpenAI, method: http.MethodGet, path: "/v1/models"},
	{api: OpenAI, method: http.MethodGet, path: "/v1/models/"},
}

// find returns the call of a request. Otherwise status says why there is none.
func (h *Handler) find(r *http.Request) (c call, status int) {
	status = http.StatusNotFound
	for _, c := range table {
		if c.api != h.cfg.API || !c.is(r) {
			continue
		}
		if c.method == r.Method {
			return c, 0
		}
		status = http.StatusMethodNotAllowed
	}
	return c, status
}

// is reports whether a request has the path of a call. Paths with escapes are none, so that there is one reading.
func (c *call) is(r *http.Request) bool {
	if r.URL.RawPath != "" || r.URL.Opaque != "" {
		return false
	}
	name, below := strings.CutPrefix(versioned(r.URL.Path), c.path)
	if !strings.HasSuffix(c.path, "/") {
		return below && name == ""
	}
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:@/"
	return below && name != "" && strings.Trim(name, letters) == "" && !strings.Contains("/"+name+"/", "/../") &&
		!strings.Contains("/"+name+"/", "/./") && !strings.Contains("/"+name+"/", "//")
}

// version begins every path of both APIs.
const version = "/v1"

// versioned returns a path with the version. Some programs take the name of the API for what has the version already, as SDKs do
// that append /messages.
func versioned(path string) string {
	if strings.HasPrefix(path, version+"/") {
		return path
	}
	return version + path
}

// upstream returns the path at the host. The base of OpenAI has the version already.
func (h *Handler) upstream(path string) string {
	path = versioned(path)
	if h.cfg.API == OpenAI {
		path = strings.TrimPrefix(path, version)
	}
	return h.base.Path + path
}
