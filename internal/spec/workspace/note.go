package workspace

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Bounds of a person's notes for an agent. MaxNote is in characters.
const (
	MaxNotes = 64
	MaxNote  = 500
)

// CheckNote says what is wrong with a note's text, as an invalid argument.
func CheckNote(text string) error {
	switch n := utf8.RuneCountInString(text); {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("cannot keep an empty note: write what the agent should know: %w", errdefs.ErrInvalidArgument)
	case n > MaxNote:
		return fmt.Errorf("cannot keep a note of %d characters: write at most %d: %w", n, MaxNote, errdefs.ErrInvalidArgument)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("cannot keep the note: write it on one line, without characters that cannot be seen: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}
