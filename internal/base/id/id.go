// Package id holds the typed, validated identifiers that all other packages use.
// The Parse function of a type checks outside text once, where it is received.
//
// It must not import anything of carrel, nor read clocks, files or randomness
// other than through the New functions.
package id

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Workspace is the derived name of a workspace: a prefix, a hyphen and the
// first eight hexadecimal digits of SHA-256 of its key, with "-1", "-2" …
// appended on collision. It is safe as a path component, a Unix user name and
// a cgroup name, and at most 31 bytes long.
type Workspace string

// Key is the external name of a workspace: a chat id, a project, any text.
// It is data only and never part of a path, an argument list or a user name.
type Key string

// Command identifies one command started in a workspace: "c-" and 16
// hexadecimal digits. It is unique across workspaces and restarts.
type Command string

// Approval identifies one question to a person: "ap-" and 16 hexadecimal digits. It
// is unique across restarts.
type Approval string

// Trace identifies the records of one request: 32 hexadecimal digits, the form of
// a W3C trace-id.
type Trace string

const (
	// MaxKey is the longest key, in bytes.
	MaxKey = 512
	// MaxPrefix is the longest name prefix, in bytes.
	MaxPrefix = 12
	// MaxCollision is the highest suffix tried when derived names collide.
	MaxCollision = 9999
	// DefaultPrefix is the default prefix of workspace names.
	DefaultPrefix = "ws"

	hexDigits = 8
)

// ParseKey checks that s may serve as a key: 1 to MaxKey bytes of valid UTF-8
// without control, line-separator or bidirectional formatting characters and
// without leading or trailing white space.
func ParseKey(s string) (Key, error) {
	switch {
	case s == "":
		return "", invalid("key", s, "it is empty; give the workspace a key, for example a project or chat id")
	case len(s) > MaxKey:
		return "", invalid("key", s[:16]+"…", fmt.Sprintf("it is %d bytes long; at most %d are allowed", len(s), MaxKey))
	case !utf8.ValidString(s):
		return "", invalid("key", s, "it is not valid UTF-8")
	case strings.TrimSpace(s) != s:
		return "", invalid("key", s, "it starts or ends with white space")
	}
	for _, r := range s {
		if unicode.IsControl(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) || unicode.Is(unicode.Cf, r) {
			return "", invalid("key", s, fmt.Sprintf("it contains the invisible character %U", r))
		}
	}
	return Key(s), nil
}

// ParsePrefix checks a configurable name prefix: a lower-case letter followed
// by up to eleven lower-case letters or digits, with or without one trailing
// hyphen, which is dropped.
func ParsePrefix(s string) (string, error) {
	p := strings.TrimSuffix(s, "-")
	if p == "" || len(p) > MaxPrefix || p[0] < 'a' || p[0] > 'z' {
		return "", invalid("name prefix", s, "it must be 1 to 12 lower-case letters or digits and start with a letter")
	}
	for _, c := range []byte(p) {
		if !lowerAlnum(c) {
			return "", invalid("name prefix", s, "it must be 1 to 12 lower-case letters or digits and start with a letter")
		}
	}
	return p, nil
}

// Derive returns the nth candidate name for key: n = 0 is the plain form and
// n > 0 appends "-n". The prefix must have passed ParsePrefix.
func Derive(prefix string, key Key, n int) Workspace {
	sum := sha256.Sum256([]byte(key))
	name := prefix + "-" + hex.EncodeToString(sum[:])[:hexDigits]
	if n > 0 {
		name += "-" + strconv.Itoa(n)
	}
	return Workspace(name)
}

// ParseWorkspace checks that s has the form that Derive gives, with any prefix.
func ParseWorkspace(s string) (Workspace, error) {
	if !IsWorkspace(s) {
		return "", invalid("workspace name", s, `it must look like "ws-2a97516c"`)
	}
	return Workspace(s), nil
}

// IsWorkspace reports whether s has the form of a derived name.
func IsWorkspace(s string) bool {
	prefix, rest, ok := strings.Cut(s, "-")
	if !ok || len(s) > 31 {
		return false
	}
	if p, err := ParsePrefix(prefix); err != nil || p != prefix {
		return false
	}
	digest, suffix, more := strings.Cut(rest, "-")
	if len(digest) != hexDigits || !isHex(digest) {
		return false
	}
	if !more {
		return true
	}
	n, err := strconv.Atoi(suffix)
	return err == nil && n >= 1 && n <= MaxCollision && strconv.Itoa(n) == suffix
}

// archiveTime is what follows the name of the workspace in the id of an archive: when it was
// made, in UTC.
const archiveTime = "20060102T150405.000000"

// NewArchive returns the id of an archive of a workspace that is made at a time.
func NewArchive(of Workspace, at time.Time) string {
	return string(of) + "-" + at.UTC().Format(archiveTime)
}

// ArchiveOf returns the workspace that an archive with the id s is of; false if s has not the form
// of one.
func ArchiveOf(s string) (Workspace, bool) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 || !IsWorkspace(s[:i]) || len(s)-i-1 != len(archiveTime) {
		return "", false
	}
	_, err := time.Parse(archiveTime, s[i+1:])
	return Workspace(s[:i]), err == nil
}

// IsArchive reports whether s has the form of an archive's id.
func IsArchive(s string) bool {
	_, ok := ArchiveOf(s)
	return ok
}

// Reserved says what k would be taken for if a workspace had it as its key, "" for nothing. The
// names of workspaces are not among it, because their prefixes are configured.
func (k Key) Reserved() string {
	if IsArchive(string(k)) {
		return "archive"
	}
	if _, err := ParseCommand(string(k)); err == nil {
		return "command"
	}
	if _, err := ParsePermission(string(k)); err == nil {
		return "approval"
	}
	return ""
}

// NewApproval returns a fresh id of an approval.
func NewApproval() Approval { return Approval("ap-" + randomHex(8)) }

// ParseApproval checks that s is the id of an approval.
func ParseApproval(s string) (Approval, error) {
	if len(s) != 19 || !strings.HasPrefix(s, "ap-") || !isHex(s[3:]) {
		return "", invalid("approval id", s, `it must look like "ap-0123456789abcdef"; "carrel approvals list" lists them`)
	}
	return Approval(s), nil
}

// NewRule returns a fresh id of a rule that allows commands. It has the type of an approval's: both name what lets
// commands pass.
func NewRule() Approval { return Approval("al-" + randomHex(8)) }

// ParsePermission checks that s is the id of an approval or of a rule.
func ParsePermission(s string) (Approval, error) {
	if rest, ok := strings.CutPrefix(s, "al-"); ok {
		if _, err := ParseApproval("ap-" + rest); err == nil {
			return Approval(s), nil
		}
	}
	if name, err := ParseApproval(s); err == nil {
		return name, nil
	}
	return "", invalid("permission id", s, `it must look like "ap-0123456789abcdef" or "al-0123456789abcdef"; "carrel approvals permissions" `+
		`lists them`)
}

// NewCommand returns a fresh command id.
func NewCommand() Command { return Command("c-" + randomHex(8)) }

// ParseCommand checks that s is a command id.
func ParseCommand(s string) (Command, error) {
	if len(s) != 18 || !strings.HasPrefix(s, "c-") || !isHex(s[2:]) {
		return "", invalid("command id", s, `it must look like "c-0123456789abcdef"; "carrel ps" lists them`)
	}
	return Command(s), nil
}

// NewTrace returns a fresh trace id.
func NewTrace() Trace { return Trace(randomHex(16)) }

// ParseTrace checks that s is a trace id.
func ParseTrace(s string) (Trace, error) {
	if len(s) != 32 || !isHex(s) {
		return "", invalid("trace id", s, "it must be 32 lower-case hexadecimal digits")
	}
	return Trace(s), nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b)
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

func lowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func invalid(what, got, why string) error {
	article := "a"
	if strings.HasPrefix(what, "a") {
		article = "an"
	}
	return fmt.Errorf("cannot use %q as %s %s: %s: %w", got, article, what, why, errdefs.ErrInvalidArgument)
}
