package rules

import (
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// placeRoles returns the roles of words that name something in another system or that a program
// evaluates.
func placeRoles() []role {
	each := func(name string, f func(j *judge, s *segment, w shell.Word)) role {
		return role{name: name, apply: func(j *judge, s *segment, words []shell.Word) {
			for i := range words {
				f(j, s, words[i])
			}
		}}
	}
	return []role{
		// The name of a variable that is set to an unknown value.
		each("name", func(j *judge, s *segment, w shell.Word) {
			name, _, _ := strings.Cut(w.Text, "[")
			switch name {
			case "PS1", "PS2", "PS3", "EDITOR", "PAGER":
			default:
				j.assign(s, name, shell.Word{Text: "$" + name, Source: w.Source, Dynamic: true})
			}
		}),
		// A file that is displayed and may be changed.
		each("edit", func(j *judge, s *segment, w shell.Word) {
			j.pathEffect(s, w, accessRead)
			j.write(s, w)
		}),
		// REVISION:PATH; the path may be a secret.
		each("gitobject", func(j *judge, s *segment, w shell.Word) {
			_, p, ok := strings.Cut(w.Text, ":")
			if !ok {
				p = w.Text
			}
			if p == "" || strings.HasPrefix(p, "-") {
				return
			}
			set, class := j.pathCaps(path.Clean(p), false, accessRead)
			s.addSet(set&SetOf(SecretRead), w.Text+" ("+class+")")
		}),
		each("s3from", func(j *judge, s *segment, w shell.Word) {
			if strings.Contains(w.Text, "://") {
				s.add(NetworkIn, w.Text)
				return
			}
			if w.Text != "-" {
				j.pathEffect(s, w, accessTree)
			}
		}),
		each("s3to", func(j *judge, s *segment, w shell.Word) {
			if strings.Contains(w.Text, "://") {
				s.add(NetworkOut, w.Text)
				s.add(CloudMutate, w.Text)
				return
			}
			j.write(s, w)
		}),
		// Build flags of go; some name programs that it runs.
		each("goflags", func(_ *judge, s *segment, w shell.Word) {
			if w.Dynamic || runningFlags.MatchString(w.Text) {
				s.add(EnvironmentPoison, "GOFLAGS="+w.Text)
			}
		}),
		each("mongourl", func(j *judge, s *segment, w shell.Word) {
			if strings.Contains(w.Text, "://") || strings.ContainsAny(w.Text, "./:") {
				j.out(s, w)
			}
		}),
		// The payload of a probe, which is sent.
		each("payload", func(_ *judge, s *segment, w shell.Word) {
			if w.Dynamic && strings.ContainsAny(w.Text, "(`") {
				s.add(NetworkOut, w.Text)
			}
		}),
		// A script of expect, which starts programs.
		each("spawn", func(j *judge, s *segment, w shell.Word) {
			s.add(CodeExecute, w.Text)
			j.codeText(s, w.Text)
			for line := range strings.FieldsFuncSeq(w.Text, func(r rune) bool { return r == ';' || r == '\n' }) {
				line = strings.TrimSpace(line)
				for _, verb := range [...]string{"spawn ", "exec ", "system "} {
					if cmd, ok := strings.CutPrefix(line, verb); ok {
						j.shellText(s, part(w, cmd))
					}
				}
			}
		}),
		each("jq", func(j *judge, s *segment, w shell.Word) {
			if wholeEnvironment.MatchString(w.Text) || secretVariable.MatchString(w.Text) {
				s.add(SecretRead, w.Text)
			}
			j.mention(s, w) // the file of --rawfile
		}),
		// An expression of dc, in which ! runs a command.
		each("calc", (*judge).calculation),
	}
}

var runningFlags = lazy(`exec|tool|overlay|insecure`)

// secretVariable matches a variable whose name says that it is secret.
var secretVariable = lazy(`(?i)(?:\$ENV|\benv)\s*(?:\.\s*|\[\s*)"?[A-Z0-9_]*(?:TOKEN|SECRET|PASSW|PASSPHRASE|API_?KEY|PRIVATE_?KEY|` +
	`ACCESS_KEY|CREDENTIAL)`)

var wholeEnvironment = lazy(`(?:^|[^.\w$"])(?:env|\$ENV)\s*(?:$|[|,)\]}])`)

func (j *judge) calculation(s *segment, w shell.Word) {
	if s.spec == nil || programName(s.words[0].Text) != "dc" {
		return
	}
	for line := range strings.SplitSeq(w.Text, "\n") {
		if _, cmd, ok := strings.Cut(line, "!"); ok && !beginsWith(cmd, "=", "<", ">") {
			s.add(CodeExecute, w.Text)
			j.shellText(s, part(w, cmd))
		}
	}
}

// calculator judges the input of dc.
func (j *judge) calculator(s *segment, _ *parsed, _ []shell.Word) {
	if s.fact == nil {
		return
	}
	for _, r := range s.fact.Redirects {
		if r.Mode == shell.String || r.Mode == shell.Heredoc {
			j.calculation(s, r.Target)
		}
	}
	if s.fact.From >= 0 {
		j.calculation(s, shell.Word{Text: j.echoed(s.fact.From)})
	}
}

// mount judges what the mount hides and what takes its place.
func (j *judge) mount(s *segment, p *parsed, _ []shell.Word) {
	if len(p.operands) < 2 {
		return
	}
	at := p.operands[len(p.operands)-1]
	c, glob := canonical(at, j.q.Home, j.dir)
	set, class := j.pathCaps(c, glob, accessWrite)
	s.addSet(set&SetOf(LogTamper, CarrelTamper, Persistence, PrivilegeEscalate, SecurityDisable), at.Text+" ("+class+")")
	if o, ok := valueOf(p, "-o"); ok && strings.Contains(","+o.Text+",", ",suid,") {
		s.add(PrivilegeEscalate, o.Text)
	}
	if from, _ := canonical(p.operands[0], j.q.Home, j.dir); from == "/" {
		s.add(PrivilegeEscalate, "mounts "+p.operands[0].Text+" elsewhere")
	}
}

// umount judges what becomes unavailable.
func (j *judge) umount(s *segment, p *parsed, _ []shell.Word) {
	for _, w := range p.operands {
		c, glob := canonical(w, j.q.Home, j.dir)
		set, class := j.pathCaps(c, glob, accessWrite)
		s.addSet(set&SetOf(LogTamper, CarrelTamper), w.Text+" ("+class+")")
	}
}

// packaged judges a program by the name of its package.
func (j *judge) packaged(s *segment, p *parsed, rest []shell.Word) {
	if len(p.operands) == 0 {
		return
	}
	name := p.operands[0]
	if i := strings.LastIndexByte(name.Text, '@'); i > 0 {
		name.Text = name.Text[:i]
	}
	if name.Dynamic || j.lookup(name.Text) == nil {
		return
	}
	words := append([]shell.Word{name}, p.operands[1:]...)
	j.nested(s, append(words, rest...))
}

// yq takes a file, or an expression and files.
func (j *judge) yq(s *segment, p *parsed, _ []shell.Word) {
	if len(p.operands) == 1 && strings.HasPrefix(p.operands[0].Text, "/") {
		j.pathEffect(s, p.operands[0], accessRead)
	}
}
