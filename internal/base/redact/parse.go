package redact

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Bounds of Parse: the length of a line in bytes, and the number of secrets.
const (
	maxLine    = 4096
	maxSecrets = 10_000
)

// Parse reads secrets, one a line. It ignores empty lines and lines that begin with "#". In a line
// NAME=VALUE, with or without "export " before it, the secret is the value without its quotes; a
// value that is too short to be searched for is ignored and counted.
//
// An error names the line, but not its contents; its kind is invalid_argument.
func Parse(text string) (values []string, short int, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		bad := func(why string) error {
			return fmt.Errorf("cannot take line %d for a secret: %s: %w", n, why, errdefs.ErrInvalidArgument)
		}
		switch {
		case line == "" || line[0] == '#':
			continue
		case len(line) > maxLine:
			return nil, 0, bad(fmt.Sprintf("it is longer than %d bytes", maxLine))
		case strings.IndexByte(line, 0) >= 0:
			return nil, 0, bad("it has a zero byte; the file is no text")
		case len(values) == maxSecrets:
			return nil, 0, bad(fmt.Sprintf("there are more than %d", maxSecrets))
		}
		value, named := variable(line)
		switch {
		case len(value) >= leastKnown:
			values = append(values, value)
		case named:
			short++
		default:
			return nil, 0, bad(fmt.Sprintf("it is shorter than %d bytes, and would be found everywhere; remove it", leastKnown))
		}
	}
	return values, short, nil
}

// variable returns the value of a line NAME=VALUE, or else the line, for example base64 that ends
// in "=".
func variable(line string) (value string, named bool) {
	rest := strings.TrimPrefix(line, "export ")
	name, value, ok := strings.Cut(rest, "=")
	padding := strings.Trim(value, "=") == "" && len(line) >= leastForm && len(line)%4 == 0 && strings.ToUpper(name) != name
	if !ok || name == "" || name[0] >= '0' && name[0] <= '9' || padding {
		return line, false
	}
	for i := range len(name) {
		if !word.has(name[i]) {
			return line, false
		}
	}
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		quote := value[0]
		value = value[1 : n-1]
		if quote == '"' {
			value = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\$`, `$`, "\\`", "`").Replace(value)
		}
	}
	return value, true
}
