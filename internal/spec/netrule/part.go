package netrule

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// Protocol is what is spoken on a connection.
type Protocol string

// The protocols. Anything is every one, of connections that are neither of the others too.
const (
	Anything Protocol = ""
	TLS      Protocol = "tls"
	HTTP     Protocol = "http" // without TLS
)

const scheme = "://"

// Narrow reports whether the rule is about a part of what is sent to its hosts: one protocol, or some requests.
func (r *Rule) Narrow() bool { return r.Protocol != Anything || r.requests() }

// requests reports whether the rule is judged request by request.
func (r *Rule) requests() bool { return r.Methods != "" || r.Path != "" || r.Protocol == HTTP }

// InsideTLS reports whether requests have to be read inside TLS to judge by the rule: that takes an authority which the
// programs of the workspace trust.
func (r *Rule) InsideTLS() bool {
	return r.requests() && r.Protocol != HTTP && r.Ports != Ports{80, 80}
}

// cutPart reads what stands around the host and its ports, and returns those.
func (r *Rule) cutPart(s string) (rest string, err error) {
	rest = s
	if methods, after, ok := strings.Cut(rest, " "); ok {
		if methods != strings.ToUpper(methods) {
			return "", badRule(s, "it has a space, before which only methods stand, in capital letters; write for example GET,HEAD example.org")
		}
		all, err := httprule.ParseMethods(strings.Split(methods, ","))
		if err != nil {
			return "", badRule(s, "%v; methods stand before the host, for example GET,HEAD example.org", plainText(err))
		}
		if strings.HasPrefix(after, "@") {
			return "", badRule(s, "a set takes no methods; name the hosts")
		}
		r.Methods, rest = strings.Join(all, ","), after
	}
	var anything bool
	if name, after, ok := strings.Cut(rest, scheme); ok && !strings.Contains(name, "/") {
		rest = after
		switch strings.ToLower(name) {
		case "tcp":
			anything = true
		case "tls":
			r.Protocol = TLS
		case "http":
			r.Protocol = HTTP
		default:
			return "", badRule(s, "it is a URL; write only its host, and a port if it is neither 80 nor 443; before the host stands tls://, "+
				"http:// or nothing, and a path may stand behind it")
		}
	}
	if at := pathAt(rest); at < len(rest) {
		path := rest[at:]
		if all, ok := strings.CutSuffix(path, "/**"); ok {
			path = all + "/*"
		}
		p, err := httprule.ParsePattern(path)
		if err != nil {
			return "", badRule(s, "%v", plainText(err))
		}
		r.Path, rest = p.Text(), rest[:at]
	}
	if anything && r.requests() {
		return "", badRule(s, "requests are of HTTP, and not of any protocol; leave tcp:// out")
	}
	return rest, nil
}

// pathAt returns where the path begins behind a host; its length if there is none. What stands behind an address is the
// length of a network.
func pathAt(s string) int {
	at := strings.IndexByte(s, '/')
	if at < 0 || strings.HasPrefix(s, "[") || at > 0 && strings.Trim(s[:at], "0123456789.") == "" {
		return len(s)
	}
	return at
}

// checkPart refuses a protocol or requests where they have no meaning.
func (r *Rule) checkPart(s string) error {
	switch {
	case r.Action != Allow && r.Action != Deny:
		return badRule(s, "a person is asked about a whole host, not about requests or a protocol; ask about the host, and name requests in "+
			"rules that allow or deny")
	case r.Net.IsValid():
		return badRule(s, "a protocol, methods and paths are for hosts with a name; leave them out, or name the host")
	}
	return nil
}

// plainText is the text of an error without that of its kind, which the caller adds.
func plainText(err error) string {
	text := err.Error()
	if at := strings.LastIndex(text, ": "); at >= 0 {
		text = text[:at]
	}
	return text
}
