package action_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/carrel-dev/carrel/internal/action"
)

// The bytes are what approvals are bound to and records keep: they do not change.
func TestCanonical(t *testing.T) {
	a := action.Action{
		Kind: action.Exec, Workspace: "ws-2a97516c", Argv: []string{"sh", "-c", "echo <&>"}, Env: []string{"A", "B"}, EnvDigest: "00", Cwd: "/tmp",
		TTY: true, TimeoutMS: 5, Command: "c-0123456789abcdef",
	}
	b, err := a.Canonical()
	const want = `{"kind":"command.exec","workspace":"ws-2a97516c","argv":["sh","-c","echo \u003c\u0026\u003e"],"env":["A","B"],"env_digest":"00","cwd":"/tmp","tty":true,"timeout_ms":5,"command":"c-0123456789abcdef"}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	if d := action.Digest(b); len(d) != 71 || d == action.Digest(nil) {
		t.Errorf("%s", d)
	}
	if d := action.Digest(nil); d != "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" { // of nothing
		t.Errorf("%s", d)
	}
}

// Two actions that differ in anything differ in digest.
func TestEveryFieldCounts(t *testing.T) {
	base := action.Action{Kind: action.Create}
	plain, err := base.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{action.Digest(plain): "nothing"}
	typ := reflect.TypeFor[action.Action]()
	for i := range typ.NumField() {
		if typ.Field(i).Tag.Get("json") == "-" {
			continue // no part of it
		}
		a := base
		f := reflect.ValueOf(&a).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int64:
			f.SetInt(7)
		case reflect.Slice:
			if f.Type() == reflect.TypeFor[json.RawMessage]() {
				f.SetBytes([]byte(`{"a":1}`))
			} else {
				f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			}
		default:
			t.Fatalf("%s is a %s: say how to set it", typ.Field(i).Name, f.Kind())
		}
		b, err := a.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		d := action.Digest(b)
		if other, same := seen[d]; same {
			t.Errorf("%s makes no difference to %s", typ.Field(i).Name, other)
		}
		seen[d] = typ.Field(i).Name
	}
}
