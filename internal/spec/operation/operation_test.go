package operation_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

const name = id.Workspace("ws-2a97516c")

var demo = operation.Target{Kind: operation.Workspace, Name: name, Key: "demo", Owner: "uid:1000"}

func exec(t *testing.T, c operation.Command) operation.Exec {
	t.Helper()
	e, err := operation.NewExec(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The bytes are what approvals are bound to and records keep: they do not change.
func TestCanonical(t *testing.T) {
	create, err := operation.NewCreate(workspace.Wanted{
		Key: "demo", Profile: "chat", Limits: workspace.Limits{Pids: 64}, TTL: workspace.Forever, Idle: time.Second, NoStart: true,
		Mounts: []workspace.Mount{{Source: "/a", Destination: "/workspace"}}, Allow: []workspace.Opening{workspace.UserNS}, Request: "r",
		Reach: workspace.Reach{Allow: []string{"b.example", "a.example", "b.example"}, Deny: []string{"c.example"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	update, err := operation.NewUpdate(workspace.Change{
		Key: "new", Limits: workspace.Limits{Pids: 64}, TTL: time.Minute,
		Reach: workspace.ReachChange{Allow: []string{"b", "@a"}, Deny: []string{"c"}, Remove: []string{"e", "d", "e"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	restore, err := operation.NewRestore("demo", "a-1", workspace.RestoreWanted{
		Profile: "chat",
		Life:    workspace.Life{Idle: workspace.Forever},
	})
	if err != nil {
		t.Fatal(err)
	}
	token, err := operation.NewToken(principal.Wanted{Name: "ci", Roles: principal.Agent, Life: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	command := exec(t, operation.Command{
		Command: workspace.Command{Argv: []string{"sh", "-c", "echo <&>"}, Cwd: "/tmp", TimeoutMS: 5, GraceMS: 7}, TTY: true, Source: "user",
	})
	command.Env, command.EnvDigest, command.ID = []string{"A", "B"}, "00", "c-0123456789abcdef"
	once, err := operation.NewOnce(operation.Command{Command: workspace.Command{Argv: []string{"ls"}}, Detach: true},
		nil, []workspace.Opening{workspace.UserNS}, []string{"pids", "disk"}, []string{"deny b.example", "allow a.example"}, true)
	if err != nil {
		t.Fatal(err)
	}
	limits := `{"memory_bytes":0,"swap_bytes":0,"pids":64,"cpu_weight":0,"open_files":0}`
	for _, c := range []struct {
		op   operation.Operation
		on   operation.Target
		want string
	}{
		{operation.Simple(operation.PauseWorkspace), demo, `{"kind":"workspace.pause","workspace":"ws-2a97516c"}`},
		{operation.Simple(operation.ListWorkspaces), operation.Target{}, `{"kind":"workspace.list"}`},
		{
			create, demo, `{"kind":"workspace.create","workspace":"ws-2a97516c","key":"demo","limits":` + limits +
				`,"profile":"chat","ttl_ms":-1,"idle_ms":1000,"no_start":true,` +
				`"mounts":[{"source":"/a","destination":"/workspace"}],"allow":["userns"],` +
				`"reach":["allow a.example","allow b.example","deny c.example"]}`,
		},
		{
			update, demo, `{"kind":"workspace.update","workspace":"ws-2a97516c","key":"new","limits":` + limits +
				`,"ttl_ms":60000,"reach":["allow @a","allow b","deny c"],"unreach":["d","e"]}`,
		},
		{operation.Destroy{Ref: "demo", Purge: true}, operation.Target{}, `{"kind":"workspace.destroy","key":"demo","purge":true}`},
		{operation.Removal{Purge: true}, demo, `{"kind":"daemon.recover","workspace":"ws-2a97516c","purge":true}`},
		{
			operation.PutAway{Ref: "demo", Destroy: true, Live: true, Export: true},
			demo,
			`{"kind":"workspace.archive","workspace":"ws-2a97516c","key":"demo","purge":true,"live":true,"export":true}`,
		},
		{restore, demo, `{"kind":"workspace.restore","workspace":"ws-2a97516c","key":"demo","profile":"chat","idle_ms":-1,"archive":"a-1"}`},
		{
			operation.OnArchive(operation.RemoveArchive, "a-1"),
			operation.Target{Kind: operation.Archive},
			`{"kind":"archive.remove","archive":"a-1"}`,
		},
		{
			command, demo, `{"kind":"command.exec","workspace":"ws-2a97516c","argv":["sh","-c","echo \u003c\u0026\u003e"],"env":["A","B"],` +
				`"env_digest":"00","cwd":"/tmp","tty":true,"timeout_ms":5,"command":"c-0123456789abcdef","source":"user"}`,
		},
		{once, demo, `{"kind":"workspace.run","workspace":"ws-2a97516c","argv":["ls"],"detach":true,` +
			`"purge":true,"allow":["userns"],"accept":["disk","pids"],"reach":["allow a.example","deny b.example"]}`},
		{operation.Signal("c-1", 9, false), demo, `{"kind":"command.signal","workspace":"ws-2a97516c","command":"c-1","signal":"9"}`},
		{operation.Signal("c-1", 0, true), demo, `{"kind":"command.signal","workspace":"ws-2a97516c","command":"c-1","signal":"hangup"}`},
		{
			operation.OnApproval(operation.RevokePermission, "ap-1"), demo,
			`{"kind":"permission.revoke","workspace":"ws-2a97516c","approval":"ap-1"}`,
		},
		{
			operation.Allow{Argv: []string{"curl", "https://example.org/*"}, Everybody: true},
			operation.Target{},
			`{"kind":"permission.allow","argv":["curl","https://example.org/*"],"everybody":true}`,
		},
		{token, operation.Target{}, `{"kind":"token.create","token":{"name":"ci","roles":["agent"],"life_ms":1000}}`},
		{
			operation.OnToken(operation.RevokeToken, "0123456789ab"),
			operation.Target{Kind: operation.Token},
			`{"kind":"token.revoke","token":"0123456789ab"}`,
		},
		{
			operation.NewSecret("API_KEY", []string{"api.example.org"}, []string{"X-Api-Key"}, workspace.Sending{Inject: "query:q"}),
			operation.Target{Kind: operation.Secret, ID: "API_KEY", Owner: "uid:1000"},
			`{"kind":"secret.set","name":"API_KEY","hosts":["api.example.org"],"headers":["X-Api-Key"],"inject":"query:q"}`,
		},
		{operation.OnSecret(operation.ListSecrets, ""), operation.Target{}, `{"kind":"secret.list"}`},
		{operation.Simple(operation.ExecCommand), operation.Target{Kind: operation.Host}, `{"kind":"command.exec","target":"host"}`},
		{
			operation.Simple(operation.ExecCommand),
			operation.Target{Kind: operation.Remote, Name: "web-1"},
			`{"kind":"command.exec","target":"remote","host":"web-1"}`,
		},
	} {
		b, err := operation.Canonical(c.op, c.on)
		if err != nil || string(b) != c.want {
			t.Errorf("%s, %v\nwant %s", b, err, c.want)
		}
		if n := operation.NameIn(b); n != c.op.Op() {
			t.Errorf("%s names %s", b, n)
		}
	}
	// The SHA-256 of nothing.
	if d := operation.Digest(nil); d != "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("%s", d)
	}
}

// set gives each field of a struct a value in turn, and calls f.
func set(t *testing.T, v reflect.Value, f func(field string)) {
	t.Helper()
	for i := range v.NumField() {
		field, typ := v.Field(i), v.Type().Field(i)
		switch {
		case typ.Anonymous:
			set(t, field, f)
			continue
		case !typ.IsExported():
			continue
		case field.Kind() == reflect.String:
			field.SetString("x")
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		case field.Kind() == reflect.Int64:
			field.SetInt(7)
		case field.Type() == reflect.TypeFor[json.RawMessage]():
			field.SetBytes([]byte(`{"a":1}`))
		case field.Kind() == reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		default:
			t.Fatalf("%s is a %s: say how to set it", typ.Name, field.Kind())
		}
		f(typ.Name)
		field.SetZero()
	}
}

// Two operations that differ in anything differ in digest.
func TestEveryFieldCounts(t *testing.T) {
	command, approval, token := operation.Signal("", 0, false), operation.OnApproval(operation.RevokePermission, ""),
		operation.OnToken(operation.RevokeToken, "")
	stored, secret := operation.OnArchive(operation.ReadArchive, ""), operation.OnSecret(operation.RotateSecret, "")
	for _, op := range []any{
		&operation.Create{}, &operation.Update{}, &operation.Destroy{}, &operation.Removal{}, &operation.PutAway{}, &operation.Restore{},
		&operation.Allow{}, &operation.Exec{}, &operation.Once{}, &command, &approval, &token, &stored, &secret,
	} {
		v := reflect.ValueOf(op).Elem()
		seen := map[string]string{}
		digest := func(field string) {
			b, err := operation.Canonical(v.Interface().(operation.Operation), operation.Target{})
			if err != nil {
				t.Fatal(err)
			}
			d := operation.Digest(b)
			if other, same := seen[d]; same {
				t.Errorf("%T: %s makes no difference to %s", op, field, other)
			}
			seen[d] = field
		}
		digest("nothing")
		set(t, v, digest)
		if len(seen) < 2 {
			t.Errorf("%T has no fields", op)
		}
	}
	// The target counts too, whatever it is called.
	seen := map[string]operation.Target{}
	for _, on := range []operation.Target{
		{},
		demo,
		{Kind: operation.Workspace, Name: "ws-00000000"},
		{Kind: operation.Host},
		{Kind: operation.Remote, Name: "web-1"},
		{Kind: operation.Remote, Name: "web-2"},
		{Kind: operation.Remote, Name: name},
	} {
		b, err := operation.Canonical(operation.Exec{}, on)
		if err != nil {
			t.Fatal(err)
		}
		if other, same := seen[string(b)]; same {
			t.Errorf("%+v is %+v", on, other)
		}
		seen[string(b)] = on
	}
}

// Every row says all that is asked of it.
func TestTable(t *testing.T) {
	names, paths := map[operation.Name]bool{}, map[string]bool{}
	for _, r := range operation.Table {
		if names[r.Name] || r.Name == "" || r.Words == "" || strings.Contains(string(r.Name), " ") {
			t.Errorf("%q: the name is not of one row, or there are no words", r.Name)
		}
		names[r.Name] = true
		if operation.Of(r.Name).Name != r.Name {
			t.Errorf("%s is not found", r.Name)
		}
		if (r.Needs == 0) != (r.Name == operation.Login) { // nobody is known yet
			t.Errorf("%s needs %v", r.Name, r.Needs.Names())
		}
		if r.Class < operation.Change || r.Class > operation.Observe || r.Class.String() == "none" {
			t.Errorf("%s has no class", r.Name)
		}
		judged := r.Judged.Command || len(r.Judged.Rules) > 0
		if judged != (r.Class == operation.Change) {
			t.Errorf("%s is a %s, and judged: %v", r.Name, r.Class, judged)
		}
		for i, rule := range r.Judged.Rules {
			if last := i == len(r.Judged.Rules)-1; rule.Name == "" || rule.Reason == "" || rule.Risk < 0 || rule.Risk > 100 ||
				last != (rule.When == nil) {
				t.Errorf("%s: rule %d is %+v", r.Name, i, rule)
			}
		}
		if r.Repeatable && r.Class != operation.Change {
			t.Errorf("%s is repeatable, and a %s", r.Name, r.Class)
		}
		for _, c := range r.Calls {
			if paths[c.Path] || c.MaxRequest == 0 {
				t.Errorf("%s: %+v", r.Name, c)
			}
			paths[c.Path] = true
		}
	}
	if len(names) < 30 || len(paths) < 40 {
		t.Errorf("only %d rows with %d calls", len(names), len(paths))
	}
	// Nobody may do what has no row.
	if forgotten := operation.Of("workspace.forget"); principal.Self().Can(forgotten.Needs) || forgotten.Words == "" {
		t.Errorf("an operation without a row: %+v", forgotten)
	}
}

func TestSentence(t *testing.T) {
	for _, c := range []struct {
		name operation.Name
		on   operation.Target
		want string
	}{
		{operation.PauseWorkspace, demo, "pause workspace demo"},
		{operation.PauseWorkspace, operation.Target{Kind: operation.Workspace, Name: name}, "pause workspace ws-2a97516c"},
		{operation.CreateWorkspace, operation.Target{}, "create a workspace"},
		{operation.ReadAudit, operation.Target{}, "read the audit log"},
		{operation.ExecCommand, demo, "let the command run in workspace demo"},
		{operation.ExecCommand, operation.Target{Kind: operation.Host}, "run a command on this host"},
	} {
		if got := operation.Of(c.name).Sentence(c.on); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A token and a question are reached by others than a workspace is.
func TestReaches(t *testing.T) {
	user := func(uid uint32) principal.Principal { return principal.Principal{Kind: principal.User, UID: uid} }
	token := func(own string, roles principal.Roles, scope ...string) principal.Principal {
		return principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: own, Owner: "uid:1000", Roles: roles, Scope: scope}}
	}
	question := operation.Target{Kind: operation.Approval, Name: name, Key: "demo", Owner: "uid:1000", Requester: "token:a"}
	key := operation.Target{Kind: operation.Secret, ID: "API_KEY", Owner: "uid:1000"}
	made := operation.Target{Kind: operation.Token, ID: "c", Owner: "uid:1000", Makers: []string{"c", "b"}}
	renamed := demo
	renamed.NewKey = "other"
	for what, c := range map[string]struct {
		by   principal.Principal
		on   operation.Target
		want bool
	}{
		"owner":                                  {user(1000), demo, true},
		"another user":                           {user(1001), demo, false},
		"nobody":                                 {principal.Principal{}, demo, false},
		"the daemon as a whole":                  {user(1001), operation.Target{}, true},
		"scope":                                  {token("a", principal.Operator, "demo"), demo, true},
		"out of scope":                           {token("a", principal.Operator, "x"), demo, false},
		"renamed out of scope":                   {token("a", principal.Operator, "demo"), renamed, false},
		"renamed by the owner":                   {user(1000), renamed, true},
		"own question":                           {token("a", principal.Agent), question, true},
		"another's question, who answers none":   {token("b", principal.Agent), question, false},
		"another's question, who answers":        {token("b", principal.Approver), question, true},
		"question about another's":               {user(1001), question, false},
		"own token":                              {user(1000), made, true},
		"another's token":                        {user(1001), made, false},
		"maker":                                  {token("b", principal.Operator), made, true},
		"itself":                                 {token("c", principal.Operator), made, true},
		"a sister":                               {token("d", principal.Operator), made, false},
		"administrator's token":                  {token("d", principal.Admin), made, true},
		"own secret":                             {user(1000), key, true},
		"own secret, token":                      {token("a", principal.Operator), key, true},
		"own secret, token in a scope":           {token("a", principal.Operator, "demo"), key, false},
		"own secret, administrator's in a scope": {token("a", principal.Admin, "demo"), key, false},
		"another's secret":                       {user(1001), key, false},
		"another's secret, administrator":        {principal.Principal{Kind: principal.User, UID: 1002, Admin: true}, key, true},
		"administrator's, in a scope":            {token("d", principal.Admin, "demo"), made, false},
		"bound":                                  {user(1000).Bind(name, ""), demo, true},
		"bound elsewhere":                        {user(1000).Bind("ws-00000000", ""), demo, false},
		"bound, own question":                    {token("a", principal.Agent).Bind(name, ""), question, true},
		"bound elsewhere, own question":          {token("a", principal.Agent).Bind("ws-00000000", ""), question, false},
		"bound, another's question":              {token("b", principal.Approver).Bind(name, ""), question, false},
		"bound, own secret":                      {user(1000).Bind(name, ""), key, false},
	} {
		if got := operation.Reaches(c.by, c.on); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// What is made by a constructor was found usable.
func TestConstructorsValidate(t *testing.T) {
	usable := func(f func(*workspace.Command)) error {
		c := operation.Command{Command: workspace.Command{Argv: []string{"true"}}}
		f(&c.Command)
		_, err := operation.NewExec(c)
		_, once := operation.NewOnce(c, nil, nil, nil, nil, false)
		if (err == nil) != (once == nil) {
			t.Errorf("as one command: %v; for once: %v", err, once)
		}
		return err
	}
	for what, f := range map[string]func(*workspace.Command){
		"no program":         func(c *workspace.Command) { c.Argv = nil },
		"empty program":      func(c *workspace.Command) { c.Argv = []string{"", "x"} },
		"NUL":                func(c *workspace.Command) { c.Argv = []string{"a\x00b"} },
		"not UTF-8":          func(c *workspace.Command) { c.Argv = []string{"a\xff"} },
		"many arguments":     func(c *workspace.Command) { c.Argv = make([]string, workspace.MaxArgs+1); c.Argv[0] = "x" },
		"long arguments":     func(c *workspace.Command) { c.Argv = []string{"x", strings.Repeat("x", workspace.MaxArgBytes)} },
		"no variable":        func(c *workspace.Command) { c.Env = []string{"A"} },
		"no name":            func(c *workspace.Command) { c.Env = []string{"=b"} },
		"variable not UTF-8": func(c *workspace.Command) { c.Env = []string{"A=\xff"} },
		"relative directory": func(c *workspace.Command) { c.Cwd = "x" },
		"long directory":     func(c *workspace.Command) { c.Cwd = "/" + strings.Repeat("x", workspace.MaxCwd) },
		"negative timeout":   func(c *workspace.Command) { c.TimeoutMS = -1 },
		"long grace":         func(c *workspace.Command) { c.GraceMS = workspace.MaxGraceMS + 1 },
	} {
		if err := usable(f); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := usable(func(c *workspace.Command) { c.Env, c.Cwd, c.TimeoutMS = []string{"A=", "B=x=y"}, "/tmp", 1 }); err != nil {
		t.Error(err)
	}
	if _, err := operation.NewCreate(workspace.Wanted{Key: "x", TTL: time.Millisecond}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if _, err := operation.NewUpdate(workspace.Change{Limits: workspace.Limits{Pids: 1}}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}
