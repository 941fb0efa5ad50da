package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// plainBytes bounds the texts that are read without the parser.
const plainBytes = 4096

// What a byte is in a text that is read without the parser.
const (
	odd    = iota // needs the parser
	blank         // between words
	inWord        // of a word, wherever it stands
	inArg         // of a word that is not the first of a command
	single        // a quote
	double        // a quote
	pipe          // | or ||
	and           // &&
)

const plainLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+"

var plainClass = func() (t [256]uint8) {
	for i := range len(plainLetters) {
		t[plainLetters[i]] = inWord
	}
	for _, c := range []byte("=*?{}~") {
		t[c] = inArg
	}
	t[' '], t['\t'], t['\''], t['"'], t['|'], t['&'] = blank, blank, single, double, pipe, and
	return t
}()

// reserved are first words that do not begin a simple command, in some shell or other.
var reserved = map[string]bool{
	"if": true, "then": true, "elif": true, "else": true, "fi": true, "while": true, "until": true, "for": true, "select": true,
	"do": true, "done": true, "case": true, "esac": true, "in": true, "function": true, "time": true, "coproc": true, "let": true,
	"declare": true, "local": true, "export": true, "readonly": true, "typeset": true, "nameref": true, "@test": true,
}

// plainWord is a word with room for what most have, one literal.
type plainWord struct {
	word  syntax.Word
	parts [1]syntax.WordPart
	lit   syntax.Lit
}

type plainCommand struct {
	stmt syntax.Stmt
	call syntax.CallExpr
}

// plainRoom is the memory of what was read without the parser, which nobody looks at once
// the facts are there.
type plainRoom struct {
	words    []plainWord
	args     []*syntax.Word
	commands []plainCommand
}

func newPlainRoom() plainRoom {
	return plainRoom{make([]plainWord, 0, 64), make([]*syntax.Word, 0, 64), make([]plainCommand, 0, 8)}
}

// emptied is the room for another text.
func (r *plainRoom) emptied() plainRoom {
	clear(r.words)
	clear(r.args)
	clear(r.commands)
	return plainRoom{r.words[:0], r.args[:0], r.commands[:0]}
}

// carve takes n of what is left of a list, or else of the heap.
func carve[T any](list *[]T, n int) []T {
	at := len(*list)
	if n > cap(*list)-at {
		return make([]T, n)
	}
	*list = (*list)[:at+n]
	return (*list)[at : at+n : at+n]
}

// text reads what most texts are: simple commands of one line, of plain words and
// quotes without anything to expand in them, joined by |, || and &&. What it makes of them
// is, to the last position, what the parser makes of them, for a fraction of the time and
// memory (FuzzPlain). It gives nil for all else.
func (r *plainRoom) text(src string) *syntax.File {
	if len(src) > plainBytes {
		return nil
	}
	nWords, nCommands := 0, 1
	between := true
	for i := 0; i < len(src); i++ {
		switch c := plainClass[src[i]]; c {
		case odd:
			return nil
		case blank:
			between = true
			continue
		case pipe, and:
			if i+1 < len(src) && src[i+1] == src[i] {
				i++
			} else if c == and {
				return nil
			}
			nCommands++
			between = true
			continue
		case single, double:
			n := quotedLen(src[i:])
			if n == 0 {
				return nil
			}
			i += n - 1
		}
		if between {
			nWords++
			between = false
		}
	}
	if nWords < nCommands {
		return nil
	}
	p := plainReader{src: src, words: carve(&r.words, nWords), args: carve(&r.args, nWords), commands: carve(&r.commands, nCommands)}
	return p.file()
}

// quotedLen is the length of the quotes that s begins with, with what is within; 0 if that
// has anything to expand, or no end.
func quotedLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == s[0]:
			return i + 1
		case c < ' ' && c != '\t', c >= 0x7f:
			return 0
		case s[0] == '"' && (c == '$' || c == '`' || c == '\\'):
			return 0
		}
	}
	return 0
}

type plainReader struct {
	src      string
	at       int
	words    []plainWord
	args     []*syntax.Word
	commands []plainCommand
}

func (r *plainReader) pos() syntax.Pos { return plainPos(r.at) }

func plainPos(i int) syntax.Pos { return syntax.NewPos(uint(i), 1, uint(i)+1) }

// file reads commands from the left: a pipe joins before && and || do.
func (r *plainReader) file() *syntax.File {
	var list *syntax.Stmt
	var listOp syntax.BinCmdOperator
	var listPos syntax.Pos
	for {
		stage := r.command()
		if stage == nil {
			return nil
		}
		for r.at < len(r.src) && r.src[r.at] == '|' && (r.at+1 == len(r.src) || r.src[r.at+1] != '|') {
			at := r.pos()
			r.at++
			next := r.command()
			if next == nil {
				return nil
			}
			stage = binary(stage, syntax.Pipe, at, next)
		}
		if list == nil {
			list = stage
		} else {
			list = binary(list, listOp, listPos, stage)
		}
		if r.at == len(r.src) {
			return &syntax.File{Stmts: []*syntax.Stmt{list}}
		}
		listPos, listOp = r.pos(), syntax.AndStmt
		if r.src[r.at] == '|' {
			listOp = syntax.OrStmt
		}
		r.at += 2
	}
}

func binary(x *syntax.Stmt, op syntax.BinCmdOperator, at syntax.Pos, y *syntax.Stmt) *syntax.Stmt {
	return &syntax.Stmt{Position: x.Position, Cmd: &syntax.BinaryCmd{OpPos: at, Op: op, X: x, Y: y}}
}

// command reads words up to an operator or the end.
func (r *plainReader) command() *syntax.Stmt {
	n := 0
	args := r.args
	for {
		for r.at < len(r.src) && plainClass[r.src[r.at]] == blank {
			r.at++
		}
		if r.at == len(r.src) || r.src[r.at] == '|' || r.src[r.at] == '&' {
			break
		}
		w := r.word(n == 0)
		if w == nil {
			return nil
		}
		args[n] = w
		n++
	}
	if n == 0 {
		return nil
	}
	r.args = args[n:]
	c := &r.commands[0]
	r.commands = r.commands[1:]
	c.call.Args = args[:n:n]
	c.stmt.Position, c.stmt.Cmd = args[0].Pos(), &c.call
	return &c.stmt
}

// word reads one, which as the first of a command may have neither quotes nor a meaning
// of its own.
func (r *plainReader) word(first bool) *syntax.Word {
	w := &r.words[0]
	r.words = r.words[1:]
	w.word.Parts = w.parts[:0]
	for literal := true; r.at < len(r.src); {
		begin := r.pos()
		from := r.at
		switch plainClass[r.src[r.at]] {
		case inWord, inArg:
			for r.at < len(r.src) && (plainClass[r.src[r.at]] == inWord || plainClass[r.src[r.at]] == inArg && !first) {
				r.at++
			}
			if first && (r.at == from || r.at < len(r.src) && plainClass[r.src[r.at]] == inArg || reserved[r.src[from:r.at]]) {
				return nil
			}
			l := &w.lit
			if !literal {
				l = &syntax.Lit{}
			}
			literal = false
			*l = syntax.Lit{ValuePos: begin, ValueEnd: r.pos(), Value: r.src[from:r.at]}
			w.word.Parts = append(w.word.Parts, l)
		case single:
			if first {
				return nil
			}
			r.at += 1 + strings.IndexByte(r.src[r.at+1:], '\'')
			w.word.Parts = append(w.word.Parts, &syntax.SglQuoted{Left: begin, Right: r.pos(), Value: r.src[from+1 : r.at]})
			r.at++
		case double:
			if first {
				return nil
			}
			r.at += 1 + strings.IndexByte(r.src[r.at+1:], '"')
			q := &syntax.DblQuoted{Left: begin, Right: r.pos()}
			if from+1 < r.at {
				q.Parts = []syntax.WordPart{&syntax.Lit{ValuePos: plainPos(from + 1), ValueEnd: r.pos(), Value: r.src[from+1 : r.at]}}
			}
			w.word.Parts = append(w.word.Parts, q)
			r.at++
		default:
			return &w.word
		}
	}
	return &w.word
}
