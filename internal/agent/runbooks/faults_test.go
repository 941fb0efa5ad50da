package runbooks_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
)

// looked runs the steps of a runbook that only read on this machine, and returns all that they print.
func looked(t *testing.T, name string, values map[string]string, env ...string) string {
	t.Helper()
	r := runbooks.Find(builtin(t), name)
	text, err := r.Text(values)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	steps := 0
	for lines := strings.Split(text, "\n"); len(lines) > 1; lines = lines[1:] {
		if !strings.Contains(lines[0], ", only reads: ") {
			continue
		}
		steps++
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := exec.CommandContext(ctx, "/bin/sh", "-c", strings.TrimSpace(lines[1]))
		c.Env, c.Stdout, c.Stderr = append(append(os.Environ(), "LC_ALL=C"), env...), &out, &out
		_ = c.Run() // a program that is not there says so
		cancel()
	}
	if steps != len(r.ReadOnly()) {
		t.Fatalf("%d of %d steps were run", steps, len(r.ReadOnly()))
	}
	return out.String()
}

// finds has a runbook find a planted fault: its output matches a regular expression.
func finds(t *testing.T, name string, values map[string]string, want string, env ...string) {
	t.Helper()
	if out := looked(t, name, values, env...); !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("runbook %s does not find %s in:\n%s", name, want, out)
	}
}

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("the fault cannot be planted here: there is no %s", program)
	}
}

// start starts a program that runs until the test's end.
func start(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait() // it was killed
	})
	return c
}

// zombie leaves a process that has ended and was not reaped.
func zombie(t *testing.T) {
	t.Helper()
	c := start(t, "/bin/true")
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, c.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}

func TestFindsAnExpiredCertificate(t *testing.T) {
	needs(t, "openssl")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ended := time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "planted.test"}, DNSNames: []string{"planted.test"},
		NotBefore: ended.AddDate(-1, 0, 0), NotAfter: ended,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).HandshakeContext(t.Context()) // the client looks at the certificate and goes
			_ = c.Close()
		}
	}()
	out := looked(t, "cert", map[string]string{"port": l.Addr().String(), "file": file})
	if n := strings.Count(out, "notAfter=Mar  4 05:06:07 2021 GMT"); n != 2 || !strings.Contains(out, "planted.test") {
		t.Errorf("it is found %d times, on the port and in the file:\n%s", n, out)
	}
}

func TestFindsAContainerThatEnded(t *testing.T) {
	needs(t, "docker")
	if out, err := exec.CommandContext(t.Context(), "docker", "info").CombinedOutput(); err != nil {
		t.Skipf("the fault cannot be planted here: docker does not answer: %.200s", out)
	}
	name := "planted-" + strings.ToLower(rand.Text()[:8])
	load := exec.CommandContext(t.Context(), "docker", "import", "-", name)
	if out, err := load.CombinedOutput(); err != nil { // an empty image
		t.Skipf("the fault cannot be planted here: %.200s", out)
	}
	defer func() {
		for _, argv := range [][]string{{"rm", "-f", name}, {"rmi", "-f", name}} {
			_ = exec.CommandContext(context.WithoutCancel(t.Context()), "docker", argv...).Run() // what is left has a name of its own
		}
	}()
	_ = exec.CommandContext(t.Context(), "docker", "run", "--name", name, name, "/no-such-program").Run() // it has none
	finds(t, "container", map[string]string{"container": name}, `no-such-program.*Created.*`+name)
}

func TestFindsAFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("carrel-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("the fault cannot be planted here: mount: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("2 MiB fit into 1 MiB")
	}
	finds(t, "disk", map[string]string{"dir": dir}, `tmpfs .* 100% `+regexp.QuoteMeta(dir)+`\n`)
	finds(t, "disk", map[string]string{"dir": dir}, `1\.0M\s+`+regexp.QuoteMeta(dir)+`\n`)
}

func TestFindsABusyLoop(t *testing.T) {
	c := start(t, "/bin/sh", "-c", "while :; do :; done", "planted-busy")
	// ps shows a share of the time since the start, which of a process that began just now is none.
	for until := time.Now().Add(time.Minute); ticks(t, c.Process.Pid) < 50; <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it is not busy")
		}
	}
	finds(t, "load", nil, fmt.Sprintf(`(?m)^ *%d .*planted-busy$`, c.Process.Pid))
}

// ticks is what a process used of the processor, in hundredths of a second (user mode: field 14 of /proc/PID/stat).
func ticks(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	n, err := strconv.Atoi(f[11])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFindsAnErrorInALog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.log")
	text := strings.Repeat("all is well\n", 3000) + "12:00 Fatal: planted fault\n" + strings.Repeat("all is well\n", 100)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	finds(t, "logs", map[string]string{"file": file}, `3001:12:00 Fatal: planted fault`)
}

func TestFindsWhoHasTheMemory(t *testing.T) {
	hog := make([]byte, 300<<20)
	for i := 0; i < len(hog); i += os.Getpagesize() {
		hog[i] = 1
	}
	finds(t, "memory", nil, fmt.Sprintf(`(?m)^ *%d .*runbooks\.test`, os.Getpid()))
	if hog[0] != 1 {
		t.Error("the memory is not used any more")
	}
}

func TestFindsTheRelease(t *testing.T) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Skipf("the fault cannot be planted here: %v", err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	finds(t, "os", nil, regexp.QuoteMeta(first))
	finds(t, "os", nil, `Linux `+regexp.QuoteMeta(unix.ByteSliceToString(u.Release[:]))+" ")
}

// A package is held in a copy of dpkg's database.
func TestFindsAHeldPackage(t *testing.T) {
	needs(t, "dpkg-query")
	dir := t.TempDir()
	b, err := os.ReadFile("/var/lib/dpkg/status")
	if err != nil {
		t.Skipf("the fault cannot be planted here: %v", err)
	}
	held := regexp.MustCompile(`(\nPackage: bash\n(?:.+\n)*?Status: )install ok`).ReplaceAllString(string(b), "${1}hold ok")
	if held == string(b) {
		t.Skip("the fault cannot be planted here: bash is not installed")
	}
	for name, text := range map[string]string{"status": held, "available": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"updates", "info", "triggers"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	finds(t, "packages", nil, `(?m)^hi +bash\S* \d`, "DPKG_ADMINDIR="+dir)
}

func TestFindsWhatListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	finds(t, "ports", map[string]string{"port": strconv.Itoa(port)},
		fmt.Sprintf(`127\.0\.0\.1:%d\s|0100007F:%04X 00000000:0000 0A`, port, port))
	if _, err := exec.LookPath("ss"); err == nil {
		finds(t, "ports", nil, fmt.Sprintf(`LISTEN.*127\.0\.0\.1:%d\s.*pid=%d`, port, os.Getpid()))
	}
}

func TestFindsWhatWasNotReaped(t *testing.T) {
	zombie(t)
	finds(t, "services", nil, fmt.Sprintf(`(?m)^ *\d+ +%d Z\S* .*true`, os.Getpid()))
	finds(t, "system", nil, `\d+ Z\n`)
	finds(t, "load", nil, fmt.Sprintf(`(?m)^ *\d+ +%d Z`, os.Getpid()))
}

func TestFindsAFailedService(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("the fault cannot be planted here: there is no systemd")
	}
	t.Skip("the fault is not planted: a test changes no unit of the machine")
}
