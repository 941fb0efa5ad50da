package intercept_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// Each variable that a workspace has for its authority is enough for the programs that read it: with no other, they take a
// certificate of that authority. Those that are not installed are listed.
func TestTrustVariables(t *testing.T) {
	const grpc = `import grpc
c = grpc.secure_channel("api.example.org:443", grpc.ssl_channel_credentials())
grpc.channel_ready_future(c).result(timeout=8)
print("trusted")`
	const node = `const net = require("net"), tls = require("tls"), p = new URL(process.env.https_proxy);
const s = net.connect(p.port, p.hostname, () => 
	s.write("CONNECT api.example.org:443 HTTP/1.1\r\nHost: api.example.org:443\r\n\r\n"));
s.once("data", () => tls.connect({socket: s, servername: "api.example.org"}, () => { console.log("trusted"); process.exit(0) })
	.on("error", e => { console.log(e.code); process.exit(1) }));`
	const perl = `use LWP::UserAgent; my $u = LWP::UserAgent->new; $u->env_proxy;
$u->proxy(https => "connect://" . substr($ENV{https_proxy}, 7));
my $r = $u->get("https://api.example.org/"); print $r->header("Client-Warning") ? $r->content : "trusted";`
	variables := map[string]string{}
	for _, v := range sandbox.TrustVariables() {
		name, file, _ := strings.Cut(v, "=")
		variables[name] = file
	}
	tried := map[string]bool{}
	for _, c := range []struct {
		variable string
		argv     []string
	}{
		{"SSL_CERT_FILE", []string{
			"python3", "-c", `import urllib.request; urllib.request.urlopen("https://api.example.org/"); print("trusted")`,
		}},
		{"SSL_CERT_FILE", []string{"ruby", "-ropen-uri", "-e", `URI.open("https://api.example.org/"); puts "trusted"`}},
		{"SSL_CERT_FILE", []string{"php", "-r", `
$c = stream_context_create(["http" => ["proxy" => str_replace("http:", "tcp:", getenv("https_proxy")),
"request_fulluri" => true]]);
echo file_get_contents("https://api.example.org/", false, $c) === false ? "no" : "trusted";`}},
		{"REQUESTS_CA_BUNDLE", []string{
			"python3", "-c", `from pip._vendor import requests; requests.get("https://api.example.org/"); print("trusted")`,
		}},
		{"CURL_CA_BUNDLE", []string{"curl", "-sS", "-o", "/dev/null", "-w", "trusted", "https://api.example.org/"}},
		{"GIT_SSL_CAINFO", []string{"sh", "-c", `
git ls-remote https://api.example.org/x 2>&1 | grep -qi certificate || echo trusted`}},
		{"PIP_CERT", []string{"sh", "-c", `
python3 -m pip download --disable-pip-version-check --no-deps -i https://api.example.org/ nothing 2>&1 |
	grep -qiE "ssl|certificate" || echo trusted`}},
		{"CARGO_HTTP_CAINFO", []string{"sh", "-c", `
command -v cargo >/dev/null || exit 127; cd "$(mktemp -d)" && mkdir .cargo src && touch src/lib.rs
printf '[registries.x]\nindex = "sparse+https://api.example.org/"\n' > .cargo/config.toml
printf '[package]\nname = "a"\nversion = "0.1.0"\n[dependencies]\nb = {version = "1", registry = "x"}\n' > Cargo.toml
CARGO_NET_RETRY=0 cargo fetch 2>&1 | grep -qiE "ssl|certificate" || echo trusted`}},
		{"NODE_EXTRA_CA_CERTS", []string{"node", "-e", node}},
		{"DENO_CERT", []string{"deno", "eval", `await fetch("https://api.example.org/"); console.log("trusted")`}},
		{"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", []string{"python3", "-c", grpc}},
		{"WEBSOCKET_CLIENT_CA_BUNDLE", []string{"python3", "-c", `import websocket
try: websocket.create_connection("wss://api.example.org/")
except websocket.WebSocketBadStatusException: print("trusted")`}},
		{"PERL_LWP_SSL_CA_FILE", []string{"perl", "-e", perl}},
		{"JULIA_SSL_CA_ROOTS_PATH", []string{"julia", "-e", `
using Downloads; Downloads.request("https://api.example.org/"); println("trusted")`}},
	} {
		tried[c.variable] = true
		if variables[c.variable] == "" {
			t.Errorf("a workspace has no %s", c.variable)
			continue
		}
		t.Run(c.variable+"/"+c.argv[0], func(t *testing.T) {
			path, err := exec.LookPath(c.argv[0])
			if err != nil {
				t.Skipf("skipped: %s is not installed", c.argv[0])
			}
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
			p.host("api.example.org:443", &seen{})
			bundle := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(bundle, p.authority.PEM(), 0o600); err != nil {
				t.Fatal(err)
			}
			try := func(more ...string) string {
				ctx, cancel := context.WithTimeout(t.Context(), 2*within)
				defer cancel()
				cmd := exec.CommandContext(ctx, path, c.argv[1:]...)
				proxy := (&url.URL{Scheme: "http", Host: p.proxy.String()}).String()
				cmd.Env = append([]string{
					"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PYTHONPATH=" + os.Getenv("PYTHONPATH"), "https_proxy=" + proxy,
					"GIT_TERMINAL_PROMPT=0",
				}, more...)
				out, _ := cmd.CombinedOutput()
				return strings.TrimSpace(string(out))
			}
			out := try(c.variable + "=" + bundle)
			if strings.Contains(out, "ModuleNotFoundError") || strings.Contains(out, "Can't locate") || out == "" {
				t.Skipf("skipped: a library for it is not installed: %.200s", out)
			}
			if out != "trusted" {
				t.Errorf("it says %s", out)
			}
			if out := try(); out == "trusted" {
				t.Errorf("%v is trusted without the variable", c.argv)
			}
		})
	}
	for name := range variables {
		if !tried[name] {
			t.Logf("not tried here: %s", name)
		}
	}
}
