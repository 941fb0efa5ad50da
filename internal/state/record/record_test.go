package record_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/record"
)

const secret = "hunter2-and-then-some"

// texts calls f with each field of a struct that can hold a word of a user's, after setting
// the word there, and takes it out again.
func texts(t *testing.T, v reflect.Value, f func(name string)) {
	t.Helper()
	for i := range v.NumField() {
		field, typ := v.Field(i), v.Type().Field(i)
		switch {
		case typ.Anonymous:
			texts(t, field, f)
			continue
		case !typ.IsExported(), typ.Name == "EnvDigest": // which is made of hexadecimal digits
			continue
		case field.Kind() == reflect.String:
			field.SetString("x " + secret)
		case field.Type() == reflect.TypeFor[[]string]():
			field.Set(reflect.ValueOf([]string{"first", "x " + secret}))
		case field.Type() == reflect.TypeFor[json.RawMessage]():
			field.SetBytes([]byte(`{"a":["x ` + secret + `"]}`))
		default: // numbers, and words out of a list
			continue
		}
		f(typ.Name)
		field.SetZero()
	}
}

// Every field of an operation that can hold a word of a user's is without secrets in a record.
func TestNoFieldKeepsASecret(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", secret)
	w := record.NewWriter(nil, r)
	command := operation.Command{Command: workspace.Command{Argv: []string{"true"}}}
	exec, err := operation.NewExec(command)
	if err != nil {
		t.Fatal(err)
	}
	once, err := operation.NewOnce(command, nil, nil, nil, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	stored, ofCommand, approval := operation.OnArchive(operation.ReadArchive, ""), operation.Signal("", 0, false),
		operation.OnApproval(operation.RevokePermission, "")
	token := operation.OnToken(operation.RevokeToken, "")
	kept := operation.OnSecret(operation.RotateSecret, "")
	fields := 0
	for _, op := range []any{
		&exec, &once, &stored, &ofCommand, &approval, &token, &kept, &operation.Create{}, &operation.Update{}, &operation.Destroy{},
		&operation.PutAway{}, &operation.Restore{},
	} {
		v := reflect.ValueOf(op).Elem()
		texts(t, v, func(name string) {
			fields++
			before := fmt.Sprintf("%+v", v.Interface())
			of, err := w.Of(&operation.Request{By: principal.Self(), Op: v.Interface().(operation.Operation)})
			if err != nil {
				t.Fatal(err)
			}
			if a := string(of.Intent().Action); strings.Contains(a, secret) || !strings.Contains(a, "[redacted:") {
				t.Errorf("%s of %T: %s", name, op, a)
			}
			if after := fmt.Sprintf("%+v", v.Interface()); after != before {
				t.Errorf("%s of %T: what is carried out was changed: %s", name, op, after)
			}
		})
	}
	if fields < 25 {
		t.Errorf("only %d fields were tried", fields)
	}
}
