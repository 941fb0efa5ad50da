package root_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/nameserver"
)

// network is a carrel of a test's own, whose workspaces may be allowed names that a server of the test answers for.
type network struct {
	*host
	file string // egress.yaml
	port string // where the web server listens, of every name below "test"
}

func newNetwork(t *testing.T, more string) *network {
	t.Helper()
	return newNetworkWith(t, more, "")
}

// newNetworkWith is newNetwork with settings of the daemon.
func newNetworkWith(t *testing.T, more, settings string) *network {
	t.Helper()
	needRoot(t)
	at, stop, err := nameserver.Start(t.Context(), nameserver.Zone{"a.test": "127.0.0.1", "b.test": "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" { // a line at once, and then nothing
			fmt.Fprintln(w, "begun")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprintln(w, r.Host, "answers")
	}))
	t.Cleanup(web.Close)
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	file := ""
	h := newHostWith(t, func(dir string) string {
		// 127.0.0.1 is the host's own: a rule must name it, whatever name it has.
		file = filepath.Join(dir, "egress.yaml")
		text := fmt.Sprintf("resolver: %s\n%s", at, strings.ReplaceAll(more, "PORT", port))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%segress:\n  file: %s\n", settings, file)
	})
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	return &network{h, file, port}
}

// allow are the flags for names at the test's web server.
func (n *network) allow(names ...string) (flags []string) {
	for _, name := range append(names, "127.0.0.1") {
		flags = append(flags, "--allow", name+":"+n.port)
	}
	return flags
}

// get is what curl says inside.
func (n *network) get(t *testing.T, d *desk, name string) string {
	t.Helper()
	r := d.try("/bin/bash", "-c", fmt.Sprintf("curl -sS -m 10 http://%s:%s/ 2>&1 || echo no: $?", name, n.port))
	return r.out + r.err
}

// egressPID is the one carrel-egress of a workspace.
func (d *desk) egressPID(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(b), "carrel-egress\x00"+d.Name+"\x00") {
			continue
		}
		if found != 0 {
			t.Errorf("%s has more than one carrel-egress", d.Name)
		}
		found, err = strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// A workspace of the daemon reaches what its rules name, also after they were changed while it runs, and nothing else.
func TestEgressOfWorkspaces(t *testing.T) {
	n := newNetwork(t, "deny: ['forbidden.test']\n")
	d := n.desk(t, n.allow("a.test")...)
	answers := func(name string) {
		t.Helper()
		if got, want := n.get(t, d, name), fmt.Sprintf("%s:%s answers\n", name, n.port); got != want {
			t.Errorf("%s says %q, not %q", name, got, want)
		}
	}
	refuses := func(name string) {
		t.Helper()
		if got := n.get(t, d, name); !strings.Contains(got, "no: 6") {
			t.Errorf("%s says %q", name, got)
		}
	}
	answers("a.test")
	refuses("b.test")
	if out := n.carrel(t, "inspect", d.Key); !strings.Contains(out, "a.test:"+n.port) {
		t.Errorf("inspect says no rule:\n%s", out)
	}
	n.carrel(t, "egress", "allow", d.Key, "b.test:"+n.port)
	answers("b.test")
	answers("a.test")
	n.carrel(t, "egress", "deny", d.Key, "a.test")
	refuses("a.test")
	n.carrel(t, "egress", "rm", d.Key, "a.test", "b.test:"+n.port)
	answers("a.test")
	refuses("b.test")
	// A refusal says how to allow it.
	proxied := d.try("/bin/bash", "-c", fmt.Sprintf("curl -sS -m 10 -x http://127.0.0.53:3128 http://b.test:%s/", n.port))
	if want := fmt.Sprintf("carrel egress allow %s b.test:%s", d.Name, n.port); !strings.Contains(proxied.out, want) {
		t.Errorf("the refusal says %q, not %q", proxied.out, want)
	}
	// What the host's file denies, no workspace gets.
	n.carrel(t, "egress", "allow", d.Key, "forbidden.test")
	refuses("forbidden.test")
	n.carrel(t, "egress", "rm", d.Key, "forbidden.test")
	// That file is read again with the policy, and a wrong one changes nothing.
	before, err := os.ReadFile(n.file)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(text string) result {
		t.Helper()
		if err := os.WriteFile(n.file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return n.try(nil, "", "policy", "reload")
	}
	if r := reload(string(before) + "allow: ['https://wrong']\n"); r.code == 0 || !strings.Contains(r.err, n.file) {
		t.Errorf("a wrong file: %+v", r)
	}
	answers("a.test")
	if r := reload(strings.Replace(string(before), "forbidden.test", "a.test", 1)); r.code != 0 {
		t.Errorf("another file: %+v", r)
	}
	refuses("a.test")
	if r := reload(string(before)); r.code != 0 {
		t.Errorf("the first file again: %+v", r)
	}
	answers("a.test")

	// It has its rules again after a stop, and one without rules has no process.
	n.carrel(t, "stop", d.Key)
	if pid := d.egressPID(t); pid != 0 {
		t.Errorf("after the stop carrel-egress %d is there", pid)
	}
	answers("a.test")
	plain := n.desk(t)
	r := plain.try("/usr/bin/curl", "-sS", "-m", "10", "-x", "http://127.0.0.53:3128", "http://a.test:"+n.port)
	if !strings.Contains(r.err, "connect") {
		t.Errorf("a neighbour's way out serves it: %+v", r)
	}
	// Its first rules hold from its next start on, and until then it has no way out.
	if r := n.try(nil, "", append([]string{"update", plain.Key}, n.allow("a.test")...)...); r.code != 0 ||
		!strings.Contains(r.err, "carrel restart") {
		t.Errorf("a workspace without a way out: %+v", r)
	}
	if r := plain.try("/usr/bin/curl", "-sS", "-m", "10", "http://a.test:"+n.port); r.code == 0 {
		t.Errorf("before it has a way out: %+v", r)
	}
	n.carrel(t, "stop", plain.Key)
	d = plain
	answers("a.test")
	n.recorded(t, plain.Name, "a.test")
}

// recorded sees that the log has the connection of a workspace to a host.
func (n *network) recorded(t *testing.T, name, to string) {
	t.Helper()
	until(t, "the record of a connection to "+to, func() bool {
		b, err := n.readRecord()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var r struct {
				Type, Workspace, Status string
				Data                    struct {
					Host          string
					ReceivedBytes int64 `json:"received_bytes"`
				}
			}
			if json.Unmarshal([]byte(line), &r) == nil && r.Type == "connection" && r.Workspace == name && r.Data.Host == to && r.Status == "ok" {
				return r.Data.ReceivedBytes > 0
			}
		}
		return false
	})
}

// An administrator sees which connections a workspace made and which were refused, and sees new ones come. Nobody else does.
func TestEgressLog(t *testing.T) {
	n := newNetworkWith(t, "", everybody)
	d := n.desk(t, n.allow("a.test")...)
	other := n.desk(t, n.allow("a.test")...)
	n.get(t, d, "a.test")
	n.get(t, d, "b.test")
	allowed := regexp.MustCompile(`(?m)^\S+ \S+  a\.test:` + n.port + ` +transparent +\d.* B +\d.* B +\S+ +a\.test:` + n.port + `$`)
	refused := regexp.MustCompile(`(?m)^\S+ \S+  b\.test +dns +- +- +- +refused\b.*: .+$`)
	until(t, "both connections", func() bool {
		out := n.carrel(t, "egress", "log", d.Key)
		return allowed.MatchString(out) && refused.MatchString(out) && !strings.Contains(out, "WORKSPACE")
	})
	metrics := n.metrics(t)
	for _, want := range []string{
		`carrel_egress_connections_total{verdict="allowed",way="transparent"} 1`, `carrel_egress_connections_total{verdict="refused",way="dns"} `,
		`carrel_egress_bytes_total{direction="received"} `,
	} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("%s is missing in\n%s", want, metrics)
		}
	}
	if out := n.carrel(t, "egress", "log", "--refused", d.Name); allowed.MatchString(out) || !refused.MatchString(out) {
		t.Errorf("--refused shows\n%s", out)
	}
	if out := n.carrel(t, "egress", "log", "-n", "1", d.Name); strings.Count(out, "\n") != 2 {
		t.Errorf("-n 1 shows\n%s", out)
	}
	if out := n.carrel(t, "egress", "log", other.Key); strings.Contains(out, ".test") {
		t.Errorf("of another workspace it shows\n%s", out)
	}
	var hosts []string
	for line := range strings.Lines(n.carrel(t, "egress", "log", "-o", "json")) {
		var r struct {
			Type, Workspace string
			Data            struct{ Host string }
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Type != "connection" || r.Workspace != d.Name {
			t.Errorf("%s: %v", line, err)
		}
		hosts = append(hosts, r.Data.Host)
	}
	if !slices.Contains(hosts, "a.test") || !slices.Contains(hosts, "b.test") {
		t.Errorf("the JSON has the hosts %q", hosts)
	}
	user := &syscall.Credential{Uid: 61990, Gid: 61990, Groups: []uint32{}}
	if r := n.try(user, "", "egress", "log", d.Name); r.code == 0 || r.out != "" || !strings.Contains(r.err, "another user") {
		t.Errorf("another user: %+v", r)
	}

	// What comes is shown when it comes.
	f := n.follow(t, nil, "egress", "log", "-f", "-n", "1")
	if head := f.line(t); !strings.HasPrefix(head, "TIME") || !strings.Contains(head, "WORKSPACE") {
		t.Errorf("the head is %q", head)
	}
	f.line(t) // of those that there were
	n.get(t, other, "a.test")
	for {
		if line := f.line(t); strings.Contains(line, other.Name) && strings.Contains(line, "a.test:"+n.port) {
			break
		}
	}
}

// Whatever of carrel is killed, connections end, nothing is reached that no rule names, and a workspace that runs
// has its way out again without a start of its own.
func TestEgressComesBack(t *testing.T) {
	n := newNetwork(t, "")
	d := n.desk(t, n.allow("a.test")...)
	whole := func(what string) {
		t.Helper()
		until(t, "the way out after "+what, func() bool { return strings.Contains(n.get(t, d, "a.test"), "answers") })
		if got := n.get(t, d, "b.test"); strings.Contains(got, "answers") {
			t.Errorf("after %s b.test says %q", what, got)
		}
		d.well(t)
		if d.egressPID(t) == 0 {
			t.Errorf("after %s there is no carrel-egress", what)
		}
	}
	whole("the start")

	task := d.detach(t, "/usr/bin/curl", "-sS", "-N", fmt.Sprintf("http://a.test:%s/slow", n.port))
	until(t, "the first bytes", func() bool { return strings.Contains(n.try(nil, "", "logs", d.Key, task).out, "begun") })
	first := d.egressPID(t)
	end(t, first, unix.SIGKILL)
	if r := n.try(nil, "", "logs", "-f", d.Key, task); !strings.Contains(r.out, "transfer closed") {
		t.Errorf("a connection outlives its carrel-egress: %+v", r)
	}
	whole("the end of carrel-egress")
	if now := d.egressPID(t); now == first {
		t.Error("it is the same process")
	}

	hung := d.egressPID(t)
	if err := unix.Kill(hung, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A change of the rules finds out.
	n.carrel(t, append([]string{"update", d.Key}, "--deny", "c.test")...)
	whole("carrel-egress hung")

	for _, program := range []string{"daemon", "broker"} {
		end(t, n.part(t, program), unix.SIGKILL)
		if err := n.up(); err != nil {
			t.Fatal(err)
		}
		whole("the end of " + program)
	}
	n.carrel(t, "egress", "allow", d.Key, "b.test:"+n.port)
	if got := n.get(t, d, "b.test"); !strings.Contains(got, "answers") {
		t.Errorf("the rules cannot be changed any more: %q", got)
	}
}

// The id of carrel-egress gives no right to anything else of carrel's, and no file that others may not read.
func TestEgressIDIsNobodyElse(t *testing.T) {
	n := newNetwork(t, "")
	d := n.desk(t, n.allow("a.test")...)
	var settings struct {
		First uint32 `json:"uid_first"`
		Count uint32 `json:"uid_count"`
	}
	b, err := os.ReadFile(n.data + "/broker.json")
	if err == nil {
		err = json.Unmarshal(b, &settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	uid := settings.First + settings.Count - 2 // that of the first workspace
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.egressPID(t)))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid)) {
		t.Fatalf("it has not the id %d, %v:\n%s", uid, err, status)
	}
	who := &syscall.Credential{Uid: uid, Gid: uid}
	socket := n.run + "/carrel.sock"
	before, err := os.Stat(socket)
	if err == nil {
		err = os.Chmod(socket, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Ids that nothing has had yet, and those of workspaces that are gone, are nobody's either.
	for _, uid := range []uint32{uid, uid - 1, uid + 1, settings.First + settings.Count/2, settings.First + 2} {
		who := &syscall.Credential{Uid: uid, Gid: uid}
		if r := n.try(who, "", "ls"); r.code == 0 || !strings.Contains(r.err, fmt.Sprintf("uid %d is that of a workspace, or of what", uid)) {
			t.Errorf("the daemon serves %d: %+v", uid, r)
		}
	}
	if err := os.Chmod(socket, before.Mode().Perm()); err != nil {
		t.Fatal(err)
	}
	// Each line that is printed is something that it could do.
	const attack = `use Socket; use Fcntl;
for my $path (@ARGV) {
	if (-S $path) {
		socket(my $s, PF_UNIX, SOCK_STREAM, 0); next unless connect($s, sockaddr_un($path));
		syswrite($s, '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"version":1}}' . "\n");
		sysread($s, my $b, 100) and print "$path answers\n"; next;
	}
	sysopen(my $f, $path, O_RDONLY) and print "$path is open\n";
}`
	paths := []string{
		n.run + "/carrel.sock", n.run + "/broker.sock", n.run + "/x/" + d.Name + ".sock", n.data + "/broker.json", n.data + "/broker/ledger.jsonl",
		n.auditLog(), n.data + "/daemon/carrel.db", d.Home, fmt.Sprintf("/proc/%d/mem", d.egressPID(t)), fmt.Sprintf("/proc/%d/fd", d.egressPID(t)),
		fmt.Sprintf("/proc/%d/root", d.ExecutorPID), fmt.Sprintf("/proc/%d/mem", n.part(t, "daemon")),
	}
	for _, path := range paths[:7] {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("there is nothing to try: %v", err)
		}
	}
	try := func(who *syscall.Credential) result {
		c := n.command(t.Context(), who)
		c.Path, c.Args = "/usr/bin/perl", append([]string{"perl", "-e", attack}, paths...)
		return finish(c, "")
	}
	if r := try(who); r.code != 0 || r.out != "" {
		t.Errorf("it could: %+v", r)
	}
	if r := try(nil); strings.Count(r.out, "\n") < 5 {
		t.Errorf("not even root can: %+v", r)
	}
}
