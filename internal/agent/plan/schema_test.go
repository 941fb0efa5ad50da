package plan_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/carrel-dev/carrel/internal/agent/plan"
)

func resolve(t testing.TB, text json.RawMessage) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// members are the JSON names of a struct's fields, in order.
func members(of reflect.Type) []string {
	var names []string
	for f := range of.Fields() {
		if f.Anonymous {
			names = append(names, members(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// Structs have the members of the table, in its order.
func TestStructsAreTheTable(t *testing.T) {
	forms := plan.Forms()
	if len(forms) != len(valid) {
		t.Fatalf("%d forms", len(forms))
	}
	for typ, f := range forms {
		of := reflect.TypeOf(f.Value).Elem()
		if got := members(of); !slices.Equal(got, f.Members) {
			t.Errorf("%s: the struct has %v, the table %v", typ, got, f.Members)
		}
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			inner := field.Type
			if inner.Kind() != reflect.Slice || inner.Elem().Kind() != reflect.Struct {
				if f.Nested[name] != nil {
					t.Errorf("%s: the table has objects in %s", typ, name)
				}
			} else if got := members(inner.Elem()); !slices.Equal(got, f.Nested[name]) {
				t.Errorf("%s: objects of %s have %v, in the table %v", typ, name, got, f.Nested[name])
			}
		}
	}
}

// broken returns a text for each change of one value, at any depth, to something that may be wrong there.
func broken(t *testing.T, text string) []string {
	t.Helper()
	var root any
	if err := json.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	var out []string
	write := func() {
		b, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b))
	}
	others := []any{
		nil, true, 0, 7, 1e6, "", "x", "xxxx", "host", "remote *", "0644", "update", strings.Repeat("x", plan.MaxCommand+1),
		[]any{},
		[]any{"host"},
		[]any{"same", "same"},
		[]any{map[string]any{}},
		slices.Repeat([]any{"word"}, plan.MaxFiles+1),
		map[string]any{},
	}
	var walk func(v any, set func(any))
	walk = func(v any, set func(any)) {
		for _, o := range others {
			set(o)
			write()
		}
		set(v)
		switch v := v.(type) {
		case map[string]any:
			v["unknown"] = "x"
			write()
			delete(v, "unknown")
			for name, inner := range v {
				delete(v, name)
				write()
				walk(inner, func(x any) { v[name] = x })
			}
		case []any:
			for i, inner := range v {
				walk(inner, func(x any) { v[i] = x })
			}
		}
	}
	walk(root, func(x any) { root = x })
	return out
}

// toolsOwn is what Parse says of the parameters of one tool. In the schema each tool has those of all.
var toolsOwn = regexp.MustCompile(`calls\[[012]\]\.[a-z_]+: is (missing, and [a-z_]+ needs it|not a parameter of|there beside)`)

// The schema takes whatever Parse takes, and of small changes to an answer both refuse the same, but for what a schema
// cannot say.
func TestSchemaAndParse(t *testing.T) {
	all := resolve(t, plan.Schema())
	taken, refused := 0, 0
	for _, text := range valid {
		var head struct{ Type plan.Type }
		if err := json.Unmarshal([]byte(text), &head); err != nil {
			t.Fatal(err)
		}
		one := resolve(t, plan.SchemaOf(head.Type))
		both := strings.Replace(text, `"unified_diff"`, `"patch":"x","unified_diff"`, 1)
		for _, text := range append(broken(t, text), text, both) {
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Fatal(err)
			}
			a, parseErr := plan.Parse([]byte(text))
			allErr, oneErr := all.Validate(v), one.Validate(v)
			if parseErr == nil && (allErr != nil || a.Type == head.Type && oneErr != nil) {
				t.Errorf("Parse takes %.300s\nthe schema says %v, %v", text, allErr, oneErr)
			}
			if parseErr != nil && allErr == nil && !strings.Contains(parseErr.Error(), "has only") &&
				!strings.Contains(parseErr.Error(), "not usable") && !toolsOwn.MatchString(parseErr.Error()) {
				t.Errorf("the schema takes %.300s\nParse says %v", text, parseErr)
			}
			if parseErr == nil {
				taken++
			} else {
				refused++
			}
		}
	}
	if taken < 50 || refused < 500 {
		t.Errorf("%d taken, %d refused: the test looks at too little", taken, refused)
	}
	if plan.SchemaOf("x") != nil {
		t.Error("there is a schema of x")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range append(slices.Clone(valid), "```json\n{}\n```", "{", `{"type":"direct_answer","answer":"\ud83d\ude00\ud800"}`,
		`[[[{}]]]`, strings.Replace(command, "host", "remote *", 1), direct+direct) {
		f.Add([]byte(s))
	}
	schema := resolve(f, plan.Schema())
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := plan.Parse(text)
		if err != nil {
			if len(err.Error()) > 16<<10 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatalf("%q is taken: %v", text, err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%q is taken, and the schema says %v", text, err)
		}
		b, err := a.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > plan.MaxAnswer {
			return
		}
		again, err := plan.Parse(b)
		if err != nil || !reflect.DeepEqual(again, a) {
			t.Errorf("%q is written %q, which is %+v, %v", text, b, again, err)
		}
		steps := []plan.Step{}
		if a.Commands != nil {
			steps = slices.Concat(a.Commands.Commands, a.Commands.PreflightChecks, a.Commands.Verification, a.Commands.Rollback)
		}
		for _, s := range steps {
			if s.Target.Kind == "" || strings.ContainsAny(s.Command, "\x00\r\n\u202e\u200b") {
				t.Errorf("%q has the step %+v", text, s)
			}
		}
	})
}

// A model is told of every member of every type with its kind, at a length that it can be told with each request.
func TestShape(t *testing.T) {
	size := len(plan.StepShape())
	for typ, of := range map[plan.Type]any{
		plan.CommandPlanType: plan.CommandPlan{}, plan.FilePatchPlanType: plan.FilePatchPlan{}, plan.DirectAnswerType: plan.DirectAnswer{},
		plan.NoChangeType: plan.NoChange{}, plan.ContinueType: plan.ContinuePlanning{}, "": plan.Step{},
	} {
		text := plan.Shape(typ)
		if typ == "" {
			text = plan.StepShape()
		}
		size += len(text)
		for _, name := range members(reflect.TypeOf(of)) {
			if found, _ := regexp.MatchString(`[{,]`+name+`[?:,}]`, text); !found && name != "type" {
				t.Errorf("%T: it is not told of %s: %s", of, name, text)
			}
		}
	}
	if size > 800 {
		t.Errorf("they take %d bytes", size)
	}
	if got := plan.StepShape(); got != "{command,purpose,read_only:bool,target,background?:bool,timeout_seconds?:int}" {
		t.Errorf("a step is %s", got)
	}
	if got := plan.Shape(plan.FilePatchPlanType); !strings.Contains(got, "request_intent:create|update|unknown,") ||
		!strings.Contains(got, "verification_commands:[STEP],") || !strings.Contains(got, "permission_changes:[{path,mode}]") {
		t.Errorf("a patch is %s", got)
	}
	if plan.Shape("x") != "" {
		t.Error("there is a shape of x")
	}
}
