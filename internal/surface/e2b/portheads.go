package e2b

import (
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/token"
)

// What passes between clients and the ports of sandboxes is in these tables; other fields do not. A proxy's fields would be
// believed by a program, though a client wrote them, and some fields of a response hold for more than the host that sends it.

// families are prefixes of fields that programs and clients have of their own, in both directions.
var families = []string{"X-", "Access-Control-", "Grpc-", "Mcp-", "Sec-Websocket-", "Content-", "Idempotency-", "Openai-", "Anthropic-"}

// asserted are prefixes among these by which proxies say who somebody is and where they come from.
var asserted = []string{
	"X-Forwarded-", "X-Real-", "X-Remote-", "X-Auth-Request-", "X-Original-", "X-Rewrite-", "X-Client-", "X-Cluster-", "X-Envoy-",
	"X-Webauth-", "X-Ms-", "X-Goog-", "X-Amzn-", "X-Proxy", "X-Ssl-", "X-User", "X-Authenticated", "X-Http-Method", "X-Method",
}

var requestFields = set(
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Connection", "Cookie", "Date",
	"Depth", "Destination", "Dnt", "Expect", "From", "Host", "If", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range",
	"If-Unmodified-Since", "Last-Event-Id", "Origin", "Overwrite", "Pragma", "Prefer", "Priority", "Range", "Referer", "Request-Id",
	"Save-Data", "Sec-Fetch-Dest", "Sec-Fetch-Mode", "Sec-Fetch-Site", "Sec-Fetch-User", "Sec-Gpc", "Te", "Traceparent", "Tracestate",
	"Upgrade", "Upgrade-Insecure-Requests", "User-Agent",
)

var responseFields = set(
	"Accept-Patch", "Accept-Post", "Accept-Ranges", "Age", "Allow", "Cache-Control", "Connection", "Cross-Origin-Embedder-Policy",
	"Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy", "Date", "Deprecation", "Digest", "Etag", "Expires", "Last-Modified",
	"Link", "Location", "Origin-Agent-Cluster", "Permissions-Policy", "Pragma", "Preference-Applied", "Ratelimit", "Ratelimit-Limit",
	"Ratelimit-Policy", "Ratelimit-Remaining", "Ratelimit-Reset", "Referrer-Policy", "Refresh", "Request-Id", "Retry-After", "Server",
	"Server-Timing", "Service-Worker-Allowed", "Set-Cookie", "Sourcemap", "Timing-Allow-Origin", "Traceparent", "Tracestate",
	"Transfer-Encoding", "Upgrade", "Vary", "Www-Authenticate",
)

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// inFamily reports whether a field is a program's own. Programs behind CGI read "_" as "-".
func inFamily(name string) bool {
	return !strings.Contains(name, "_") && hasPrefix(name, families) && !hasPrefix(name, asserted)
}

func hasPrefix(name string, of []string) bool {
	for _, p := range of {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// keepOnly takes out of a header what is neither in the table nor in a family.
func keepOnly(h http.Header, table map[string]bool) {
	for name := range h {
		if key := http.CanonicalHeaderKey(name); !table[key] && !inFamily(key) {
			delete(h, name)
		}
	}
}

// hasToken reports whether a text has a token of carrel's in it, as it is, as an API key of E2B or in base64, whatever stands
// around it.
func hasToken(text string) bool {
	if strings.Contains(text, token.Prefix) || strings.Contains(strings.ToLower(text), hex.EncodeToString([]byte(token.Prefix))) {
		return true
	}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !isBase64(r) }) {
		word = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(word, "="))
		b, err := base64.RawStdEncoding.DecodeString(word)
		if err == nil && strings.Contains(string(b), token.Prefix) {
			return true
		}
		if err == nil && strings.Contains(strings.ToLower(string(b)), hex.EncodeToString([]byte(token.Prefix))) {
			return true
		}
	}
	return false
}

func isBase64(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("+/-_=", r)
}

// trailed is the body of a response, behind which trailers come: only those of gRPC pass.
type trailed struct {
	io.ReadCloser
	res *http.Response
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		onlyGRPC(t.res.Trailer)
	}
	return n, err
}

func onlyGRPC(h http.Header) {
	for name := range h {
		if !strings.HasPrefix(http.CanonicalHeaderKey(name), "Grpc-") {
			delete(h, name)
		}
	}
}
