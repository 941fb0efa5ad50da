package root_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/test/userdb"
)

// user makes a user of the host for one test, with the groups named.
func user(t *testing.T, name string, groups ...string) *syscall.Credential {
	t.Helper()
	needRoot(t)
	name += "-" + strings.ToLower(rand.Text()[:6])
	args := []string{"-M", "-U", "-d", "/nonexistent", "-s", "/usr/sbin/nologin"}
	if len(groups) > 0 {
		args = append(args, "-G", strings.Join(groups, ","))
	}
	if err := userdb.Run(t.Context(), "/usr/sbin/useradd", append(args, name)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := userdb.Run(context.WithoutCancel(t.Context()), "/usr/sbin/userdel", name); err != nil {
			t.Error(err)
		}
	})
	var ids [2]uint32
	for i, flag := range []string{"-u", "-g"} {
		out, err := exec.CommandContext(t.Context(), "/usr/bin/id", flag, name).Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &ids[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: []uint32{}}
	for _, g := range groups {
		out, err := exec.CommandContext(t.Context(), "/usr/bin/getent", "group", g).Output()
		var gid uint32
		if err == nil {
			_, err = fmt.Sscan(strings.Split(string(out), ":")[2], &gid)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Groups = append(c.Groups, gid)
	}
	return c
}

// client is an HTTP client whose connections are those of a user.
func (h *host) client(t testing.TB, uid uint32) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // streams need it
	tr := &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return dialAs(h.run+"/carrel.sock", uid)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// post calls a method with a JSON body. Streaming methods get it in one envelope of the
// Connect protocol, and the last envelope is returned as the body.
func post(t testing.TB, c *http.Client, method protoreflect.MethodDescriptor, body string) (int, string) {
	t.Helper()
	contentType, raw := "application/json", []byte(body)
	streaming := method.IsStreamingClient() || method.IsStreamingServer()
	if streaming {
		contentType = "application/connect+json"
		raw = append([]byte{0, byte(len(body) >> 24), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
	}
	url := fmt.Sprintf("http://carrel/%s/%s", method.Parent().FullName(), method.Name())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return res.StatusCode, string(b)
}

// ask is post as a user. A call that carries descriptors is made on a connection for them.
func (h *host) ask(t testing.TB, uid uint32, method protoreflect.MethodDescriptor, body string) (int, string) {
	t.Helper()
	bySocket := strings.HasSuffix(string(method.Name()), "BySocket")
	if method.Name() != "Spawn" && method.Name() != "Attach" && !bySocket {
		c := h.client(t, uid)
		defer c.CloseIdleConnections() // one user may have so many
		return post(t, c, method, body)
	}
	w := h.upgraded(t, uid)
	defer w.Close()
	asked := request(1, fmt.Sprintf("%s/%s", method.Parent().Name(), method.Name()), body)
	if bySocket {
		w.sayWithSocket(t, asked)
	} else {
		w.say(asked)
	}
	said := w.line(t)
	if !strings.Contains(said, `"error"`) {
		return http.StatusOK, said
	}
	return http.StatusBadRequest, said
}

// methods are all that the API has.
func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		ms := services.Get(i).Methods()
		for j := range ms.Len() {
			all = append(all, ms.Get(j))
		}
	}
	return all
}

// Every method of the API, asked by a user about another user's workspace, by key and
// by name. A method that is added is tried here without being named.
func TestAnotherUsersWorkspace(t *testing.T) {
	// Of one user so many refusals are recorded at once: eve has those by name.
	alice, mallory, eve := user(t, "crt-alice"), user(t, "crt-mallory"), user(t, "crt-eve")
	key := "crt " + rand.Text()
	if r := shared.try(alice, "", "create", key); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	t.Cleanup(func() { shared.carrel(t, "destroy", "--purge", key) })
	d := shared.look(t, key)
	if r := shared.try(alice, "", "exec", key, "--", "sh", "-c", "echo secret-of-alice > file"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	r := shared.try(alice, "", "exec", "--detach", key, "--", "sh", "-c", "echo secret-of-alice; sleep 1000")
	id := strings.TrimSpace(r.out)
	if r.code != 0 || !strings.HasPrefix(id, "c-") {
		t.Fatalf("%+v", r)
	}
	if r := shared.try(alice, "", "archive", "create", "--live", key); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	t.Cleanup(func() { shared.carrel(t, "archive", "rm", key) })
	free := []string{
		"Version", "List", "ListArchives", // of no workspace; the lists are checked below
		// Of tokens, which are the caller's own; test/script/testdata/tokens.txtar tries them.
		"WhoAmI", "ListTokens", "CreateToken", "GetToken", "RevokeToken",
		// Of secrets, likewise; TestWhoHasWhichSecrets of internal/daemon/compose tries another's.
		"SetSecret", "RotateSecret", "ListSecrets", "RemoveSecret",
		"ListModels", // those of the host, and the own use; TestWhoSeesModelUsage of internal/daemon/compose tries another
		"Revive",     // of what is destroyed; TestRevive of internal/daemon/compose tries another's
		// By ids of their own; test/script/testdata/approvals.txtar tries them.
		"GetApproval", "AnswerApproval", "RevokePermission", "WatchApprovals",
	}
	for _, m := range methods() {
		if slices.Contains(free, string(m.Name())) {
			continue
		}
		for ref, who := range map[string]*syscall.Credential{key: mallory, d.Name: eve} {
			start := `{"workspace":%[1]q,"command":{"argv":["cat","file"]}}`
			if m.Name() == "Restore" {
				start = `{"from":%[1]q,"key":"crt mallory"}`
			}
			if m.Name() == "Join" {
				start = `{"workspace":%[1]q,"commandId":%[2]q}`
			}
			if m.Name() == "Serve" {
				start = `{"workspace":%[1]q,"taskId":%[2]q}`
			}
			if m.Parent().Name() == "PortService" {
				start = `{"workspace":%[1]q,"port":80}`
			}
			if m.Parent().Name() == "FileService" {
				start = `{"workspace":%[1]q,"path":"file"}`
			}
			body := fmt.Sprintf(
				`{"path":"file","to":"gone","workspace":%[1]q,"workspaces":[%[1]q],"archive":%[1]q,"key":%[1]q,"command":{"argv":["cat","file"]},`+
					`"commandId":%[2]q,"taskId":%[2]q,"prompt":"p","signal":9,"port":80,"size":{"rows":1,"cols":1},"purge":true,"argv":["git","push"],`+
					`"start":`+start+`}`, ref, id,
			)
			// What a method does not know is refused for that and proves nothing.
			body = known(t, m, body)
			mark := shared.mark(t)
			status, said := shared.ask(t, who.Uid, m, body)
			if m.Name() == "Create" {
				if ref == d.Name {
					continue // a key like any other, of a workspace of her own
				}
				if status == http.StatusOK {
					t.Errorf("Create: %s", said)
				}
				continue
			}
			if !strings.Contains(said, "permission_denied") || strings.Contains(said, "secret-of-alice") {
				t.Errorf("%s of %s: %d %s", m.FullName(), ref, status, said)
			}
			shared.recorded(t, mark, `"type":"denial"`, fmt.Sprintf(`"uid:%d"`, who.Uid))
		}
	}
	for _, list := range []string{"List", "ListArchives"} {
		if _, said := post(t, shared.client(t, mallory.Uid), methodNamed(t, list), "{}"); strings.Contains(said, d.Name) {
			t.Errorf("%s: %s", list, said)
		}
	}
	// Over the hand-over of descriptors too.
	for _, call := range []struct{ method, params string }{
		{fdapi.Exec, `{"workspace":%q,"command":{"argv":["cat","file"]}}`},
		{fdapi.Spawn, `{"start":{"workspace":%q,"command":{"argv":["cat","file"]}}}`},
		{fdapi.Attach, `{"workspace":%q,"command_id":"` + id + `"}`},
		{fdapi.Signal, `{"workspace":%q,"command_id":"` + id + `","signal":9}`},
		{fdapi.Resize, `{"workspace":%q,"command_id":"` + id + `","size":{"rows":1,"cols":1}}`},
	} {
		mark := shared.mark(t)
		w := shared.upgraded(t, eve.Uid)
		w.say(request(1, call.method, fmt.Sprintf(call.params, key)))
		said := w.line(t)
		if !strings.Contains(said, "permission_denied") {
			t.Errorf("%s: %s", call.method, said)
		}
		shared.recorded(t, mark, `"type":"denial"`, fmt.Sprintf(`"uid:%d"`, eve.Uid))
		_ = w.Close()
	}
	if out := shared.try(alice, "", "ps", key).out; !strings.Contains(out, id) || !strings.Contains(out, "running") {
		t.Errorf("alice's command is gone: %s", out)
	}
	if out := shared.try(alice, "", "exec", key, "--", "cat", "file").out; out != "secret-of-alice\n" {
		t.Errorf("alice's file: %q", out)
	}
	for _, r := range shared.since(t, 0) {
		if strings.Contains(r.raw, "secret-of-alice") && !strings.Contains(r.raw, "argv") {
			t.Errorf("output stands in the record: %s", r.raw)
		}
	}
}

// known keeps the fields of a JSON object that a method's request has.
func known(t testing.TB, m protoreflect.MethodDescriptor, body string) string {
	t.Helper()
	all, kept := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatal(err)
	}
	for k, v := range all {
		// Of several forms of a message, the one that starts something.
		f := m.Input().Fields().ByJSONName(k)
		if f != nil && (f.ContainingOneof() == nil || k == "start") {
			kept[k] = v
		}
	}
	b, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func methodNamed(t testing.TB, name string) protoreflect.MethodDescriptor {
	t.Helper()
	for _, m := range methods() {
		if string(m.Name()) == name {
			return m
		}
	}
	t.Fatalf("there is no method %s", name)
	return nil
}

// upgraded is a connection that descriptors can come over.
func (h *host) upgraded(t testing.TB, uid uint32) *wire {
	t.Helper()
	w := dial(t, h.run+"/carrel.sock", uid)
	w.say(
		"POST " + fdapi.Path + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\nContent-Length: 0\r\n\r\n",
	)
	if l := w.line(t); !strings.Contains(l, "101") {
		t.Fatalf("upgrade: %q", l)
	}
	for w.line(t) != "\r\n" {
	}
	return w
}

func TestMembersOfTheGroupAdminister(t *testing.T) {
	alice, admin := user(t, "crt-alice"), user(t, "crt-admin", "carrel")
	key := "crt " + rand.Text()
	if r := shared.try(alice, "", "create", key); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	t.Cleanup(func() { shared.try(nil, "", "destroy", "--purge", key) })
	for _, args := range [][]string{
		{"exec", key, "--", "true"},
		{"inspect", key},
		{"audit", "verify"},
		{"audit", "show", "--last", "1"},
		{"stop", key},
		{"destroy", "--purge", key},
	} {
		if r := shared.try(admin, "", args...); r.code != 0 {
			t.Errorf("%q: %+v", args, r)
		}
	}
	mark := shared.mark(t)
	for _, args := range [][]string{{"audit", "verify"}, {"audit", "show"}, {"audit", "tail"}} {
		if r := shared.try(alice, "", args...); r.code == 0 || strings.Contains(r.out, "hash") {
			t.Errorf("alice: %q: %+v", args, r)
		}
	}
	shared.recorded(t, mark, `"type":"denial"`, fmt.Sprintf(`"uid:%d"`, alice.Uid), "audit.read")
}

// A workspace is named by a key or a derived name, which no path can be made of.
func TestReferencesAreNoPaths(t *testing.T) {
	d := shared.desk(t)
	for _, ref := range []string{
		"", ".", "..", "/", "../" + d.Name, d.Name + "/", d.Name + "/..", "./" + d.Name, d.Name + "\x00", "%2e%2e%2f", d.Home, "*", "-rf",
		"--all", "crt-00000000/../" + d.Name, strings.Repeat("a", 5000),
	} {
		for _, m := range methods() {
			if m.Input().Fields().ByName("workspace") == nil {
				continue
			}
			if ref == "" && (m.Name() == "ListApprovals" || m.Name() == "ListPermissions" || m.Name() == "ModelUsage") {
				continue // those of all workspaces
			}
			quoted, err := json.Marshal(ref)
			if err != nil {
				t.Fatal(err)
			}
			body := known(t, m, fmt.Sprintf(`{"workspace":%s,"command":{"argv":["true"]},`+
				`"commandId":"c-0123456789abcdef","size":{"rows":1,"cols":1},"purge":true}`, quoted))
			status, said := shared.ask(t, 0, m, body)
			if !strings.Contains(said, "not_found") && !strings.Contains(said, "invalid_argument") {
				t.Errorf("%s of %.40q: %d %s", m.Name(), ref, status, said)
			}
		}
	}
	d.well(t)
}

// A browser that is made to speak to the socket through something, and clients that do
// not speak HTTP.
func TestTheAPIServesNoBrowserAndNoNoise(t *testing.T) {
	needRoot(t)
	client := shared.client(t, 0)
	for _, h := range [][2]string{
		{"Origin", "http://localhost"}, {"Origin", "null"}, {"Origin", "http://carrel"}, {"Sec-Fetch-Site", "cross-site"},
	} {
		for _, path := range []string{"/carrel.v1.WorkspaceService/List", fdapi.Path} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://carrel"+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(h[0], h[1])
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %s: %s: %d", path, h[0], h[1], res.StatusCode)
			}
		}
	}
	d := shared.desk(t)
	pid := shared.part(t, "daemon")
	open := descriptors(t, pid)
	for what, text := range garbage {
		w := dial(t, shared.run+"/carrel.sock", 61998)
		w.say(text)
		_ = w.CloseWrite()
		w.ended(t)
		_ = w.Close()
		w = shared.upgraded(t, 61998)
		w.say(text)
		if l := w.line(t); strings.Contains(l, `"result"`) {
			t.Errorf("%s over the upgrade: %q", what, l)
		}
		_ = w.Close()
	}
	for _, n := range []int{1, 253} {
		w := shared.upgraded(t, 61998)
		w.flood(t, request(1, "run", `{"workspace":"x","command":{"argv":["true"]}}`), n)
		_ = w.CloseWrite()
		if said := w.ended(t); strings.Contains(said, `"result"`) {
			t.Errorf("%d descriptors are taken: %s", n, said)
		}
		_ = w.Close()
	}
	// A thousand connections that say nothing, of somebody without rights.
	var idle []*wire
	for range 1000 {
		w, err := dialAs(shared.run+"/carrel.sock", 61998)
		if err != nil {
			break
		}
		idle = append(idle, w)
	}
	begin := time.Now()
	d.well(t)
	t.Logf("beside %d connections that say nothing, the daemon answered twice within %v", len(idle), time.Since(begin).Round(time.Millisecond))
	for _, w := range idle {
		_ = w.Close()
	}
	until(t, "the descriptors given back", func() bool { return descriptors(t, pid) <= open+4 })
	if now := shared.part(t, "daemon"); now != pid {
		t.Errorf("the daemon is another: pid %d, not %d", now, pid)
	}
	d.well(t)
}
