package workspace

import (
	"fmt"
	"maps"
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
	// Template is what the file has, with Marker(Name) where the placeholder is to be; "" is the placeholder alone.
	Template string `json:"template,omitempty"`
}

// MaxSecretFiles bounds the files of one workspace: each is looked at in every start. MaxSecretPath is in bytes, and
// so is MaxSecretFile: of one file, and of all templates of a workspace, which are kept with it.
const (
	MaxSecretFiles = 16
	MaxSecretPath  = 512
	MaxSecretFile  = 64 << 10
)

// Marker is what stands for the placeholder of a secret in a template.
func Marker(name string) string { return "{{" + name + "}}" }

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
	return SecretFile{Name: name, Path: path.Clean(p)}, nil
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

// WithTemplates returns files with templates, which are by the names of their secrets.
//
// Errors: invalid_argument if one is for no file, makes none, or they are too long.
func WithTemplates(files []SecretFile, templates map[string]string) ([]SecretFile, error) {
	if err := CheckSecretNames(slices.Collect(maps.Keys(templates))); err != nil {
		return nil, err
	}
	files = slices.Clone(files)
	total := 0
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		i := slices.IndexFunc(files, func(f SecretFile) bool { return f.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("cannot use a template for the secret %s: there is no file that it is for; say where that is to be, as "+
				"--secret-file %[1]s=PATH: %[2]w", name, errdefs.ErrInvalidArgument)
		}
		files[i].Template = templates[name]
		if err := files[i].checkTemplate(); err != nil {
			return nil, err
		}
		total += len(templates[name])
	}
	if total > MaxSecretFile {
		return nil, tooMuchTemplate()
	}
	return files, nil
}

// CheckSecretFiles refuses a file in a mount: it would be one of the host's, and stay there.
func CheckSecretFiles(files []SecretFile, mounts []Mount) error {
	for _, f := range files {
		for _, m := range mounts {
			if at := m.AtHome().Destination; Within(at, path.Join(Home, f.Path)) || Within(path.Join(Home, f.Path), at) {
				return fmt.Errorf("cannot keep the placeholder of %s at %q: %s is mounted from the host, where the file would stay; choose a path "+
					"apart from it: %w", f.Name, f.Path, at, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// checkTemplate refuses a template that makes no file of a secret.
func (f SecretFile) checkTemplate() error {
	why := ""
	switch {
	case len(f.Template) > MaxSecretFile:
		return tooMuchTemplate()
	case !utf8.ValidString(f.Template) || strings.Contains(f.Template, "\x00"):
		why = "it is no text in UTF-8"
	case !strings.Contains(f.Template, Marker(f.Name)):
		why = "it has no " + Marker(f.Name)
	default:
		return nil
	}
	return fmt.Errorf("cannot use the template for the secret %s: %s; write the file as the program wants it, with %s where the secret "+
		"stands: %w", f.Name, why, Marker(f.Name), errdefs.ErrInvalidArgument)
}

func tooMuchTemplate() error {
	return fmt.Errorf("cannot use the templates of the secrets' files: a workspace has at most %d bytes of them in all; keep in them only "+
		"what the program needs beside the secret: %w", MaxSecretFile, errdefs.ErrInvalidArgument)
}

// Holds is an error if the template has the value of a secret, which it is there to keep away.
func (f SecretFile) Holds(secret, value string) error {
	if value == "" || !strings.Contains(f.Template, value) {
		return nil
	}
	return fmt.Errorf("cannot use the template for the secret %s: it has the value of %s, which would get into the workspace; write %s in "+
		"its place: %w", f.Name, secret, Marker(secret), errdefs.ErrInvalidArgument)
}

// fits is an error if the file would be too long with a placeholder.
func (f SecretFile) fits(placeholder string) error {
	mark := Marker(f.Name)
	if len(f.Template)+strings.Count(f.Template, mark)*(len(placeholder)-len(mark)) <= MaxSecretFile {
		return nil
	}
	return fmt.Errorf("cannot keep the placeholder of %s at %q: the file would have more than %d bytes; write %s less often: %w", f.Name,
		f.Path, MaxSecretFile, mark, errdefs.ErrInvalidArgument)
}

// Content is what the file of a secret has.
func (u SecretUse) Content() string {
	if u.Template == "" {
		return u.Placeholder
	}
	return strings.ReplaceAll(u.Template, Marker(u.Name), u.Placeholder)
}

// Wrote reports whether a file has nothing but what was written to it for the secret. A line end more or less is nothing.
func (u SecretUse) Wrote(have []byte) bool {
	if u.Sum != "" {
		return sumOf(string(have)) == u.Sum
	}
	return sumOf(string(have)) == sumOf(u.Content())
}

// sumOf is the digest of a file, without the line ends behind it.
func sumOf(content string) string { return Digest(strings.TrimRight(content, "\r\n")) }

// ended is a use that has ended, without its template.
func (u SecretUse) ended() SecretUse {
	if u.Template != "" {
		u.Template, u.Sum = "", sumOf(u.Content())
	}
	return u
}

func tooManyFiles(n int) error {
	return fmt.Errorf("cannot keep placeholders in %d files: a workspace has at most %d: %w", n, MaxSecretFiles, errdefs.ErrInvalidArgument)
}

// apart is an error if two files cannot be there together.
func (f SecretFile) apart(o SecretFile) error {
	switch {
	case f.Name == o.Name && f.Path == o.Path:
		return fmt.Errorf("cannot keep the placeholder of %s at %q in another way: the file is there already, by another template or by none; "+
			"take the secret from the workspace first: %w", f.Name, f.Path, errdefs.ErrFailedPrecondition)
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
			files = append(files, SecretFile{u.Name, u.File, u.Template})
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

// TemplateTexts are templates as the record has them: NAME sha256:DIGEST.
func TemplateTexts(templates map[string]string) (texts []string) {
	for name, text := range templates {
		texts = append(texts, name+" sha256:"+Digest(text))
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
		if err := f.fits(s.Uses[i].Placeholder); err != nil {
			return s, err
		}
		s.Uses[i].File, s.Uses[i].Template = f.Path, f.Template
	}
	total := 0
	for _, u := range s.Uses {
		total += len(u.Template)
	}
	if total > MaxSecretFile {
		return s, tooMuchTemplate()
	}
	return s, nil
}
