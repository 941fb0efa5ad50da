package fleet

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Bounds of the ssh configuration.
const (
	maxConfig      = 1 << 20 // bytes of one file
	maxConfigFiles = 256
	maxConfigDepth = 16 // of Include, as OpenSSH has it
	maxConfigLine  = 16 << 10
	maxConfigLines = 64 << 10 // directives of all files
)

// File is one file of the ssh configuration.
type File struct {
	Name string
	Data []byte
}

// SSHConfig is what ssh_config(5) files say, as far as it can be honoured. It does not change.
type SSHConfig struct{ directives []directive }

// directive is one line. It holds where all of its blocks match.
type directive struct {
	name   string // in lower case
	args   []string
	file   string
	line   int
	blocks []*block
}

// block is a Host or a Match.
type block struct {
	match    bool
	patterns []string // of Host
	criteria []criterion
	file     string
	line     int
}

type criterion struct {
	name     string // in lower case
	negated  bool
	patterns []string
}

func at(file string, line int, format string, args ...any) error {
	return fmt.Errorf("cannot use %s:%d: %w: %w", file, line, fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

// ParseSSHConfig reads files in the form of ssh_config(5). The first value of a setting wins, so the user's file comes
// before the system's. include returns the files that a pattern of Include stands for, which is none if there is none; from
// is the file that has the line. Nothing of a file is used if one of its lines cannot be read; what cannot be honoured is
// an error for the hosts that it would hold for.
func ParseSSHConfig(files []File, include func(from, pattern string) ([]File, error)) (*SSHConfig, error) {
	p := &configParser{include: include, c: &SSHConfig{}}
	for _, f := range files {
		if err := p.file(f, nil, 0); err != nil {
			return nil, err
		}
	}
	return p.c, nil
}

type configParser struct {
	include func(from, pattern string) ([]File, error)
	files   int
	c       *SSHConfig
}

// file reads one file, all of which is within the outer blocks.
func (p *configParser) file(f File, outer []*block, depth int) error {
	if p.files++; p.files > maxConfigFiles {
		return at(f.Name, 1, "the configuration has more than %d files", maxConfigFiles)
	}
	if len(f.Data) > maxConfig {
		return at(f.Name, 1, "it has more than %d bytes", maxConfig)
	}
	blocks, n := outer, 0
	for line := range strings.SplitSeq(string(f.Data), "\n") {
		n++
		if len(line) > maxConfigLine {
			return at(f.Name, n, "the line has more than %d bytes", maxConfigLine)
		}
		words, err := configWords(line)
		if err != nil {
			return at(f.Name, n, "%w", err)
		}
		if len(words) == 0 {
			continue
		}
		d := directive{name: strings.ToLower(words[0]), args: words[1:], file: f.Name, line: n, blocks: blocks}
		if len(d.args) == 0 {
			return at(f.Name, n, "%.40s has no value", words[0])
		}
		switch d.name {
		case "host", "match":
			b := &block{match: d.name == "match", file: f.Name, line: n}
			if b.match {
				if b.criteria, err = criteria(d.args); err != nil {
					return at(f.Name, n, "%w", err)
				}
			} else {
				b.patterns = d.args
			}
			blocks = append(append([]*block(nil), outer...), b)
		case "include":
			if err := p.included(d, depth); err != nil {
				return err
			}
		default:
			if p.c.directives = append(p.c.directives, d); len(p.c.directives) > maxConfigLines {
				return at(f.Name, n, "the configuration has more than %d settings", maxConfigLines)
			}
		}
	}
	return nil
}

func (p *configParser) included(d directive, depth int) error {
	if depth >= maxConfigDepth {
		return at(d.file, d.line, "Include is nested more than %d deep", maxConfigDepth)
	}
	for _, pattern := range d.args {
		if p.include == nil {
			return at(d.file, d.line, "Include is not honoured here")
		}
		files, err := p.include(d.file, pattern)
		if err != nil {
			return at(d.file, d.line, "Include %.80q: %w", pattern, err)
		}
		for _, f := range files {
			if err := p.file(f, d.blocks, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// configWords splits a line as OpenSSH does: words between white space, quotes around some, = after the first, and a
// comment after an unquoted #.
func configWords(line string) (words []string, err error) {
	line = strings.Trim(line, " \t\r\f\v")
	if line == "" || line[0] == '#' {
		return nil, nil
	}
	if strings.IndexByte(line, 0) >= 0 {
		return nil, invalid("it has a NUL byte")
	}
	i := strings.IndexAny(line, " \t=\"'")
	if i < 0 {
		return []string{line}, nil
	}
	if i == 0 {
		return nil, invalid("it begins with %q and not with a setting", line[0])
	}
	words = append(words, line[:i])
	rest := strings.TrimLeft(line[i:], " \t")
	rest = strings.TrimLeft(strings.TrimPrefix(rest, "="), " \t")
	for rest != "" && rest[0] != '#' {
		var w strings.Builder
		quote := byte(0)
		k := 0
	word:
		for ; k < len(rest); k++ {
			switch c := rest[k]; {
			case c == '\\' && k+1 < len(rest) && (strings.IndexByte(`'"\`, rest[k+1]) >= 0 || quote == 0 && rest[k+1] == ' '):
				k++
				w.WriteByte(rest[k])
			case quote == 0 && (c == ' ' || c == '\t'):
				break word
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			case quote != 0 && c == quote:
				quote = 0
			default:
				w.WriteByte(c)
			}
		}
		if quote != 0 {
			return nil, invalid("a quote is not closed")
		}
		words = append(words, w.String())
		rest = strings.TrimLeft(rest[k:], " \t")
	}
	return words, nil
}

// criteria reads what follows Match.
func criteria(args []string) (list []criterion, err error) {
	for i := 0; i < len(args); i++ {
		c := criterion{name: strings.ToLower(args[i])}
		if rest, ok := strings.CutPrefix(c.name, "!"); ok {
			c.name, c.negated = rest, true
		}
		var value string
		name, _, has := strings.Cut(c.name, "=")
		c.name = name
		switch c.name {
		case "all", "final", "canonical":
			if has || c.name == "all" && c.negated {
				return nil, invalid("Match %.40q is not understood", args[i])
			}
		case "host", "originalhost", "user", "localuser", "exec", "localnetwork", "tagged", "command", "version", "sessiontype":
			if !has {
				if i++; i >= len(args) {
					return nil, invalid("Match %s has no value", c.name)
				}
				value = args[i]
			} else {
				value = args[i][strings.IndexByte(args[i], '=')+1:]
			}
			c.patterns = strings.Split(value, ",")
		default:
			return nil, invalid("Match %.40q is not understood", args[i])
		}
		list = append(list, c)
	}
	return list, nil
}

// matches reports whether a list of patterns matches: one does, and none that begins with "!".
func matches(s string, patterns []string) bool {
	found := false
	for _, p := range patterns {
		if not, ok := strings.CutPrefix(p, "!"); ok {
			if glob(not, s) {
				return false
			}
		} else if glob(p, s) {
			found = true
		}
	}
	return found
}

// glob matches * and ?, in time of at most the product of the lengths.
func glob(pattern, s string) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
