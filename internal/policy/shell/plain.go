package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

const (
	plainBytes = 4096 // of the longest text that is read without the parser
	plainRoom  = 256  // of the longest list that is kept for the next text
)

// Classes of bytes.
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

// reserved are first words that start no simple command in some shell.
var reserved = set(`
	if then elif else fi while until for select do done case esac in function time coproc let declare local export
	readonly typeset nameref @test`)

// plainWord is a word with memory for one literal, which most words are.
type plainWord struct {
	word  syntax.Word
	parts [1]syntax.WordPart
	lit   syntax.Lit
}

type plainCommand struct {
	stmt syntax.Stmt
	call syntax.CallExpr
}

// plainReader reads most lines without the parser: simple commands on one line, of plain words
// and quotes with nothing to expand, joined by |, || and &&. Its trees are those of the parser,
// to the last position (FuzzPlain). It keeps their memory for the next text.
//
// It is here for the benchmark "lines judged, a core" (test/bench -only policy), which reaches
// 50,000 lines a second only with it; without it a core judges a quarter fewer.
// parseFast is the one place that uses it.
type plainReader struct {
	src      string
	at       int
	words    []plainWord
	args     []*syntax.Word
	commands []plainCommand
}

// parseFast parses a text, without the parser if it is plain.
func (r *plainReader) parseFast(src string, d Dialect) (*syntax.File, error) {
	if f := r.read(src); f != nil {
		return f, nil
	}
	return parse(src, d)
}

// read returns nil for a text that is not plain.
func (r *plainReader) read(src string) *syntax.File {
	if len(src) > plainBytes {
		return nil
	}
	r.src, r.at = src, 0
	return r.file()
}

// forget makes the reader's memory free for another text.
func (r *plainReader) forget() {
	r.src = ""
	forgetList(&r.words)
	forgetList(&r.args)
	forgetList(&r.commands)
}

func forgetList[T any](list *[]T) {
	if cap(*list) > plainRoom {
		*list = nil
	}
	clear(*list)
	*list = (*list)[:0]
}

// slot returns the next item of a list. A full list is replaced, since pointers into it remain in
// use.
func slot[T any](list *[]T) *T {
	if len(*list) == cap(*list) {
		*list = make([]T, 0, max(plainRoom/4, 2*cap(*list)))
	}
	*list = (*list)[:len(*list)+1]
	return &(*list)[len(*list)-1]
}

// quotedLen returns the length of the quoted text that s begins with, 0 if it has something to
// expand or no end.
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
		} else if !strings.HasPrefix(r.src[r.at:], "&&") {
			return nil
		}
		r.at += 2
	}
}

func binary(x *syntax.Stmt, op syntax.BinCmdOperator, at syntax.Pos, y *syntax.Stmt) *syntax.Stmt {
	return &syntax.Stmt{Position: x.Position, Cmd: &syntax.BinaryCmd{OpPos: at, Op: op, X: x, Y: y}}
}

// command reads words up to an operator or the end.
func (r *plainReader) command() *syntax.Stmt {
	from := len(r.args)
	for {
		for r.at < len(r.src) && plainClass[r.src[r.at]] == blank {
			r.at++
		}
		if r.at == len(r.src) || r.src[r.at] == '|' || r.src[r.at] == '&' {
			break
		}
		w := r.word(len(r.args) == from)
		if w == nil {
			return nil
		}
		r.args = append(r.args, w)
	}
	args := slices.Clip(r.args[from:])
	if len(args) == 0 {
		return nil
	}
	c := slot(&r.commands)
	c.call.Args = args
	c.stmt.Position, c.stmt.Cmd = args[0].Pos(), &c.call
	return &c.stmt
}

// word reads a word. The first word of a command may have no quotes and may not be reserved.
func (r *plainReader) word(first bool) *syntax.Word {
	w := slot(&r.words)
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
		case single, double:
			n := quotedLen(r.src[from:])
			if first || n == 0 {
				return nil
			}
			r.at += n - 1
			w.word.Parts = append(w.word.Parts, quoted(begin, r.pos(), r.src[from:r.at]))
			r.at++
		case odd:
			return nil
		default:
			return &w.word
		}
	}
	return &w.word
}

// quoted returns the part of a quoted text that includes its left quote.
func quoted(left, right syntax.Pos, text string) syntax.WordPart {
	if text[0] == '\'' {
		return &syntax.SglQuoted{Left: left, Right: right, Value: text[1:]}
	}
	q := &syntax.DblQuoted{Left: left, Right: right}
	if inner := text[1:]; inner != "" {
		q.Parts = []syntax.WordPart{&syntax.Lit{ValuePos: plainPos(int(left.Offset()) + 1), ValueEnd: right, Value: inner}}
	}
	return q
}
