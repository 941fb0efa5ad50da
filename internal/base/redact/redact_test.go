package redact_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
)

// Secrets are concatenated here, so that scanners of repositories find none in this file.
var (
	hex36  = strings.Repeat("a1B2c3D4e", 4)
	long   = strings.Repeat("a1B2c3D4", 12)
	github = "gh" + "p_" + hex36
	jwt    = "ey" + "JhbGciOiJIUzI1NiJ9.ey" + "JzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
	shadow = "$6$" + "rounds=5000$saltsalt$" + long[:86]
	pgp    = strings.ReplaceAll(strings.ReplaceAll(pem, "OPENSSH PRIVATE"+" KEY", "PGP PRIVATE"+" KEY BLOCK"), "OPENSSH", "PGP")

	dockerconfig = base64.StdEncoding.EncodeToString([]byte(`{"auths":{"h":{"auth":"bWU6aHVudGVy"}}}`))
	hook         = "hooks.slack.com/services/" + "T0ABCDEFG/B0ABCDEFG/abcdefgh12345678"
	wrapped      = base64.StdEncoding.EncodeToString([]byte(pem))

	pem = "-----BEGIN OPENSSH PRIVATE" + " KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nAAAA\n-----END OPENSSH PRIVATE" + " KEY-----"
)

func TestText(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "correct horse battery")
	for _, c := range []struct{ text, secret string }{
		{"aws AK" + "IAIOSFODNN7EXAMPLE ends", "AK" + "IAIOSFODNN7EXAMPLE"},
		{"git clone https://x-access-token:" + github + "@github.com/a/b", github},
		{"(" + github + ")", github},
		{"github" + "_pat_11ABCDEFG0123456789_abcdefghijk", "github" + "_pat_11ABCDEFG0123456789_abcdefghijk"},
		{"glp" + "at-abcdefghij0123456789", "glp" + "at-abcdefghij0123456789"},
		{"xo" + "xb-123456789012-abcdefABCDEF", "xo" + "xb-123456789012-abcdefABCDEF"},
		{"key=AI" + "za" + long[:35], "AI" + "za" + long[:35]},
		{"sk-" + "ant-api03-" + long[:40], "sk-" + "ant-api03-" + long[:40]},
		{"sk-" + "proj-" + long[:40], "sk-" + "proj-" + long[:40]},
		{"sk-" + long[:48], "sk-" + long[:48]},
		{"npm" + "_" + hex36, "npm" + "_" + hex36},
		{"py" + "pi-" + long[:60], "py" + "pi-" + long[:60]},
		{"crl" + "_" + long[:32], "crl" + "_" + long[:32]},
		{"cookie " + jwt + ";", jwt},
		{"cat <<E\n" + pem + "\nE", pem},
		{"torn " + pem[:60], pem[:60]},
		{"psql postgres://app:s3cr3t@db.internal:5432/x", "s3cr3t"},
		{"redis://:hunter2@cache:6379", "hunter2"},
		{"curl -H 'Authorization: Bearer abcdef123456' https://x", "abcdef123456"},
		{"Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"},
		{"Authorization: abcdef123456", "abcdef123456"},
		{"password=hunter2 user=x", "hunter2"},
		{"PGPASSWORD=hunter2 psql", "hunter2"},
		{`{"password": "hunter2"}`, "hunter2"},
		{`{\"password\": \"hunter2\"}`, "hunter2"},
		{"mysql --password=hunter2 -u root", "hunter2"},
		{"tool --password hunter2 --verbose", "hunter2"},
		{"tool --password 'two words'", "two words"},
		{"--api-key=0123456789abcdef", "0123456789abcdef"},
		{"export DEPLOY_TOKEN=abcd1234efgh5678", "abcd1234efgh5678"},
		{"STRIPE_SECRET_KEY=whatever", "whatever"},
		{"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"},
		{"password\t=\thunter2", "hunter2"},
		{"CREATE USER a IDENTIFIED BY 'hun ter2'; x", "hun ter2"},
		{"create user a identified by hunter2;", "hunter2"},
		{"machine h login me password hunter2", "hunter2"},
		{"machine h\n login me\n password hunter2\n", "hunter2"},
		{"db.internal:5432:app:me:hunter2\nx", "hunter2"},
		{"*:*:*:me:hunter2", "hunter2"},
		{"root:" + shadow + ":19000:0:99999:7:::", shadow},
		{pgp, pgp},
		{"curl https://" + hook, hook},
		{`{"auths":{"h":{"auth":"bWU6aHVudGVy"}}}`, "bWU6aHVudGVy"},
		{".dockerconfigjson: " + dockerconfig, dockerconfig},
		{"data: " + wrapped, wrapped},
		{"a pass\x1b[1mword\x1b[0m=hun\x1b[31mter2\x1b[0m b", "hun\x1b[31mter2"},
		{"say correct horse battery twice", "correct horse battery"},
		{"client_secret=Zm9vYmFy&grant=x", "Zm9vYmFy"},
	} {
		got := r.Text(c.text)
		if c.secret == "" {
			continue
		}
		want := strings.SplitN(c.text, c.secret, 2)
		if strings.Contains(got, c.secret) || !strings.HasPrefix(got, want[0]+"[redacted:") || !strings.HasSuffix(got, "]"+want[1]) {
			t.Errorf("%q became %q", c.text, got)
		}
		if again := r.Text(got); again != got {
			t.Errorf("%q became %q the second time", got, again)
		}
	}
}

// Nothing but a key is hidden behind the first line of one.
func TestKeysEnd(t *testing.T) {
	r := redact.New([]byte("k"))
	begin, end := "-----BEGIN A PRIVATE"+" KEY-----", "-----END A PRIVATE"+" KEY-----"
	line := strings.Repeat("abcdEFGH", 8)
	for text, want := range map[string]string{
		": " + begin + "; scp x y:":                                     ": " + begin + "; scp x y:",
		": " + begin + "\nreboot\n: " + end:                             ": " + begin + "\nreboot\n: " + end,
		"grep -l '" + begin + "' -r .":                                  "grep -l '" + begin + "' -r .",
		"cat " + begin + "\n" + line + "\n; reboot":                     "cat #\n; reboot",
		begin + "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,0A\n\n" + line: "#",
		`"` + begin + `\n` + line + `\nAA==\n` + end + `\n"`:            `"#\n"`,
		"+" + begin + "\n+" + line + "\n+AA==\n+" + end + "\n+x":        "+#\n+x",
	} {
		got := r.Text(text)
		before, after, ok := strings.Cut(want, "#")
		if ok && (!strings.HasPrefix(got, before+"[redacted:private-key:") || !strings.HasSuffix(got, "]"+after)) || !ok && got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// A person who judges what a model wrote sees all but plain words.
func TestPlain(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "correct; horse")
	for text, want := range map[string]string{
		"password=hunter2 id":                        "",
		"tool --token abcd1234efgh":                  "",
		"x=" + github:                                "",
		`password="x$(reboot)"`:                      "x$(reboot)",
		`password='a;reboot'`:                        "a;reboot",
		"tool --password 'two words'":                "two words",
		"curl http://a:b;c@host":                     "b;c",
		"echo correct; horse":                        "correct; horse",
		`curl -H "Authorization: Bearer abcd$(id)b"`: "abcd$",
		`curl -H "Authorization: Bearer $TOKEN"`:     "",
		"cat <<E\n" + pem + "\nE":                    pem,
	} {
		shown, hidden := r.Plain(text)
		if hidden != want || want != "" && !strings.Contains(shown, want) || shown != text && !strings.Contains(shown, "[redacted:") {
			t.Errorf("%q is shown as %q, with %q hidden", text, shown, hidden)
		}
	}
	words, hidden := r.PlainArgv([]string{"mysql", "-phunter2", "-pa b"})
	if hidden != "a b" || words[2] != "-pa b" || words[1] == "-phunter2" {
		t.Errorf("%q, %q", words, hidden)
	}
	diff := "@@ -1,3 +1,3 @@\n a=1\n-password=\"a b\"\n+password=\"c d\"\n"
	if shown, hidden := r.PlainDiff(diff); hidden != "c d" || strings.Contains(shown, "a b") {
		t.Errorf("%q, %q", shown, hidden)
	}
}

// What is nearly how a token of the API is named is a value, and a secret that is known is one wherever it stands.
func TestNearlyPrincipals(t *testing.T) {
	r := redact.New([]byte("k"))
	for _, s := range []string{
		"token:0123456789abc", "token:0123456789aB", "token=0123456789ab", "token: 0123456789ab", `"token":"0123456789ab"`,
		"my_token:0123456789ab", "auth-token:0123456789ab", "TOKEN:0123456789ab", "token:0123456789ab-rest", "token:0123456789abé",
	} {
		if got := r.Text(s); got == s {
			t.Errorf("%q stays", s)
		}
	}
	r.Know("test", "0123456789ab")
	if got := r.Text("token:0123456789ab"); strings.Contains(got, "0123456789ab") {
		t.Errorf("a known secret stays: %q", got)
	}
}

// Texts that only look like secrets stay.
func TestInnocent(t *testing.T) {
	r := redact.New([]byte("k"))
	for _, s := range []string{
		"git show 9fceb02d0ae598e95dc970b74767f19372d61af8",
		"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"f47ac10b-58cc-4372-a567-0e02b2c3d479", "/home/u/.ssh/id_ed25519", "cat /etc/passwd",
		"PWD=/root", "OLDPWD=/var/lib", "SSH_AUTH_SOCK=/run/user/1000/agent", "PATH=/usr/bin:/bin",
		"ssh -i /home/u/.ssh/key.pem host", "--key /etc/ssl/private/a.key", "--token-file /run/secrets/x", "--key=./server.key",
		"https://example.org/a?b=c#d", "https://user@example.org/", "git@github.com:a/b.git", "http://[::1]:8080/x@y",
		"TOKEN=$GITHUB_TOKEN", "PASSWORD=${PASSWORD}", "password=`pass show x`", "--password $PW",
		"primary_key=id", "sort --key=2,3", "kubectl get secret app", "monkey=banana", "keyboard: us", "turkey:12345678",
		"sk-learn", "sk-scheduler-of-the-day-and-all-of-the-nights", "task-0123456789", "eyJ",
		"eyJhbGci and more text here to read", "AKIA", "AKIAxyz",
		"cannot read the key: no such file", "the token: it has expired", "author: someone", "compass=north", "bypass: yes",
		"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJl3dIeudNqd0DPMRD6OIh65 me",
		"cannot let token:0123456789ab allow commands", "token:0123456789ab", "by token:00ff00ff00ff, self",
		"password == x", "if secret = ", "password= reboot", "password authentication failed", "a password manager for you",
		"identified by", "a:1:b:c:", "12:30:45:a:b c", "::1:80:a:b", "\x1b[1mbold\x1b[0m text", "auth: \"basic\"",
		"passed: 12, failed: 0", "=", ":", "==", "://", "a:", "--", "-- x", "--password", "--password=", "password=",
	} {
		if got := r.Text(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
		if got := r.Argv(strings.Fields(s)); !slices.Equal(got, strings.Fields(s)) {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func TestArgv(t *testing.T) {
	r := redact.New([]byte("k"))
	for _, c := range []struct {
		argv []string
		at   int
		left string // of that word
	}{
		{[]string{"tool", "--token", "abcd1234efgh"}, 2, ""},
		{[]string{"tool", "--password", "pw"}, 2, ""},
		{[]string{"tool", "-password", "pw"}, 2, ""},
		{[]string{"/usr/bin/mysql", "-u", "root", "-phunter2"}, 3, "-p"},
		{[]string{"sshpass", "-p", "hunter2", "ssh", "h"}, 2, ""},
		{[]string{"curl", "-u", "me:hunter2", "https://x"}, 2, "me:"},
		{[]string{"docker", "login", "-u", "me", "-p", "hunter2"}, 5, ""},
		{[]string{"openssl", "rsa", "-passin", "pass:hunter2"}, 3, "pass:"},
		{[]string{"env", "API_TOKEN=abcd1234efgh", "x"}, 1, "API_TOKEN="},
		{[]string{"sh", "-c", "echo " + github}, 2, "echo "},
	} {
		before := slices.Clone(c.argv)
		got := r.Argv(c.argv)
		for i, w := range got {
			if i != c.at && w != before[i] || i == c.at && (!strings.HasPrefix(w, c.left+"[redacted:") || w == before[i]) {
				t.Errorf("%q became %q", before, got)
			}
		}
		if !slices.Equal(c.argv, before) {
			t.Errorf("the caller's list was changed: %q", c.argv)
		}
	}
	for _, argv := range [][]string{
		nil,
		{},
		{""},
		{"docker", "run", "-p", "8080:80", "x"},
		{"mkdir", "-p", "/a/b"},
		{"mysql", "-u", "root"},
		{"curl", "-u", "me"},
		{"git", "-p", "log"},
		{"tool", "--password", "--next"},
		{"ls", "--key", ""},
	} {
		if got := r.Argv(argv); !slices.Equal(got, argv) {
			t.Errorf("%q became %q", argv, got)
		}
	}
}

func TestEqualSecretsAreSeenToBe(t *testing.T) {
	a, b := redact.New([]byte("one")), redact.New([]byte("two"))
	x, y, z := a.Text("password=hunter2"), a.Text("the password: hunter2"), b.Text("password=hunter2")
	digest := func(s string) string { return s[strings.LastIndexByte(s, 58):] }
	if digest(x) != digest(y) || digest(x) == digest(z) || digest(x) == digest(a.Text("password=hunter3")) {
		t.Errorf("%q %q %q", x, y, z)
	}
	if a.Know("test", "abcdef", "abc") != 1 {
		t.Error("a value of three bytes is looked for")
	}
	var none *redact.Redactor
	if none.Text("password=x1") != "password=x1" || none.Argv([]string{"a"})[0] != "a" || string(none.JSON([]byte(`{}`))) != `{}` {
		t.Error("nil changes something")
	}
}

func TestJSON(t *testing.T) {
	r := redact.New([]byte("k"))
	in := `{"event":"x","argv":["curl","-u","me:hunter2"],"n":12345678901234567890,"deep":[{"note":"password=hunter2"}],` +
		`"password":"hunter2","key":"telegram-1234567890"}`
	got := string(r.JSON([]byte(in)))
	if strings.Contains(got, "hunter2") || strings.Count(got, "[redacted:") != 3 || !json.Valid([]byte(got)) ||
		!strings.Contains(got, "12345678901234567890") || !strings.Contains(got, "telegram-1234567890") {
		t.Error(got)
	}
	for _, s := range []string{`{"b":1,"a":"x"}`, `no JSON`, ``, `null`, `[]`} {
		if got := r.JSON([]byte(s)); string(got) != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

// Ordinary text needs no allocation.
func TestNothingIsAllocated(t *testing.T) {
	r := redact.New([]byte("k"))
	r.Know("test", "something else")
	argv := []string{"/usr/bin/git", "log", "--oneline", "--author=someone", "https://example.org/x:y"}
	if n := testing.AllocsPerRun(100, func() { r.Argv(argv); r.Text("cannot find workspace demo: there is none: not found") }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkText(b *testing.B) {
	r := redact.New([]byte("k"))
	s := strings.Repeat("cargo test --workspace -- --nocapture path/to/file:12 and so on; ", 8)
	b.SetBytes(int64(len(s)))
	b.ReportAllocs()
	for b.Loop() {
		r.Text(s)
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("password=hunter2")
	f.Add("--token x://a:b@c")
	f.Add(pem)
	f.Add(jwt + ":" + github)
	f.Add("\\\"password\\\": \\\"x")
	f.Add("[redacted:correct horse]")
	f.Add("[redacted:value:01234567]correct horse[redacted:secret:")
	f.Add("password=xcorrect horse crl_correct horse")
	r := redact.New([]byte("k"))
	r.Know("test", "correct horse")
	f.Fuzz(func(t *testing.T, s string) {
		got := r.Text(s)
		if strings.Contains(got, "correct horse") {
			t.Errorf("%q became %q", s, got)
		}
		if !strings.Contains(got, "[redacted:") && got != s {
			t.Errorf("%q became %q", s, got)
		}
		argv := strings.Split(s, "\n")
		if out := r.Argv(argv); len(out) != len(argv) {
			t.Errorf("%d words became %d", len(argv), len(out))
		}
		if j, err := json.Marshal(map[string]any{"argv": argv, "x": s, s: s}); err == nil && !json.Valid(r.JSON(j)) {
			t.Errorf("%q became %q", j, r.JSON(j))
		}
	})
}
