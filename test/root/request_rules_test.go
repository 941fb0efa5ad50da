package root_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pythonAsks asks for a URL by a method, and prints the status.
const pythonAsks = `
import sys, urllib.request, urllib.error
proxy = {"http": sys.argv[3], "https": sys.argv[3]} if len(sys.argv) > 3 else {}
ask = urllib.request.build_opener(urllib.request.ProxyHandler(proxy)).open
try: print(ask(urllib.request.Request(sys.argv[2], method=sys.argv[1]), timeout=20).status, end="")
except urllib.error.HTTPError as e: print(e.code, end="")
`

// Rules that name requests hold for programs that know nothing of them, by each way, with TLS and without, and a change
// holds when it returns.
func TestRequestRules(t *testing.T) {
	k := newKeyed(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Method, r.URL.Path) }))
	t.Cleanup(plain.Close)
	_, bare, err := net.SplitHostPort(plain.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	allow, deny := "GET,HEAD api.test:"+k.port+"/v1/*", "api.test/v1/secret"
	d := k.desk(t, "--allow", allow, "--allow", "GET http://api.test:"+bare+"/v1/*", "--deny", deny, "--allow", "127.0.0.1:"+k.port,
		"--allow", "127.0.0.1:"+bare)
	const proxy = "http://127.0.0.53:3128"
	asks := func(method, url, proxy string) (curl, python string) {
		t.Helper()
		args := []string{"/usr/bin/curl", "-sS", "-m", "20", "--path-as-is", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, url}
		py := []string{"/usr/bin/python3", "-c", pythonAsks, method, url}
		if method == "HEAD" {
			args = append(args, "-I")
		}
		if proxy != "" {
			args, py = append(args, "-x", proxy), append(py, proxy)
		}
		c, p := d.try(args...), d.try(py...)
		return c.out + c.err, p.out + p.err
	}
	for _, way := range []string{"", proxy} {
		for _, scheme := range []string{"https://api.test:" + k.port, "http://api.test:" + bare} {
			for _, test := range []struct{ method, path, want string }{
				{"GET", "/v1/x?y=/../z", "200"},
				{"POST", "/v1/x", "403"},
				{"GET", "/v2/x", "403"},
				{"GET", "/v1/../v1/x", "403"},
				{"GET", "/v1/SECRET", "403"},
			} {
				_ = k.got()
				curl, python := asks(test.method, scheme+test.path, way)
				if got := k.got(); curl != test.want || python != test.want || test.want == "403" && got != "" {
					t.Errorf("%s %s%s by %q: curl %s, python %s; the host got %q", test.method, scheme, test.path, way, curl, python, got)
				}
			}
		}
	}
	if r := d.try("/usr/bin/curl", "-sS", "-m", "20", "-d", "x", "https://api.test:"+k.port+"/v1/x"); r.code != 0 || !strings.Contains(r.out,
		`a POST to api.test:`+k.port+` is not allowed: no rule allows it`) || !strings.Contains(r.out,
		"carrel egress allow "+d.Name+" 'POST api.test:"+
			k.port+"/v1/x'") {
		t.Errorf("the refusal is %+v", r)
	}
	if got := k.carrel(t, "egress", "rules", d.Key); !strings.Contains(got, allow) || !strings.Contains(got, deny) {
		t.Errorf("the rules are %s", got)
	}
	if r := k.try(nil, "", "egress", "test", d.Key, "POST https://api.test:"+k.port+"/v1/x",
		"https://api.test:"+k.port+"/v1/x"); r.code != 1 ||
		!strings.Contains(r.out, "refused") || !strings.Contains(r.out, "'POST api.test:"+k.port+"/v1/x'") || !strings.Contains(r.out,
		"rule "+allow) {
		t.Errorf("egress test says %+v", r)
	}
	if got := k.carrel(t, "egress", "log", "--refused", d.Key); !strings.Contains(got, "a POST to api.test:"+k.port+" is not allowed") ||
		!strings.Contains(got, "the rule "+deny+" denies it") {
		t.Errorf("the record is\n%s", got)
	}
	// A change holds at once.
	post := "POST api.test:" + k.port + "/v1/*"
	k.carrel(t, "egress", "allow", d.Key, post)
	if curl, _ := asks("POST", "https://api.test:"+k.port+"/v1/x", ""); curl != "200" {
		t.Errorf("allowed: %s", curl)
	}
	k.carrel(t, "egress", "rm", d.Key, post)
	if curl, _ := asks("POST", "https://api.test:"+k.port+"/v1/x", ""); curl != "403" {
		t.Errorf("removed: %s", curl)
	}
	// And with another daemon.
	if r := k.try(nil, "", "egress", "ask", d.Key, "GET api.test"); r.code == 0 || !strings.Contains(r.err, "ask about the host") {
		t.Errorf("asked about: %+v", r)
	}
	end(t, k.part(t, "daemon"), unix.SIGKILL)
	if err := k.up(); err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]string{"GET": "200", "POST": "403"} {
		if curl, _ := asks(method, "https://api.test:"+k.port+"/v1/x", ""); curl != want {
			t.Errorf("%s after a restart: %s", method, curl)
		}
	}
}

// A workspace that was started without an authority gets one with its next start; until then nothing is let through that
// could not be judged.
func TestRequestRulesTakeAStart(t *testing.T) {
	k := newKeyed(t)
	d := k.desk(t, "--allow", "api.test:"+k.port, "--allow", "127.0.0.1:"+k.port)
	url := "https://api.test:" + k.port
	curl := func(more ...string) string {
		r := d.try(append([]string{"/usr/bin/curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"}, more...)...)
		return r.out + r.err
	}
	if got := curl("-k", url+"/x"); got != "200" {
		t.Fatalf("at first: %s", got)
	}
	rule := "GET other.test:" + k.port + "/v1/*"
	if r := k.try(nil, "", "egress", "allow", d.Key, rule); r.code == 0 || !strings.Contains(r.err, "it was started without an authority") ||
		!strings.Contains(r.err, "carrel stop "+d.Name) {
		t.Errorf("the first rule about requests: %+v", r)
	}
	// What denies is taken, and until the next start that is the whole host.
	k.carrel(t, "egress", "deny", d.Key, "DELETE api.test")
	if got := curl("-k", url+"/x"); strings.Contains(got, "200") {
		t.Errorf("what could not be judged was let through: %s", got)
	}
	k.carrel(t, "stop", d.Key)
	k.carrel(t, "egress", "allow", d.Key, rule)
	for _, test := range []struct{ url, method, want string }{
		{url + "/x", "GET", "200"},
		{url + "/x", "DELETE", "403"},
		{"https://other.test:" + k.port + "/v1/x", "GET", "200"},
		{"https://other.test:" + k.port + "/x", "GET", "403"},
	} {
		if got := curl("-X", test.method, test.url); got != test.want {
			t.Errorf("%s %s after the start: %s", test.method, test.url, got)
		}
	}
}
