//go:build linux

package rootless_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The names that the servers of these tests have.
var serverNames = []string{"web.example.org", "git.example.org"}

// newAuthority makes a CA, whose certificate is ca.pem in u's project, and returns what a server has from it.
func newAuthority(t *testing.T, u *user) *tls.Config {
	t.Helper()
	now := time.Now()
	make509 := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			parent, signer = template, key
		}
		template.NotBefore, template.NotAfter, template.BasicConstraintsValid = now.Add(-time.Hour), now.Add(24*time.Hour), true
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c, key
	}
	ca, caKey := make509(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of a test"}, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil, nil)
	leaf, key := make509(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: serverNames[0]}, DNSNames: serverNames,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	if r := finish(u.command("project", "/bin/sh", "-c", "umask 022; cat > ca.pem"), string(text)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}}
}

// programSite has what programs ask for, in plain text and over TLS.
type programSite struct {
	site
	// repositories is where /git/ is.
	repositories string
}

func newProgramSite(t *testing.T, u *user) programSite {
	t.Helper()
	s := programSite{repositories: t.TempDir()}
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s by %s\n", r.Host, r.Proto) })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		n, _ := io.Copy(w, r.Body)
		_ = http.NewResponseController(w).Flush() // with a length, curl would not wait for what follows the body
		w.Header().Set("Grpc-Status", strconv.FormatInt(n%2, 10))
	})
	mux.HandleFunc("/stream", stream)
	mux.HandleFunc("/socket", webSocket)
	if out, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output(); err == nil {
		mux.Handle("/git/", &cgi.Handler{
			Path: strings.TrimSpace(string(out)) + "/git-http-backend", Root: "/git",
			Env: []string{"GIT_PROJECT_ROOT=" + s.repositories, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=test", "HOME=" + s.repositories},
		})
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	plain, secure := httptest.NewUnstartedServer(mux), httptest.NewUnstartedServer(mux)
	plain.Config.Protocols = protocols
	plain.Start()
	secure.EnableHTTP2, secure.TLS = true, newAuthority(t, u)
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	s.plain, s.tls = portOf(t, plain.Listener.Addr()), portOf(t, secure.Listener.Addr())
	return s
}

func portOf(t *testing.T, a net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// stream answers each line that it reads at once, as a bidirectional stream of gRPC does.
func stream(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	_ = c.EnableFullDuplex()
	w.Header().Set("Content-Type", "application/grpc")
	_ = c.Flush()
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		fmt.Fprintf(w, "%s over %s\n", lines.Text(), r.Proto)
		_ = c.Flush()
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
}

// webSocket echoes short messages (RFC 6455).
func webSocket(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer conn.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	_ = rw.Flush()
	for {
		head := make([]byte, 6)
		if _, err := io.ReadFull(rw, head); err != nil || head[1]&0x7f > 125 {
			return
		}
		text := make([]byte, head[1]&0x7f)
		if _, err := io.ReadFull(rw, text); err != nil {
			return
		}
		for i := range text {
			text[i] ^= head[2+i%4]
		}
		// A text comes back, and a close too.
		_, _ = rw.Write(append([]byte{head[0], byte(len(text))}, text...))
		if rw.Flush() != nil || head[0]&0xf == 8 {
			return
		}
	}
}

const javaFetch = `import java.net.*; import java.net.http.*; import java.nio.file.*; import java.security.*; import java.security.cert.*;
import javax.net.ssl.*;
public class Fetch { public static void main(String[] a) throws Exception {
	KeyStore s = KeyStore.getInstance(KeyStore.getDefaultType()); s.load(null, null);
	s.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(Files.newInputStream(Path.of("ca.pem"))));
	TrustManagerFactory f = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()); f.init(s);
	SSLContext c = SSLContext.getInstance("TLS"); c.init(null, f.getTrustManagers(), null);
	for (HttpClient.Version v : HttpClient.Version.values()) System.out.print(HttpClient.newBuilder().sslContext(c).version(v).build()
		.send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString()).body()); } }
`

// webSocketScript sends a message and shows the answer.
const webSocketScript = `const s = new WebSocket(process.argv[1]);
s.onopen = () => s.send("ping"); s.onmessage = e => { console.log("got", e.data); s.close(); };
s.onerror = e => { console.log("error", e.message); process.exit(1); };`

// webPrograms ask the site. HTTP and HTTPS in a script are its addresses, and each program has to name the CA itself.
var webPrograms = []struct {
	name string
	// needs is a condition of the shell that holds on a host where it runs, with what to say otherwise.
	needs, missing string
	version        string
	script         string
	want           []string
}{
	{
		"curl", "command -v curl", "no curl", "curl --version | head -1", `
		curl -sS $HTTP/hello; curl -sS --http1.1 --cacert ca.pem $HTTPS/hello; curl -sS --http2 --cacert ca.pem $HTTPS/hello
		head -c 3000000 /dev/zero | curl -sS --http1.1 --cacert ca.pem -T - $HTTPS/echo | wc -c
		curl -sS --tlsv1.2 --tls-max 1.2 --cacert ca.pem $HTTPS/hello
		curl -sS -H 'Connection: keep-alive' $HTTP/hello $HTTP/hello`,
		[]string{"NAME:PLAIN by HTTP/1.1", "NAME:TLS by HTTP/1.1", "NAME:TLS by HTTP/2.0", "3000000", "NAME:TLS by HTTP/2.0", "NAME:PLAIN by HTTP/1.1\nNAME:PLAIN by HTTP/1.1"},
	},
	{
		"gRPC's use of HTTP/2, by curl", "curl --version | grep -q HTTP2", "no curl with HTTP/2", "curl --version | head -1", `
		grpc() { curl -sS --http2 -X POST -H 'Content-Type: application/grpc' -H 'TE: trailers' --data-binary @- "$@"; }
		printf hell | grpc -D /dev/stdout --cacert ca.pem $HTTPS/echo | tr -d '\r'
		head -c 5000000 /dev/zero | grpc --cacert ca.pem $HTTPS/echo | wc -c`,
		[]string{"HTTP/2 200", "hell", "grpc-status: 0", "5000000"},
	},
	{
		// curl has seconds between what comes on its input and what it sends.
		"gRPC's streams, by Node", "command -v node", "no node", "node --version",
		`NODE_EXTRA_CA_CERTS=ca.pem node -e '
		const c = require("http2").connect(process.argv[1]);
		const q = c.request({":method": "POST", ":path": "/stream", "content-type": "application/grpc", te: "trailers"});
		let n = 0; const next = () => n++ < 3 ? q.write("line " + n + "\n") : q.end();
		q.on("data", d => { process.stdout.write(d); next(); }).on("trailers", t => console.log("status", t["grpc-status"])).on("end", () => c.close());
		next();' $HTTPS`,
		[]string{"line 1 over HTTP/2.0\nline 2 over HTTP/2.0\nline 3 over HTTP/2.0\nstatus 0\n"},
	},
	{
		"HTTP/2 in plain text, by curl", "curl --version | grep -q HTTP2", "no curl with HTTP/2", "curl --version | head -1",
		`curl -sS --http2-prior-knowledge $HTTP/hello`,
		[]string{"NAME:PLAIN by HTTP/2.0"},
	},
	{
		"wget", "command -v wget", "no wget", "wget --version | head -1",
		`wget -q -O - $HTTP/hello; wget -q -O - --ca-certificate=ca.pem $HTTPS/hello`,
		[]string{"NAME:PLAIN by HTTP/1.1", "NAME:TLS by HTTP/1.1"},
	},
	{
		"Node fetch", "command -v node", "no node", "node --version",
		`NODE_EXTRA_CA_CERTS=ca.pem node -e 'Promise.all(process.argv.slice(1).map(u => fetch(u).then(r => r.text()))).then(a => console.log(a.join("")))' $HTTP/hello $HTTPS/hello`,
		[]string{"NAME:PLAIN by HTTP/1.1", "NAME:TLS by HTTP/1.1"},
	},
	{
		"Node https and http2", "command -v node", "no node", "node --version",
		`NODE_EXTRA_CA_CERTS=ca.pem node -e 'require("https").get(process.argv[1] + "/hello", r => r.pipe(process.stdout));
		const c = require("http2").connect(process.argv[1]); const q = c.request({":path": "/hello"}); q.on("end", () => c.close()).pipe(process.stdout)' $HTTPS`,
		[]string{"NAME:TLS by HTTP/1.1", "NAME:TLS by HTTP/2.0"},
	},
	{
		"WebSocket by Node", "node -e WebSocket || node --experimental-websocket -e WebSocket", "no node with a WebSocket", "node --version", `
		if node -e WebSocket 2>/dev/null; then flag=; else flag=--experimental-websocket; fi
		for u in ws${HTTP#http} wss${HTTPS#https}; do NODE_EXTRA_CA_CERTS=ca.pem node $flag -e "$WS" $u/socket; done`,
		[]string{"got ping\ngot ping"},
	},
	{
		"WebSocket by Python", "/usr/bin/python3 -c 'import websockets'", "no websockets in /usr/bin/python3",
		"/usr/bin/python3 -c 'import websockets.version as v; print(v.version)'", `/usr/bin/python3 -c '
import asyncio, ssl, sys, websockets
async def ask(url, **more):
    async with websockets.connect(url, **more) as s:
        await s.send("ping"); print("got", await s.recv())
asyncio.run(ask(sys.argv[1] + "/socket"))
asyncio.run(ask(sys.argv[2] + "/socket", ssl=ssl.create_default_context(cafile="ca.pem")))' ws${HTTP#http} wss${HTTPS#https}`,
		[]string{"got ping\ngot ping"},
	},
	{
		"Python urllib", "/usr/bin/python3 -c 0", "no /usr/bin/python3", "/usr/bin/python3 --version", `/usr/bin/python3 -c '
import ssl, sys, urllib.request as u
print(u.urlopen(sys.argv[1] + "/hello").read().decode(), u.urlopen(sys.argv[2] + "/hello", context=ssl.create_default_context(cafile="ca.pem")).read().decode())' $HTTP $HTTPS`,
		[]string{"NAME:PLAIN by HTTP/1.1", "NAME:TLS by HTTP/1.1"},
	},
	{
		"Python requests", "/usr/bin/python3 -c 'import requests'", "no requests in /usr/bin/python3",
		"/usr/bin/python3 -c 'import requests; print(requests.__version__)'", `/usr/bin/python3 -c '
import requests, sys
s = requests.Session(); s.verify = "ca.pem"
print(s.get(sys.argv[1] + "/hello").text, s.get(sys.argv[2] + "/hello").text, len(s.post(sys.argv[2] + "/echo", data=b"x" * 1000000).content))' $HTTP $HTTPS`,
		[]string{"NAME:PLAIN by HTTP/1.1", "NAME:TLS by HTTP/1.1", "1000000"},
	},
	{
		"Python httpx", "/usr/bin/python3 -c 'import httpx'", "no httpx in /usr/bin/python3",
		"/usr/bin/python3 -c 'import httpx; print(httpx.__version__)'", `/usr/bin/python3 -c '
import httpx, sys
c = httpx.Client(verify="ca.pem"); print(c.get(sys.argv[1] + "/hello").text, c.get(sys.argv[2] + "/hello").text)' $HTTP $HTTPS`,
		[]string{"NAME:PLAIN by HTTP/1.1", "NAME:TLS by HTTP/1.1"},
	},
	{
		"Java HttpClient", "java --list-modules | grep -q jdk.compiler", "no java with a compiler", "java --version | head -1",
		`java Fetch.java $HTTPS/hello`,
		[]string{"NAME:TLS by HTTP/1.1", "NAME:TLS by HTTP/2.0"},
	},
}

// Programs that know nothing of a proxy reach a host that a rule names.
func TestEgressPrograms(t *testing.T) {
	u := newUser(t)
	s := newProgramSite(t, u)
	name := serverNames[0]
	u.network(map[string]string{name: "127.0.0.1"}, "")
	if r := finish(u.command("project", "/bin/sh", "-c", "cat > Fetch.java"), javaFetch); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	setup := fmt.Sprintf("HTTP=http://%s:%s HTTPS=https://%[1]s:%[3]s WS='%[4]s'\n", name, s.plain, s.tls, webSocketScript)
	values := strings.NewReplacer("NAME", name, "PLAIN", s.plain, "TLS", s.tls)
	for _, p := range webPrograms {
		t.Run(p.name, func(t *testing.T) {
			u.t = t
			if r := u.sh(p.needs); r.code != 0 {
				t.Skipf("skipped: %s on this host", p.missing)
			}
			t.Log(strings.TrimSpace(u.sh(p.version).out))
			r := u.reach(setup+p.script, s.rules(name)...)
			for _, want := range p.want {
				if want = values.Replace(want); !strings.Contains(r.out, want) {
					t.Errorf("%q is missing in %q\n%s", want, r.out, r.err)
				}
			}
			// And not without the rule for the host.
			if r := u.reach(setup+p.script+"\ntrue", s.rules("other.example.org")...); strings.Contains(r.out, name+":") ||
				strings.Contains(r.out, "got ping") || !strings.Contains(r.err, name+" is not allowed") {
				t.Errorf("without a rule: %+v", r)
			}
		})
	}
	u.t = t
	for _, c := range u.connections() {
		if c.Refused == "" && c.Way != "transparent" {
			t.Errorf("a connection by another way: %+v", c)
		}
	}
}

// rules allow a name at the site, and the address of it.
func (s site) rules(name string) []string {
	return []string{name + ":" + s.plain, name + ":" + s.tls, "127.0.0.1:" + s.plain, "127.0.0.1:" + s.tls}
}

// git clones, fetches and pushes over HTTPS.
func TestEgressGit(t *testing.T) {
	if !has("git") {
		t.Skip("skipped: no git on this host")
	}
	u := newUser(t)
	s := newProgramSite(t, u)
	if out, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output(); err != nil || !has(strings.TrimSpace(string(out))+"/git-http-backend") {
		t.Skipf("skipped: no git-http-backend in %s", out)
	}
	t.Log(u.sh("git --version").out)
	name := serverNames[1]
	u.network(map[string]string{name: "127.0.0.1"}, "")
	// A commit with something in it, so that a push is more than one packet.
	made := exec.CommandContext(t.Context(), "/bin/sh", "-ec", `git init -q --bare -b main r.git; git -C r.git config http.receivepack true
		git clone -q r.git w 2>/dev/null; cd w; head -c 2000000 /dev/urandom > big; echo one > f; git add .
		git -c user.name=A -c user.email=a@example.org commit -qm one; git push -q origin HEAD:main`)
	made.Dir, made.Env = s.repositories, []string{"PATH=/usr/bin:/bin", "HOME=" + s.repositories, "GIT_CONFIG_GLOBAL=/dev/null"}
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := u.reach(fmt.Sprintf(`export GIT_SSL_CAINFO=$PWD/ca.pem GIT_TERMINAL_PROMPT=0; cd ~
		git clone -q https://%[1]s:%[2]s/git/r.git c && cd c && cat f && wc -c < big &&
		git -c http.version=HTTP/1.1 fetch -q && git -c protocol.version=0 ls-remote -q origin | wc -l &&
		head -c 3000000 /dev/urandom > more && git add more && git -c user.name=B -c user.email=b@example.org commit -qm two &&
		git push -q origin HEAD:main && echo pushed
		git clone -q http://%[1]s:%[3]s/git/r.git plain && git -C plain log --format=%%s`, name, s.tls, s.plain), s.rules(name)...)
	for _, want := range []string{"one\n2000000\n", "pushed\n", "two\none\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in %q\n%s", want, r.out, r.err)
		}
	}
	log := exec.CommandContext(t.Context(), "git", "-C", s.repositories+"/r.git", "log", "--format=%an", "main")
	if out, err := log.CombinedOutput(); err != nil || string(out) != "B\nA\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// ssh reaches a server by its name and port, where the server speaks first.
func TestEgressSSH(t *testing.T) {
	sshd := "/usr/sbin/sshd"
	switch {
	case !has("ssh") || !has("ssh-keygen"):
		t.Skip("skipped: no ssh on this host")
	case !has(sshd):
		t.Skip("skipped: no sshd on this host; apt-get install --no-install-recommends openssh-server")
	}
	u := newUser(t)
	dir := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	port := portOf(t, l.Addr())
	u.shAsCaller("cd " + dir + " && ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f own && cp own.pub keys")
	t.Log(u.shAsCaller("ssh -V 2>&1"))
	// As root the login is root's, and a command is forced; the keys are those of this test.
	me := strings.TrimSpace(u.shAsCaller("id -un"))
	config := fmt.Sprintf("HostKey %[1]s/host\nAuthorizedKeysFile %[1]s/keys\nStrictModes no\nUsePAM no\nPidFile none\nLogLevel ERROR\nPermitRootLogin yes\n"+
		"PasswordAuthentication no\nForceCommand cat; echo done as $SSH_ORIGINAL_COMMAND\n", dir)
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	if r := finish(u.command("project", "/bin/sh", "-c", "umask 077; cat > own"), string(own)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	host, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// sshd wants it, and a package makes it only for its service.
		switch err := os.Mkdir("/run/sshd", 0o755); {
		case err == nil:
			t.Cleanup(func() { _ = os.Remove("/run/sshd") })
		case !errors.Is(err, fs.ErrExist):
			t.Fatal(err)
		}
	}
	// Each connection has an sshd of its own, as by inetd.
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f, err := c.(*net.TCPConn).File()
			c.Close()
			if err != nil {
				continue
			}
			x := exec.CommandContext(t.Context(), sshd, "-i", "-e", "-f", dir+"/config")
			x.Stdin, x.Stdout, x.Stderr = f, f, os.Stderr
			if x.Start() == nil {
				go func() { _ = x.Wait() }()
			}
			f.Close()
		}
	}()
	name := "ssh.example.org"
	u.network(map[string]string{name: "127.0.0.1"}, "")
	script := fmt.Sprintf(`echo "[%[1]s]:%[2]s %[4]s" > known
		head -c 1000000 /dev/zero | ssh -F none -o BatchMode=yes -o UserKnownHostsFile=known -o IdentitiesOnly=yes -i own -p %[2]s %[3]s@%[1]s "a command" |
			tr -d '\0'; echo ended ${PIPESTATUS[1]}`, name, port, me, strings.TrimSpace(string(host)))
	r := u.reach(script, name+":"+port, "127.0.0.1:"+port)
	if !strings.Contains(r.out, "done as a command\nended 0") {
		t.Errorf("%+v", r)
	}
	if r := u.reach(script, name+":22", "127.0.0.1:"+port); !strings.Contains(r.out, "ended 255") || !strings.Contains(r.err, name+":"+port+" is not allowed") {
		t.Errorf("at a port that no rule names: %+v", r)
	}
}

// shAsCaller runs a script as who runs the tests.
func (u *user) shAsCaller(script string) string {
	out, err := exec.CommandContext(u.t.Context(), "/bin/sh", "-c", script).Output()
	if err != nil {
		u.t.Fatal(err)
	}
	return string(out)
}
