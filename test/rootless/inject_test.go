package rootless_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A secret that is injected is in no variable of the command, and the host gets it whatever the command sends.
func TestSecretIsInjected(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	k := newKeyed(t, u, "api.test", "other.test")
	script := fmt.Sprintf(`
		echo env "<$ANTHROPIC_API_KEY>"
		curl -sS https://api.test:%[1]s/v1
		curl -sS --http1.1 -H "X_Api_Key: theirs" -H "x-api-key: theirs" https://api.test:%[1]s/v1
		curl -sS -k https://other.test:%[1]s/ -o /dev/null
		curl -sS -k -L "https://api.test:%[1]s/v1?to=https://other.test:%[1]s/x" -o /dev/null
		env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; cat /etc/carrel/*; ls -la ~`, k.port)
	r := u.run("--here", "--allow", "api.test:"+k.port, "--allow", "other.test:"+k.port,
		"--secret", "ANTHROPIC_API_KEY@api.test:"+k.port+"=header:x-api-key", "--", "bash", "-c", script)
	if strings.Contains(r.out+r.err, secretValue) || !strings.Contains(r.out, "env <>") {
		t.Errorf("the command saw the secret, or a variable: %s%s", r.out, r.err)
	}
	at := "api.test:" + k.port + " " + secretValue
	want := []string{at, at, "other.test:" + k.port + " ", at, "other.test:" + k.port + " "}
	if got := k.got(); !slices.Equal(got, want) {
		t.Errorf("the hosts got %q\n%s", got, r.err)
	}
	// What may be the secret itself is not repeated.
	r = u.run("--here", "--allow", "api.test", "--secret", "ANTHROPIC_API_KEY@api.test="+secretValue, "--", "true")
	if r.code == 0 || strings.Contains(r.out+r.err, secretValue) || !strings.Contains(r.err, "header:NAME") {
		t.Errorf("%+v", r)
	}
}
