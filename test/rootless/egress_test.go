//go:build linux

package rootless_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/test/nameserver"
)

// site is a web server that the host has, of HTTP and HTTPS, for any name below "test".
type site struct{ plain, tls string }

func newSite(t *testing.T, u *user) site {
	t.Helper()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s at %s\n", r.Host, r.URL.Path) })
	plain, secure := httptest.NewServer(h), httptest.NewUnstartedServer(h)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if r := finish(u.command("project", "/bin/sh", "-c", "umask 022; cat > ca.pem"), string(ca)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	port := func(s *httptest.Server) string {
		_, p, err := net.SplitHostPort(s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return site{port(plain), port(secure)}
}

// network gives u's runs a name server, with rules for every one of them.
func (u *user) network(zone map[string]string, more string) {
	u.t.Helper()
	at, stop, err := nameserver.Start(u.t.Context(), zone)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(stop)
	text := "resolver: " + at + "\n" + more
	if r := finish(u.command("", "/bin/sh", "-c", "umask 022; cat > .config/carrel/egress.yaml"), text); r.code != 0 {
		u.t.Fatalf("%+v", r)
	}
}

// reach runs a script with rules.
func (u *user) reach(script string, allow ...string) result {
	u.t.Helper()
	args := []string{"--here"}
	for _, a := range allow {
		args = append(args, "--allow", a)
	}
	return u.run(append(args, "--", "bash", "-c", script)...)
}

// connections are those that u's record has.
func (u *user) connections() (all []egressapi.Connection) {
	u.t.Helper()
	for _, r := range u.records() {
		if r.Type != audit.Connection {
			continue
		}
		var c egressapi.Connection
		if err := json.Unmarshal(r.Data, &c); err != nil {
			u.t.Fatal(err)
		}
		if (c.Refused != "") != (r.Status == audit.StatusDenied) {
			u.t.Errorf("%+v is recorded as %s", c, r.Status)
		}
		all = append(all, c)
	}
	return all
}

// egressPIDs are the processes of u that are a carrel-egress.
func (u *user) egressPIDs() (all []int) {
	for _, pid := range u.processes() {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(b)) == "carrel-egress" {
			all = append(all, pid)
		}
	}
	return all
}

// A host that a rule names answers, to programs that know nothing of it; everything else is refused with a sentence, and
// recorded.
func TestEgressReaches(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	s := newSite(t, u)
	u.network(map[string]string{"example.com": "127.0.0.1", "other.test": "127.0.0.1"}, "")
	allow := []string{"example.com:" + s.plain, "example.com:" + s.tls, "127.0.0.1:" + s.plain, "127.0.0.1:" + s.tls}
	r := u.reach(fmt.Sprintf(`
		curl -sS http://example.com:%[1]s/plain
		curl -sS --cacert ca.pem https://example.com:%[2]s/tls
		curl -sS --http1.1 --cacert ca.pem https://EXAMPLE.com:%[2]s/one
		curl -sS -x http://127.0.0.53:3128 http://example.com:%[1]s/proxy
		curl -sS -x socks5h://127.0.0.53:3128 --cacert ca.pem https://example.com:%[2]s/socks
		curl -sS -x http://127.0.0.53:3128 --cacert ca.pem https://example.com:%[2]s/connect
		curl -sS -m 5 http://127.0.0.1:%[1]s/ || echo own loopback: $?
		curl -sS -m 5 http://192.0.2.1:%[1]s/
		curl -sS -m 5 http://127.0.0.2:%[1]s/ || echo loopback: $?
		python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect(("192.0.2.1", %[1]s)); s.send(b"x")
try: s.recv(1)
except Exception as e: print("datagram:", type(e).__name__)'
		curl -sS -m 5 http://other.test:%[1]s/ || echo unnamed: $?
		curl -sS -m 5 http://example.com:1/
		curl -sS -m 5 -x http://127.0.0.53:3128 http://other.test:%[1]s/
		curl -sS -m 5 -x socks5h://127.0.0.53:3128 http://other.test:%[1]s/ || echo socks: $?`, s.plain, s.tls), allow...)
	port := func(p string) string { return "example.com:" + p }
	for _, want := range []string{
		port(s.plain) + " at /plain", port(s.tls) + " at /tls", port(s.plain) + " at /proxy", port(s.tls) + " at /socks",
		port(s.tls) + " at /connect", "own loopback: 7", "192.0.2.1:" + s.plain + " is not allowed: no rule names it",
		"loopback: 7", "datagram: ConnectionRefusedError", "unnamed: 6", "example.com:1 is not allowed: no rule names it", "socks: 97",
		"other.test:" + s.plain + " is not allowed: no rule names it",
	} {
		if !strings.Contains(strings.ToLower(r.out), strings.ToLower(want)) {
			t.Errorf("%q is missing in %s\n%s", want, r.out, r.err)
		}
	}
	const told = `carrel: other.test is not allowed: no rule allows any port of it; "carrel run --allow other.test" allows it`
	if !strings.Contains(r.err, told+"\n") {
		t.Errorf("what allows the refused host is not said: %s", r.err)
	}
	if n := strings.Count(r.err, "carrel: other.test"); n != 1 {
		t.Errorf("the refused host is named %d times: %s", n, r.err)
	}
	var good, bad []string
	for _, c := range u.connections() {
		if c.Refused == "" {
			good = append(good, fmt.Sprint(c.Way, " ", c.Host, ":", c.Port, " ", c.Address))
			if c.ReceivedBytes == 0 || c.SentBytes == 0 || c.Rule == "" {
				t.Errorf("a record without bytes or rule: %+v", c)
			}
			continue
		}
		bad = append(bad, fmt.Sprint(c.Way, " ", c.Host, ":", c.Port))
	}
	slices.Sort(good)
	slices.Sort(bad)
	wantGood := []string{
		fmt.Sprintf("connect example.com:%s 127.0.0.1:%[1]s", s.tls), fmt.Sprintf("http example.com:%s 127.0.0.1:%[1]s", s.plain),
		fmt.Sprintf("socks example.com:%s 127.0.0.1:%[1]s", s.tls), fmt.Sprintf("transparent example.com:%s 127.0.0.1:%[1]s", s.plain),
		fmt.Sprintf("transparent example.com:%s 127.0.0.1:%[1]s", s.tls), fmt.Sprintf("transparent example.com:%s 127.0.0.1:%[1]s", s.tls),
	}
	slices.Sort(wantGood)
	if !slices.Equal(good, wantGood) {
		t.Errorf("connections %q, not %q", good, wantGood)
	}
	for _, want := range []string{"transparent 192.0.2.1:" + s.plain, "dns other.test:0", "transparent example.com:1", "http other.test:" + s.plain, "socks other.test:" + s.plain} {
		if !slices.Contains(bad, want) {
			t.Errorf("the refusal %q is not recorded: %q", want, bad)
		}
	}
	if left := u.processes(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// A rule with an address is one that programs can connect to as it is.
func TestEgressReachesAddresses(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	own := ownAddress(t)
	if own == "" {
		t.Skip("skipped: this host has no address but loopback")
	}
	u := newUser(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", own+":0")
	if err != nil {
		t.Fatal(err)
	}
	at := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, r.Host, "answers")
	})}}
	at.Start()
	t.Cleanup(at.Close)
	to := l.Addr().String()
	if r := u.reach("curl -sS -m 5 http://"+to+"/", to); r.out != to+" answers\n" {
		t.Errorf("%+v", r)
	}
	r := u.reach("curl -sS -m 5 http://"+to+"/", "example.com")
	if !strings.Contains(r.out, to+" is not allowed") || !strings.Contains(r.out, `"carrel run --allow `+to+`" allows it`) {
		t.Errorf("%+v", r)
	}
}

// A name that a rule allows does not lead to what the host can reach and the rules do not name.
func TestEgressKeepsInside(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	s := newSite(t, u)
	zone := map[string]string{
		"loop.test": "127.0.0.1", "meta.test": "169.254.169.254", "private.test": "10.0.0.1", "bench.test": "198.18.7.7", "any.test": "0.0.0.0",
		"other-loop.test": "127.0.0.2",
	}
	if own := ownAddress(t); own != "" {
		zone["own.test"] = own
	}
	u.network(zone, "treat_as_public: [10.0.0.0/8]\n")
	var script strings.Builder
	for name := range zone {
		fmt.Fprintf(&script, "curl -fsS -m 5 -o /dev/null http://%s:%s/ && echo %s answers\n", name, s.plain, name)
	}
	r := u.reach(script.String(), "*.test:"+s.plain, "127.0.0.2:1", "127.0.0.0/8:"+s.tls)
	if strings.Contains(r.out, "answers") {
		t.Errorf("%s", r.out)
	}
	for _, want := range []string{"loopback", "metadata", "benchmark"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no refusal says %s: %s", want, r.err)
		}
	}
	for _, c := range u.connections() {
		if c.Refused == "" {
			t.Errorf("connected: %+v", c)
		}
	}
}

// ownAddress is an address of this host that is not on loopback.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return ""
}

// piped starts a command and returns its stdin and stdout.
func piped(t *testing.T, c *exec.Cmd) (io.WriteCloser, io.Reader) {
	t.Helper()
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return in, out
}

// carrel-egress has no right that it has no use for, and what runs in the workspace cannot reach it.
func TestEgressIsConfined(t *testing.T) {
	u := newUser(t)
	u.network(nil, "")
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "-i", "--allow", "example.com", "--", "cat")
	in, out := piped(t, c)
	t.Cleanup(func() { in.Close(); _ = c.Wait() })
	_, _ = io.WriteString(in, "x")
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pids := u.egressPIDs()
	if len(pids) != 1 {
		t.Fatalf("processes %v", pids)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is not in its status:\n%s", want, b)
		}
	}
	if os.Geteuid() == 0 {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pids[0]))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pids[0], fd.Name()))
			// Go's runtime keeps the limits of its control group open.
			if !slices.ContainsFunc([]string{"socket:", "anon_inode:", "pipe:", "/dev/null", "/sys/fs/cgroup/"}, func(p string) bool {
				return strings.HasPrefix(to, p)
			}) {
				t.Errorf("it has %s open", to)
			}
		}
		// Its memory is closed to other processes of its user.
		if r := u.sh(fmt.Sprintf("cat /proc/%d/environ /proc/%[1]d/mem 2>&1 | head -c 100; ls /proc/%[1]d/fd", pids[0])); !strings.Contains(r.out+r.err, "Permission denied") {
			t.Errorf("%+v", r)
		}
	}
}

// A carrel-egress that is killed is replaced, and one that carrel run leaves behind ends.
func TestEgressIsReplaced(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	s := newSite(t, u)
	u.network(map[string]string{"example.com": "127.0.0.1"}, "")
	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "-i", "--allow", "example.com:"+s.plain,
		"--allow", "127.0.0.1:"+s.plain, "--", "bash", "-c", fmt.Sprintf("while read x; do curl -sS -m 20 http://example.com:%s/$x; done", s.plain))
	var said strings.Builder
	c.Stderr = &said
	in, out := piped(t, c)
	ask := func(path string) {
		t.Helper()
		fmt.Fprintln(in, path)
		want := "example.com:" + s.plain + " at /" + path + "\n"
		b := make([]byte, len(want))
		if _, err := io.ReadFull(out, b); err != nil || string(b) != want {
			t.Fatalf("%q, %v, not %q", b, err, want)
		}
	}
	ask("one")
	before := u.egressPIDs()
	if len(before) != 1 {
		t.Fatalf("processes %v", before)
	}
	if err := unix.Kill(before[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ask("two")
	after := u.egressPIDs()
	if len(after) != 1 || after[0] == before[0] {
		t.Errorf("processes %v and then %v", before, after)
	}
	in.Close()
	if err := c.Wait(); err != nil || !strings.Contains(said.String(), "carrel-egress ended by itself") {
		t.Errorf("%v: %s", err, said.String())
	}
	until(t, "the end of all", func() bool { return len(u.processes()) == 0 })

	c = u.command("project", filepath.Join(programs, "carrel"), "run", "--allow", "example.com", "--", "sleep", "100000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "carrel-egress", func() bool { return len(u.egressPIDs()) == 1 })
	_ = c.Process.Kill()
	_ = c.Wait()
	until(t, "the end of carrel-egress", func() bool { return len(u.egressPIDs()) == 0 })
}

// What is wrong is one line, and nothing runs.
func TestEgressRulesThatAreWrong(t *testing.T) {
	u := newUser(t)
	for _, c := range []struct{ allow, want string }{
		{"example.org/../path", "example.org/../path"},
		{"0x7f.1", "0x7f.1"},
		{"@nothing", "@nothing"},
		{"example.org:70000", "70000"},
		{"user@example.org", "@"},
		{"*.*.example.org", "*.*.example.org"},
	} {
		r := u.run("--allow", c.allow, "--", "echo", "ran")
		if r.code != 125 || r.out != "" || !strings.Contains(r.err, c.want) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("--allow %s: %+v", c.allow, r)
		}
	}
	for text, want := range map[string]string{
		"alow: [example.org]": "alow", "allow: [\"a b\"]": "a b", "treat_as_public: [x]": "treat_as_public", "resolver: nowhere": "resolver",
		"sets: {mine: [\"x y z/\"]}": "mine", "treat_as_public: [127.0.0.0/8]": "127.0.0.0/8",
	} {
		if r := finish(u.command("", "/bin/sh", "-c", "umask 022; cat > .config/carrel/egress.yaml"), text); r.code != 0 {
			t.Fatalf("%+v", r)
		}
		if r := u.run("--allow", "example.org", "--", "echo", "ran"); r.code != 125 || r.out != "" || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", text, r)
		}
	}
}

// Connections beyond the pace of the record are counted: none is left out, and the record stays small.
func TestEgressRecordIsPaced(t *testing.T) {
	u := newUser(t)
	s := newSite(t, u)
	u.network(map[string]string{"example.com": "127.0.0.1"}, "")
	const many = 1200 // three times what has a line of its own at once
	// The name is asked for once: a fast host asks for more of them than the limit of queries. One connection in two hundred is
	// answered, so that carrel-egress has taken those before it: a slow one would have more at once than it may, and one that it
	// has not when the run ends has reached nothing.
	r := u.reach(fmt.Sprintf(`a=$(getent hosts example.com | cut -d' ' -f1)
		ask() { exec 3<>/dev/tcp/$a/%[2]s; printf 'GET / HTTP/1.1\r\nHost: example.com:%[2]s\r\nConnection: close\r\n\r\n' >&3; cat <&3 >/dev/null; exec 3>&-; }
		for i in $(seq %[1]d); do if ((i %% 200)); then : >/dev/tcp/$a/%[2]s; else ask; fi || echo failed; done`, many, s.plain),
		"example.com:"+s.plain, "127.0.0.1:"+s.plain)
	if r.code != 0 || r.out != "" {
		t.Fatalf("%+v", r)
	}
	var records, connections int64
	for _, r := range u.records() {
		if r.Type != audit.Connection {
			continue
		}
		records++
		var data struct {
			Count  int64 `json:"count"`
			Untold struct {
				Connections int64 `json:"connections"`
			} `json:"untold"`
		}
		if err := json.Unmarshal(r.Data, &data); err != nil {
			t.Fatal(err)
		}
		connections += data.Count + data.Untold.Connections
	}
	if connections != many || records >= many/2 {
		t.Errorf("%d records of %d connections, not %d", records, connections, many)
	}
}
