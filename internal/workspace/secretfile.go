package workspace

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// SecretFile says that a file has the placeholder of a secret, for programs that read a file and no variable.
type SecretFile struct {
	Name string `json:"name"`
	// Path is below the home and relative to it, as path.Clean has it.
	Path string `json:"path"`
}

// MaxSecretFiles bounds the files of one workspace: each is looked at in every start. MaxSecretPath is in bytes.
const (
	MaxSecretFiles = 16
	MaxSecretPath  = 512
)

// String is NAME=PATH.
func (f SecretFile) String() string { return f.Name + "=" + f.Path }

// ParseSecretFile reads NAME=PATH. The path is below the home: relative to it, after "~/", or absolute.
func ParseSecretFile(text string) (SecretFile, error) {
	name, at, ok := strings.Cut(text, "=")
	if !ok {
		return SecretFile{}, fmt.Errorf("cannot use the file of a secret: write NAME=PATH, with the name of the secret and a path below the "+
			"home, as API_KEY=.config/app/key: %w", errdefs.ErrInvalidArgument)
	}
	if err := CheckSecretNames([]string{name}); err != nil {
		return SecretFile{}, err
	}
	p := strings.TrimPrefix(strings.TrimPrefix(at, "~/"), Home+"/")
	bad := func(why string) (SecretFile, error) {
		return SecretFile{}, fmt.Errorf("cannot keep the placeholder of %s at %q: %s; name a file below the home, as .config/app/key: %w", name,
			at, why, errdefs.ErrInvalidArgument)
	}
	switch {
	case len(p) > MaxSecretPath:
		return bad(fmt.Sprintf("a path has at most %d bytes", MaxSecretPath))
	case !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl):
		return bad("it is no text without control characters")
	case strings.HasPrefix(p, "/"):
		return bad("it is not below the home, " + Home)
	case p == "" || p == "." || strings.HasSuffix(p, "/"):
		return bad("it names a directory")
	case slices.Contains(strings.Split(p, "/"), ".."):
		return bad(`it has ".."`)
	}
	return SecretFile{name, path.Clean(p)}, nil
}

// ParseSecretFiles reads those of one request, and refuses two of one secret or for one path.
func ParseSecretFiles(texts []string) (files []SecretFile, err error) {
	if len(texts) > MaxSecretFiles {
		return nil, tooManyFiles(len(texts))
	}
	for _, text := range texts {
		f, err := ParseSecretFile(text)
		if err != nil {
			return nil, err
		}
		if slices.Contains(files, f) {
			continue
		}
		for _, o := range files {
			if err := f.apart(o); err != nil {
				return nil, err
			}
		}
		files = append(files, f)
	}
	return files, nil
}

func tooManyFiles(n int) error {
	return fmt.Errorf("cannot keep placeholders in %d files: a workspace has at most %d: %w", n, MaxSecretFiles, errdefs.ErrInvalidArgument)
}

// apart is an error if two files cannot be there together.
func (f SecretFile) apart(o SecretFile) error {
	switch {
	case f.Name == o.Name:
		return fmt.Errorf("cannot keep the placeholder of %s at %q: it is kept at %q already; take the secret from the workspace first: %w",
			f.Name, f.Path, o.Path, errdefs.ErrFailedPrecondition)
	case f.Path == o.Path, strings.HasPrefix(f.Path+"/", o.Path+"/"), strings.HasPrefix(o.Path+"/", f.Path+"/"):
		return fmt.Errorf("cannot keep the placeholder of %s at %q: that of %s is kept at %q; choose another path: %w", f.Name, f.Path, o.Name,
			o.Path, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// SecretNamesOf are the names with those of the files, each once.
func SecretNamesOf(names []string, files []SecretFile) []string {
	for _, f := range files {
		if !slices.Contains(names, f.Name) {
			names = append(slices.Clip(names), f.Name)
		}
	}
	return names
}

// Files are those of the secrets that are used, in their order.
func (s Secrets) Files() (files []SecretFile) {
	for _, u := range s.Uses {
		if u.File != "" {
			files = append(files, SecretFile{u.Name, u.File})
		}
	}
	return files
}

// FileTexts are Files as NAME=PATH.
func (s Secrets) FileTexts() []string { return FileTexts(s.Files()) }

// FileTexts are files as NAME=PATH.
func FileTexts(files []SecretFile) (texts []string) {
	for _, f := range files {
		texts = append(texts, f.String())
	}
	return texts
}

// WithFiles returns the secrets with files for some that are used.
//
// Errors: failed_precondition if a secret has no placeholder, has another file, or the path is another's.
func (s Secrets) WithFiles(files []SecretFile) (Secrets, error) {
	s.Uses = slices.Clone(s.Uses)
	for _, f := range files {
		have := s.Files()
		if slices.Contains(have, f) {
			continue
		}
		for _, o := range have {
			if err := f.apart(o); err != nil {
				return s, err
			}
		}
		i := slices.IndexFunc(s.Uses, func(u SecretUse) bool { return u.Name == f.Name })
		if i < 0 || s.Uses[i].Placeholder == "" {
			return s, fmt.Errorf("cannot keep the placeholder of %s at %q: it has none, because its value is put into requests (--inject); leave "+
				"the file out: %w", f.Name, f.Path, errdefs.ErrFailedPrecondition)
		}
		if len(have) == MaxSecretFiles {
			return s, tooManyFiles(len(have) + 1)
		}
		s.Uses[i].File = f.Path
	}
	return s, nil
}
