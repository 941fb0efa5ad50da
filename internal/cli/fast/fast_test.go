package fast_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli/fast"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// environ is an environment for a test.
func environ(vars ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range vars {
			if n, value, _ := strings.Cut(v, "="); n == name {
				return value, true
			}
		}
		return "", false
	}
}

// What the front runs by itself is sent as the full program sends it, and everything else is handed over.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		line string
		want string // the request; "" to hand over
	}{
		{"exec demo true", `{"start":{"workspace":"demo","command":{"argv":["true"],"source":"user","approval_wait_ms":-1}}}`},
		{"exec demo -- ls -l", `{"start":{"workspace":"demo","command":{"argv":["ls","-l"],"source":"user","approval_wait_ms":-1}}}`},
		{"exec demo -- -- x", `{"start":{"workspace":"demo","command":{"argv":["--","x"],"source":"user","approval_wait_ms":-1}}}`},
		{
			"exec --timeout 1500us -e A=1=2 --env B --env=UNSET -w /tmp --source=llm --thread t --grace 1s demo make -i",
			`{"start":{"workspace":"demo","command":{"argv":["make","-i"],"env":{"A":"1=2","B":"from here"},"cwd":"/tmp","timeout_ms":2,` +
				`"grace_ms":1000,"source":"llm","thread":"t","approval_wait_ms":-1}}}`,
		},
		{"", ""},
		{"ls", ""},
		{"exec", ""},
		{"exec demo", ""},
		{"exec demo --", ""},
		{"exec -- demo true", ""},
		{"exec -i demo cat", ""},
		{"exec demo -it bash", ""},
		{"exec demo --env A=1 env", ""},
		{"exec -t demo sh", ""},
		{"exec -it demo sh", ""},
		{"exec -d demo sleep", ""},
		{"exec --wait 1m demo true", ""},
		{"exec --create demo true", ""},
		{"exec --host unix:///x demo true", ""},
		{"exec --context other demo true", ""},
		{"exec --rootless demo true", ""},
		{"exec -o json demo true", ""},
		{"exec --help", ""},
		{"exec -h demo true", ""},
		{"exec -eA=1 demo true", ""},
		{"exec -e=A demo true", ""},
		{"exec -e", ""},
		{"exec -e =1 demo true", ""},
		{"exec -w site demo true", ""},
		{"exec -w ~ demo true", ""},
		{"exec --timeout x demo true", ""},
		{"exec --timeout -1s demo true", ""},
		{"exec --source me demo true", ""},
		{"--host unix:///x exec demo true", ""},
		{"exec demo \xff", ""},
		{"exec -e A=\xff demo true", ""},
		{"exec \xff true", ""},
	} {
		var args []string
		if c.line != "" {
			args = strings.Split(c.line, " ")
		}
		p, ok := fast.Parse(args, environ("B=from here"))
		if !ok {
			if c.want != "" {
				t.Errorf("%q is handed over", c.line)
			}
			continue
		}
		if b, err := json.Marshal(p.Request()); err != nil || string(b) != c.want {
			t.Errorf("%q: %s %v, want %s", c.line, b, err, c.want)
		}
	}
}

func TestWhichDaemon(t *testing.T) {
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	for _, c := range []struct {
		env  []string
		want string
	}{
		{nil, strings.TrimPrefix(carrel.DefaultHost, "unix://")},
		{[]string{"CARREL_HOST=unix:///run/x.sock"}, "/run/x.sock"},
		{[]string{"CARREL_HOST=unix://x.sock"}, ""},
		{[]string{"CARREL_HOST=https://x:1"}, ""},
		{[]string{"CARREL_ROOTLESS=1"}, ""},
		{[]string{"CARREL_CONTEXT=x"}, ""},
		{[]string{"CARREL_HOST=unix:///run/x.sock", "CARREL_TOKEN=x"}, ""},
		{[]string{"CARREL_HOST=unix:///run/x.sock", "CARREL_TOKEN_FILE=x"}, ""},
	} {
		got, ok := fast.SocketOf(environ(c.env...))
		if ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%v: %q %v", c.env, got, ok)
		}
	}
	// One of them may be in use.
	if err := os.MkdirAll(filepath.Join(config, "carrel"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "carrel", "contexts.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if socket, ok := fast.SocketOf(environ()); ok {
		t.Errorf("beside contexts: %q", socket)
	}
	if _, ok := fast.SocketOf(environ("CARREL_HOST=unix:///run/x.sock")); !ok {
		t.Error("a socket that is named needs no context")
	}
}

// The messages here are those of the schema: every member has its name and its kind of value there.
func TestMessagesAreTheSchemas(t *testing.T) {
	for _, c := range []struct{ ours, schema any }{
		{fast.SpawnRequest{}, carrelv1.SpawnRequest{}},
		{fast.SpawnResponse{}, carrelv1.SpawnResponse{}},
		{fast.SignalRequest{}, carrelv1.SignalRequest{}},
		{fast.Exited{}, carrelv1.Exited{}},
	} {
		same(t, reflect.TypeOf(c.ours), reflect.TypeOf(c.schema))
	}
}

func same(t *testing.T, ours, schema reflect.Type) {
	t.Helper()
	for ours.Kind() == reflect.Pointer {
		ours = ours.Elem()
	}
	for schema.Kind() == reflect.Pointer {
		schema = schema.Elem()
	}
	if ours.Kind() != reflect.Struct {
		signed := ours.Kind() == reflect.Int && (schema.Kind() == reflect.Int32 || schema.Kind() == reflect.Int64)
		if ours.Kind() != schema.Kind() && !signed {
			t.Errorf("%v is %v in the schema", ours, schema)
		}
		return
	}
	name := func(f reflect.StructField) string {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		return name
	}
	for f := range ours.Fields() {
		found := false
		for g := range schema.Fields() {
			if name(g) == name(f) {
				found = true
				same(t, f.Type, g.Type)
			}
		}
		if !found {
			t.Errorf("%v.%s is not in the schema as %q", ours, f.Name, name(f))
		}
	}
}
