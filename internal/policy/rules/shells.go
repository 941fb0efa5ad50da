package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// shellProgram judges an interpreter of shell.
func (j *judge) shellProgram(s *segment, p *parsed, _ []shell.Word) {
	if hasFlag(p, "-n") && !hasFlag(p, "-c") {
		for _, w := range p.operands {
			j.pathEffect(s, w, accessRead)
		}
		s.drop(SetOf(CodeExecute))
		return
	}
	if hasFlag(p, "-c") {
		if len(p.operands) == 0 {
			return
		}
		w := p.operands[0]
		if w.Dynamic && (s.index < 0 || !j.hasChildren(s.index)) {
			s.add(ShellDynamic, w.Source)
		}
		j.shellText(s, w)
		if w.Dynamic && strings.ContainsAny(w.Text, "(`") && j.fetches(s) || j.decoded(s.index) {
			s.add(RemoteCodeExecute, w.Text)
		}
		return
	}
	operands := p.operands
	if len(operands) > 0 && operands[0].Text == "-" {
		operands = operands[1:] // "-" ends the options
	}
	if len(operands) == 0 || hasFlag(p, "-s") || isInput(operands[0].Text) {
		s.caps |= 1 << interpretsInput
		if s.nested || s.fact != nil && s.fact.From < 0 && !inputGiven(s.fact) {
			j.unseen(s)
		}
		if s.fact != nil && j.decoded(s.index) {
			s.add(RemoteCodeExecute, s.text)
		}
		if s.fact != nil && inputGiven(s.fact) && !j.hasChildren(s.index) {
			s.add(CodeExecute, "its input")
			if j.fetches(s) {
				s.add(RemoteCodeExecute, s.text)
			}
		}
		return
	}
	j.scriptOperand(s, operands[0])
}

// unseen judges a program that runs unseen input: a person types it, or it comes with the action,
// as in "carrel exec -i demo -- sh < script".
func (j *judge) unseen(s *segment) {
	s.add(TerminalInteractive, s.program)
	s.add(CodeExecute, "what "+s.program+" reads from its input, which is not seen")
}

// isInput reports whether a path is the program's own standard input.
func isInput(path string) bool {
	switch path {
	case "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "/proc/thread-self/fd/0":
		return true
	}
	return false
}

// scriptOperand judges a script that is run. Its content is unknown if it comes from a
// substitution.
func (j *judge) scriptOperand(s *segment, w shell.Word) {
	roles["script"].apply(j, s, []shell.Word{w})
	if j.decoded(s.index) {
		s.add(RemoteCodeExecute, w.Source)
	}
	if w.Dynamic {
		s.add(ShellDynamic, w.Source)
		if j.fetches(s) {
			s.add(RemoteCodeExecute, w.Source)
		}
	}
}

func (j *judge) source(s *segment, p *parsed, _ []shell.Word) {
	if len(p.operands) > 0 {
		j.scriptOperand(s, p.operands[0])
	}
}

// fetches reports whether a word or redirect has a substitution that fetches or decodes.
func (j *judge) fetches(s *segment) bool {
	for i := range s.words {
		t := s.words[i].Source + s.words[i].Text
		if strings.ContainsAny(t, "(`") && fetchers.MatchString(t) {
			return true
		}
	}
	if s.fact != nil {
		for _, r := range s.fact.Redirects {
			if fetchers.MatchString(r.Target.Source + r.Target.Text) {
				return true
			}
		}
	}
	return false
}

var fetchers = lazy(`\b(?:curl|wget|fetch|nc|ncat|socat|base64|base32|xxd|openssl|ssh|scp|aws|gsutil|ftp|lynx|dig)\b`)

func inputGiven(c *shell.Command) bool {
	for _, r := range c.Redirects {
		switch r.Mode {
		case shell.Read, shell.Heredoc, shell.String, shell.ReadWrite:
			return true
		case shell.Write, shell.Append, shell.Duplicate:
		}
	}
	return false
}
