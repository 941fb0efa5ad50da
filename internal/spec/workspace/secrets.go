package workspace

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// Secrets are which of its owner's secrets a workspace uses. They hold none of the values.
//
// Secrets are not changed in place: they are shared by those who have read them.
type Secrets struct {
	// Uses are in the order in which they were added.
	Uses []SecretUse `json:"uses,omitempty"`
	// Authority is the key of the authority that its programs trust, sealed; nil before the first start with a secret.
	Authority []byte `json:"authority,omitempty"`
	// Gone are uses that ended, whose files may still be there: they are removed when the workspace runs.
	Gone []SecretUse `json:"gone,omitempty"`
}

// SecretUse is one secret, and what the workspace has in place of its value: in the variable of that name.
type SecretUse struct {
	Name        string `json:"name"`
	Placeholder string `json:"placeholder"`
	// File is the path below the home of a file that has the placeholder too, "" for none.
	File string `json:"file,omitempty"`
	// Template is what the file has, with Marker(Name) for the placeholder; "" is the placeholder alone.
	Template string `json:"template,omitempty"`
	// Sum takes the place of Template in Secrets.Gone: it is of what the file had.
	Sum string `json:"sum,omitempty"`
}

// MaxSecrets bounds the secrets of one workspace, and MaxSecretName the name of one, in bytes.
const (
	MaxSecrets    = 64
	MaxSecretName = 64
)

// Names are those of the secrets, in their order.
func (s Secrets) Names() (names []string) {
	for _, u := range s.Uses {
		names = append(names, u.Name)
	}
	return names
}

// Has reports whether a secret is used.
func (s Secrets) Has(name string) bool { return slices.Contains(s.Names(), name) }

// Without returns the secrets without those named; the authority stays, because programs trust it.
//
// Errors: not_found if one of them is not used.
func (s Secrets) Without(names []string) (Secrets, error) {
	for _, name := range names {
		if !s.Has(name) {
			return s, fmt.Errorf("cannot take the secret %q from the workspace: it does not use it: %w", name, errdefs.ErrNotFound)
		}
	}
	s.Gone = slices.Clone(s.Gone)
	for _, u := range s.Uses {
		if u.File != "" && slices.Contains(names, u.Name) {
			s.Gone = append(s.Gone, u.ended())
		}
	}
	s.Gone = s.Gone[max(0, len(s.Gone)-MaxSecretFiles):] // a placeholder that is left is worth nothing
	s.Uses = slices.DeleteFunc(slices.Clone(s.Uses), func(u SecretUse) bool { return slices.Contains(names, u.Name) })
	return s, nil
}

// SecretsChange adds secrets and takes some. The zero value changes nothing.
type SecretsChange struct {
	// Add are names of the owner's secrets; one that is used already stays as it is.
	Add []string
	// Remove are names of some that are used. They are removed before others are added.
	Remove []string
	// Files are for some of Add.
	Files []SecretFile
	// Templates are what some of Files have, by the names of their secrets: see WithTemplates.
	Templates map[string]string
}

// Empty reports whether it changes nothing.
func (c SecretsChange) Empty() bool {
	return len(c.Add)+len(c.Remove)+len(c.Files)+len(c.Templates) == 0
}

// Validate reports what is out of bounds.
func (c SecretsChange) Validate() error {
	_, err := WithTemplates(c.Files, c.Templates)
	return errors.Join(CheckSecretNames(SecretNamesOf(c.Add, c.Files)), CheckSecretNames(c.Remove), err)
}

// CheckSecretNames refuses what is no list of names of secrets. A name is not shown: it may be a secret.
func CheckSecretNames(names []string) error {
	if len(names) > MaxSecrets {
		return fmt.Errorf("cannot use %d secrets: at most %d are allowed: %w", len(names), MaxSecrets, errdefs.ErrInvalidArgument)
	}
	for _, name := range names {
		if !isSecretName(name) {
			return fmt.Errorf("cannot use the secret: what is given is not the name of one; a name has up to %d letters, digits and _, and does "+
				"not begin with a digit; never give the secret itself: %w", MaxSecretName, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// isSecretName reports whether a text can be the name of a variable.
func isSecretName(name string) bool {
	if name == "" || len(name) > MaxSecretName || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for _, c := range []byte(name) {
		if c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
