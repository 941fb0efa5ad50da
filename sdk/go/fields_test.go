package carrel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// specValues are two valid values of each field of a Spec.
var specValues = map[string][2]any{
	"Argv":          {[]string{"a"}, []string{"a", "é\n\"<&>"}},
	"Env":           {[]string{"A=1"}, []string{"A=1", "B=\"2"}},
	"Dir":           {"/a", "/b"},
	"Timeout":       {time.Second, time.Minute},
	"Grace":         {3 * time.Second, time.Microsecond}, // the latter is rounded up
	"Stdin":         {true, false},
	"Terminal.Rows": {uint16(24), uint16(25)},
	"Terminal.Cols": {uint16(80), uint16(1000)},
	"Source":        {carrel.SourceUser, carrel.SourceLLM},
	"Thread":        {"one", "é two"},
	"ApprovalWait":  {time.Minute, carrel.DoNotWait},
}

// specMethods are the methods of a Client that take a Spec, with what they do not use of it.
var specMethods = map[string]struct {
	call   func(ctx context.Context, c *carrel.Client, s carrel.Spec) error
	unused []string
}{
	"Exec": {
		func(ctx context.Context, c *carrel.Client, s carrel.Spec) error {
			_, err := c.Exec(ctx, "demo", s, []byte("in"))
			return err
		},
		[]string{"Stdin", "Terminal", "Terminal.Rows", "Terminal.Cols"}, // as its documentation says
	},
	"Start": {func(ctx context.Context, c *carrel.Client, s carrel.Spec) error {
		cmd, err := c.Start(ctx, "demo", s)
		if err == nil {
			err = errors.Join(cmd.Close(), errors.New("a command was started"))
		}
		return err
	}, nil},
}

// What a Spec says reaches the gate by every method that takes one, and equally whether descriptors
// or the daemon carry the streams.
func TestEveryFieldOfASpecArrives(t *testing.T) {
	g := &apitest.Recorder{Gate: &apitest.Gate{}}
	clients := clientsOf(t, g)
	ask := func(method, what string, s carrel.Spec) map[string][]apitest.Call {
		t.Helper()
		calls := map[string][]apitest.Call{}
		for name, c := range clients {
			err := specMethods[method].call(t.Context(), c, s)
			if calls[name] = g.Take(); len(calls[name]) == 0 || !errdefs.IsAborted(err) {
				t.Errorf("%s with %s does not reach the gate by %s: %v", method, what, name, err)
			}
		}
		return calls
	}

	for m := range reflect.TypeFor[*carrel.Client]().Methods() {
		in := slices.Collect(m.Type.Ins())
		if _, known := specMethods[m.Name]; slices.Contains(in, reflect.TypeFor[carrel.Spec]()) && !known {
			t.Errorf("this test does not know the method %s, which takes a Spec", m.Name)
		}
	}
	// A Spec with every field set, and one for each field with another value of it.
	changed := map[string]carrel.Spec{}
	fields := fieldsOf(t, reflect.TypeFor[carrel.Spec](), "")
	for name := range specValues {
		if !slices.Contains(fields, name) {
			t.Errorf("a Spec has no field %s", name)
		}
	}
	set := func(s *carrel.Spec, field string, value any) {
		v := reflect.ValueOf(s).Elem()
		for name := range strings.SplitSeq(field, ".") {
			if v.Kind() == reflect.Pointer {
				if v.IsNil() {
					v.Set(reflect.New(v.Type().Elem()))
				}
				v = v.Elem()
			}
			v = v.FieldByName(name)
		}
		v.Set(reflect.ValueOf(value))
	}
	whole := func() (s carrel.Spec) {
		for _, field := range fields {
			set(&s, field, specValues[field][0])
		}
		return s
	}
	for _, field := range fields {
		s := whole()
		set(&s, field, specValues[field][1])
		changed[field] = s
	}
	piped := whole()
	piped.Terminal = nil
	changed["Terminal"] = piped

	for method, of := range specMethods {
		before := ask(method, "every field", whole())
		alike := true
		for name, calls := range before {
			if alike = reflect.DeepEqual(calls, before["descriptors"]); !alike {
				t.Errorf("%s by %s: %+v\nby descriptors: %+v", method, name, calls, before["descriptors"])
				break
			}
		}
		for _, field := range slices.Sorted(maps.Keys(changed)) {
			after := ask(method, "another "+field, changed[field])
			for name := range clients {
				switch lost := reflect.DeepEqual(before[name], after[name]); {
				case lost && !slices.Contains(of.unused, field):
					t.Errorf("%s loses the field %s of a Spec by %s", method, field, name)
				case !lost && slices.Contains(of.unused, field):
					t.Errorf("%s uses the field %s of a Spec by %s, and should not", method, field, name)
				case alike && !reflect.DeepEqual(after[name], after["descriptors"]):
					t.Errorf("%s with another %s by %s: %+v\nby descriptors: %+v", method, field, name, after[name], after["descriptors"])
				}
			}
		}
	}
}

// fieldsOf lists the fields of a type that have no fields. Each must have a row in specValues.
func fieldsOf(t *testing.T, typ reflect.Type, prefix string) (names []string) {
	t.Helper()
	for f := range typ.Fields() {
		name, inner := prefix+f.Name, f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			names = append(names, fieldsOf(t, inner, name+".")...)
			continue
		}
		if _, known := specValues[name]; !known {
			t.Fatalf("this test does not know the field %s of a Spec; give it two values", name)
		}
		names = append(names, name)
	}
	return names
}

// issuing is a gate that makes tokens for tests.
type issuing interface {
	apitest.Remote
	Issue(t testing.TB, p principal.Principal, w principal.Wanted) token.Secret
}

// clientsOf are clients of g of every kind: that of descriptors, with a token on the socket, and
// with a token over TLS.
func clientsOf(t *testing.T, g issuing) map[string]*carrel.Client {
	t.Helper()
	socket, _ := apitest.Serve(t, g, &alice, api.Options{Tokens: authn.NewTokens(g)})
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{})
	secret := g.Issue(t, alice, principal.Wanted{Roles: principal.Operator}).Reveal()
	all := map[string]*carrel.Client{}
	for name, o := range map[string]carrel.Options{
		"descriptors":           {Host: "unix://" + socket},
		"a token on the socket": {Host: "unix://" + socket, Token: secret},
		"a token over TLS":      {Host: "https://" + addr, Token: secret, Fingerprint: keys.Fingerprint()},
	} {
		c, err := carrel.New(o)
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", name, err))
		}
		t.Cleanup(func() { c.Close() })
		all[name] = c
	}
	return all
}
