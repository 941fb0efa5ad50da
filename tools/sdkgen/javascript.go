package main

import (
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
)

var scriptTypes = map[string]string{
	"string": "string", "bytes": "Uint8Array", "bool": "boolean", "double": "number", "int32": "number", "int64": "number", "big": "bigint",
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// javascript has the tables by which values are converted, and the methods.
func javascript(f *protogen.File, t *text) error {
	t.p("// %s", note)
	t.p("")
	t.p("/** @typedef {import('../types/method.d.ts').Fields} Fields */")
	t.p("/** @typedef {import('../types/carrel.d.ts')} M */")
	t.p("")
	t.p("/**\n * The fields of each message: name, kind, how often it is there, and the message that it is.\n * @type {Record<string, Fields>}\n */")
	t.p("export const schema = {")
	for _, m := range f.Messages {
		t.p("  %s: [", m.GoIdent.GoName)
		for _, x := range m.Fields {
			of := ""
			if x.Message != nil && !x.Desc.IsMap() {
				of = ", '" + x.Message.GoIdent.GoName + "'"
			}
			t.p("    ['%s', '%s', '%s'%s],", x.Desc.JSONName(), kind(x), shape(x), of)
		}
		t.p("  ],")
	}
	t.p("};")
	for _, s := range f.Services {
		t.p("")
		jsdoc(said(s.Comments), "", t)
		t.p("export const %s = {", s.GoName)
		for _, m := range s.Methods {
			jsdoc(append(said(m.Comments), "@type {import('../types/method.d.ts').Method<import('../types/carrel.d.ts')."+m.Input.GoIdent.GoName+
				", import('../types/carrel.d.ts')."+m.Output.GoIdent.GoName+">}"), "  ", t)
			t.p("  %s: { path: '%s/%s', request: '%s', response: '%s', streams: '%s', repeatable: %t },", lower(m.GoName), s.GoName, m.GoName,
				m.Input.GoIdent.GoName, m.Output.GoIdent.GoName, streams(m), repeatable(m))
		}
		t.p("};")
	}
	return nil
}

func jsdoc(lines []string, indent string, t *text) {
	if len(lines) == 0 {
		return
	}
	t.p("%s/**", indent)
	for _, line := range lines {
		t.p("%s * %s", indent, strings.ReplaceAll(line, "*/", "* /"))
	}
	t.p("%s */", indent)
}

// typescript has the types of messages.
func typescript(f *protogen.File, t *text) error {
	t.p("// %s", note)
	for _, m := range f.Messages {
		t.p("")
		jsdoc(said(m.Comments), "", t)
		t.p("export interface %s {", m.GoIdent.GoName)
		for _, x := range m.Fields {
			jsdoc(said(x.Comments), "  ", t)
			typ, mark := scriptTypes[kind(x)], ""
			if x.Message != nil {
				typ = x.Message.GoIdent.GoName
			}
			switch shape(x) {
			case "map":
				typ = "Record<string, string>"
			case "many":
				typ += "[]"
			case "opt":
				mark = "?"
			}
			t.p("  %s%s: %s;", x.Desc.JSONName(), mark, typ)
		}
		t.p("}")
	}
	return nil
}
