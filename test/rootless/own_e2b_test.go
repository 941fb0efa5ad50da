package rootless_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/carrel-dev/carrel/gen/e2b/process"
	"github.com/carrel-dev/carrel/gen/e2b/process/processconnect"
)

// Programs of E2B use one's own carrel.
func TestOwnE2B(t *testing.T) { eachOwner(t, ownE2B) }

type inSandbox struct {
	next       *http.Transport
	id, access string
}

func (s inSandbox) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("E2b-Sandbox-Id", s.id)
	r.Header.Set("X-Access-Token", s.access)
	return s.next.RoundTrip(r)
}

func ownE2B(t *testing.T, u *user) {
	if r := u.sh(`mkdir -p "$HOME/.config/carrel" && echo 'e2b_listen: 127.0.0.1:0' > "$HOME/.config/carrel/carreld.yaml"`); r.code != 0 {
		t.Fatal(r)
	}
	env := map[string]string{}
	for line := range strings.Lines(u.must("token", "create", "--e2b")) {
		name, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		env[name] = value
	}
	send := func(method, path, body string, client http.RoundTripper) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, env["E2B_API_URL"]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", env["E2B_API_KEY"])
		res, err := (&http.Client{Transport: client}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	status, b := send("POST", "/v2/sandboxes", `{"templateID":"base","timeout":600}`, nil)
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(b), &made); err != nil || status != http.StatusCreated {
		t.Fatalf("%d %s", status, b)
	}
	s := inSandbox{&http.Transport{}, made.SandboxID, made.EnvdAccessToken}
	defer s.next.CloseIdleConnections()
	if status, b := send("POST", "/files?path=f", "text", s); status != 200 {
		t.Errorf("upload: %d %s", status, b)
	}
	st, err := processconnect.NewProcessClient(&http.Client{Transport: s}, env["E2B_API_URL"]).Start(t.Context(),
		connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "sh", Args: []string{"-c", "cat f; exit 4"}}}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var out bytes.Buffer
	code := int32(-1)
	for st.Receive() {
		out.Write(st.Msg().GetEvent().GetData().GetStdout())
		if end := st.Msg().GetEvent().GetEnd(); end != nil {
			code = end.GetExitCode()
		}
	}
	if out.String() != "text" || code != 4 {
		t.Errorf("%q, %d, %v", out.String(), code, st.Err())
	}
	// Without a control group nothing can be paused: what says so is no 409, which SDKs take for "it is paused". What is to be
	// paused at the end of its time keeps its files.
	if status, b := send("POST", "/sandboxes/"+made.SandboxID+"/pause", "", nil); status != 204 &&
		(status != 501 || !strings.Contains(b, "takes a control group")) {
		t.Errorf("pause: %d %s", status, b)
	}
	if status, b := send("DELETE", "/sandboxes/"+made.SandboxID, "", nil); status != http.StatusNoContent {
		t.Errorf("kill: %d %s", status, b)
	}
	status, b = send("POST", "/sandboxes", `{"timeout":3,"autoPause":true}`, nil)
	if err := json.Unmarshal([]byte(b), &made); err != nil || status != http.StatusCreated {
		t.Fatalf("%d %s", status, b)
	}
	kept := inSandbox{s.next, made.SandboxID, made.EnvdAccessToken}
	if status, b := send("POST", "/files?path=f", "kept", kept); status != 200 {
		t.Errorf("upload: %d %s", status, b)
	}
	until(t, "the end of its time", func() bool {
		_, b := send("GET", "/sandboxes/"+made.SandboxID, "", nil)
		return strings.Contains(b, `"state":"paused"`)
	})
	if status, b := send("POST", "/sandboxes/"+made.SandboxID+"/connect", `{"timeout":60}`, nil); status != 201 {
		t.Errorf("connect: %d %s", status, b)
	}
	if status, b := send("GET", "/files?path=f", "", kept); status != 200 || b != "kept" {
		t.Errorf("after that: %d %q", status, b)
	}
}
