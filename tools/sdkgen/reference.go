package main

import (
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
)

var sends = map[string]string{"unary": "", "server": "the answers are a stream", "client": "the requests are a stream", "both": "both are streams"}

// reference is the page of all services and messages.
func reference(f *protogen.File, t *text) error {
	t.p("<!-- %s -->", note)
	t.p("# carrel.v1: services and messages")
	t.p("")
	t.p("This page is written from [`proto/carrel/v1/carrel.proto`](../../proto/carrel/v1/carrel.proto) by `make generate`.")
	t.p("[protocols/api.md](../protocols/api.md) says who may call what, how errors look and what the limits are;")
	t.p("[protocols/operations.md](../protocols/operations.md) which permission each call takes. A method is `POST /carrel.v1.SERVICE/METHOD`.")
	t.p("")
	for _, s := range f.Services {
		t.p("- [%s](#%s): %s", s.GoName, strings.ToLower(s.GoName), methodNames(s))
	}
	for _, s := range f.Services {
		t.p("\n## %s", s.GoName)
		if lines := said(s.Comments); lines != nil {
			t.p("%s\n", strings.Join(lines, "\n"))
		}
		t.p("| method | request | response | |")
		t.p("|---|---|---|---|")
		for _, m := range s.Methods {
			how := cell(said(m.Comments))
			if extra := sends[streams(m)]; extra != "" {
				how = strings.TrimSpace(strings.TrimSuffix(how, ".")+". ") + " " + strings.ToUpper(extra[:1]) + extra[1:] + "."
				how = strings.TrimPrefix(how, ". ")
			}
			t.p("| `%s` | %s | %s | %s |", m.GoName, link(m.Input), link(m.Output), how)
		}
	}
	t.p("\n# Messages")
	t.p("\nIn JSON a field is written in camelCase, `bytes` is base64, a 64-bit integer is a string, and a field that is zero is left out.")
	for _, m := range f.Messages {
		t.p("\n## %s", m.GoIdent.GoName)
		if lines := said(m.Comments); lines != nil {
			t.p("%s\n", strings.Join(lines, "\n"))
		}
		if len(m.Fields) == 0 {
			t.p("It has no fields.")
			continue
		}
		t.p("| field | type | |")
		t.p("|---|---|---|")
		for _, x := range m.Fields {
			t.p("| `%s` | %s | %s |", x.Desc.Name(), typeOf(x), cell(said(x.Comments)))
		}
	}
	return nil
}

func methodNames(s *protogen.Service) string {
	names := make([]string, 0, len(s.Methods))
	for _, m := range s.Methods {
		names = append(names, m.GoName)
	}
	return strings.Join(names, ", ")
}

func cell(lines []string) string { return strings.ReplaceAll(strings.Join(lines, " "), "|", "\\|") }

func link(m *protogen.Message) string {
	return "[" + m.GoIdent.GoName + "](#" + strings.ToLower(m.GoIdent.GoName) + ")"
}

func typeOf(f *protogen.Field) string {
	if f.Desc.IsMap() {
		return "map of string to string"
	}
	typ := f.Desc.Kind().String()
	if f.Message != nil {
		typ = link(f.Message)
	}
	var notes []string
	if f.Desc.IsList() {
		notes = append(notes, "repeated")
	}
	if f.Desc.HasOptionalKeyword() {
		notes = append(notes, "optional")
	}
	if o := f.Oneof; o != nil && !o.Desc.IsSynthetic() {
		notes = append(notes, "one of "+string(o.Desc.Name()))
	}
	if len(notes) > 0 {
		typ += ", " + strings.Join(notes, ", ")
	}
	return typ
}
