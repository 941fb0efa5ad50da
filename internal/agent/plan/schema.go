package plan

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Schema returns the JSON schema (draft 2020-12) of an answer of any type, for models that are held to one. Parse refuses
// some texts that the schema takes, because a schema cannot say them, and takes none that the schema refuses. Some
// providers take no anyOf at the root: SchemaOf has none.
func Schema() json.RawMessage {
	var all []string
	for i := range forms {
		all = append(all, string(forms[i].schema()))
	}
	return json.RawMessage(`{"type":"object","anyOf":[` + strings.Join(all, ",") + `]}`)
}

// SchemaOf returns the JSON schema of an answer of one type, nil if there is no such type.
func SchemaOf(t Type) json.RawMessage {
	if f := formOf(t); f != nil {
		return f.schema()
	}
	return nil
}

func (f *form) schema() json.RawMessage {
	typ := member{name: "type", kind: choice, words: []string{string(f.typ)}, doc: f.doc}
	s := object(append([]member{typ}, f.members...), f.doc)
	if f.either[0] != "" {
		// A member that may be null counts as left out only if it is null.
		has := func(name string) string {
			return fmt.Sprintf(`{"properties":{%q:{"type":"string"}},"required":[%q]}`, name, name)
		}
		s = s[:len(s)-1] + `,"oneOf":[` + has(f.either[0]) + "," + has(f.either[1]) + `]}`
	}
	return json.RawMessage(s)
}

func object(members []member, doc string) string {
	var props []string
	for i := range members {
		props = append(props, str(members[i].name)+":"+members[i].schema())
	}
	return `{"type":"object",` + about(doc) + `"properties":{` + strings.Join(props, ",") + `},"required":` + words(needed(members)) +
		`,"additionalProperties":false}`
}

func (m *member) schema() string {
	typ := func(name string) string {
		if m.optional {
			return `"type":["` + name + `","null"]`
		}
		return `"type":"` + name + `"`
	}
	doc := about(m.doc)
	switch m.kind {
	case objects:
		return fmt.Sprintf(`{%s%s,"minItems":%d,"maxItems":%d,"items":%s}`, doc, typ("array"), m.min, m.max, object(m.of, ""))
	case texts:
		unique := ""
		if m.distinct {
			unique = `"uniqueItems":true,`
		}
		return fmt.Sprintf(`{%s%s,%s"minItems":%d,"maxItems":%d,"items":%s}`, doc, typ("array"), unique, m.min, m.max, m.each.schema())
	case flag:
		return `{` + doc + typ("boolean") + `}`
	case number:
		return fmt.Sprintf(`{%s%s,"minimum":%d,"maximum":%d}`, doc, typ("integer"), m.min, m.max)
	case choice:
		enum := words(m.words)
		if m.optional {
			enum = strings.TrimSuffix(enum, "]") + ",null]"
		}
		return `{` + doc + typ("string") + `,"enum":` + enum + `}`
	case mode:
		return `{` + doc + typ("string") + `,"pattern":"^0?[0-7]{3}$"}`
	case where:
		pattern := "^(host|workspace .+|remote .+)$"
		if m.one {
			pattern = "^(host|workspace .+|remote [^ *]+)$"
		}
		return `{` + about(m.doc+": "+m.allowed()) + typ("string") + `,"pattern":` + str(pattern) + `}`
	default:
		// A character is a byte at least.
		return fmt.Sprintf(`{%s%s,"minLength":%d,"maxLength":%d}`, doc, typ("string"), min(m.min, 1), m.max)
	}
}

func about(doc string) string {
	if doc == "" {
		return ""
	}
	return `"description":` + str(doc) + ","
}

func str(s string) string {
	b, _ := json.Marshal(s) // a text is always written
	return string(b)
}

func words(list []string) string {
	var all []string
	for _, w := range list {
		all = append(all, str(w))
	}
	return "[" + strings.Join(all, ",") + "]"
}
