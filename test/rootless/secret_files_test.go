//go:build linux

package rootless_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// write writes a file into the project of u.
func (u *user) write(name, content string) {
	u.t.Helper()
	if r := finish(u.command("project", "/bin/sh", "-c", "umask 077; cat > "+name), content); r.code != 0 {
		u.t.Fatalf("%+v", r)
	}
}

// Programs that read a key from a file of their own form have one with a placeholder in it, which becomes the secret on its way
// to the host that it is for, and to no other.
func TestSecretFilesOfARun(t *testing.T) {
	if !has("curl") || !has("git") {
		t.Skip("skipped: no curl or no git on this host")
	}
	u := newUser(t)
	k := newKeyed(t, u, "api.test", "other.test")
	k.serve = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" && strings.HasSuffix(r.URL.Path, ".git/info/refs") {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, "{}")
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+secretValue))
	secret := "ANTHROPIC_API_KEY@api.test:" + k.port
	for _, c := range []struct {
		name, path, template, program, script, want string
	}{
		{"alone", ".keys/key", "", "curl", `curl -sS -H "X-Api-Key: $(cat ~/.keys/key)" https://api.test:%s/`, secretValue},
		{
			"netrc", "netrc", "machine api.test login me password {{ANTHROPIC_API_KEY}}\n", "curl",
			`curl -sS --netrc-file ~/netrc https://api.test:%s/`, basic,
		},
		{
			"configuration", ".config/curl.conf", "silent\nheader = \"X-Api-Key: {{ANTHROPIC_API_KEY}}\"\n", "curl",
			`curl -K ~/.config/curl.conf https://api.test:%s/`, secretValue,
		},
		{
			"git", ".git-credentials", "https://me:{{ANTHROPIC_API_KEY}}@api.test:" + k.port + "\n", "git",
			`GIT_TERMINAL_PROMPT=0 git -c credential.helper=store ls-remote https://api.test:%s/x.git`, basic,
		},
		{
			"npm", ".npmrc", "//api.test:" + k.port + "/:_authToken={{ANTHROPIC_API_KEY}}\nupdate-notifier=false\n", "npm",
			`npm ping --registry https://api.test:%s/ --fetch-retries 0`, "Bearer " + secretValue,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !has(c.program) {
				t.Skip("skipped: no " + c.program + " on this host")
			}
			args := []string{"--allow", "api.test:" + k.port, "--secret", secret, "--secret-file", "ANTHROPIC_API_KEY=" + c.path}
			if c.template != "" {
				u.write("template", c.template)
				args = append(args, "--secret-template", "ANTHROPIC_API_KEY=template")
			}
			before := len(k.got())
			r := u.run(append(args, "--", "sh", "-c", fmt.Sprintf(c.script+`
				stat -c 'file %%a %%u' ~/`+c.path+`; echo "me $(id -u)"
				grep -c "$ANTHROPIC_API_KEY" ~/`+c.path+` | sed 's/^/placeholders /'
				grep -rF '{{' ~/`+c.path+` && echo marked
				cat $(find ~ -type f) /proc/self/environ`, k.port))...)
			if strings.Contains(r.out+r.err, secretValue) {
				t.Errorf("the workspace has the secret: %+v", r)
			}
			_, me, _ := strings.Cut(r.out, "\nme ")
			me, _, _ = strings.Cut(me, "\n")
			for _, want := range []string{"file 600 " + me + "\n", "placeholders 1\n"} {
				if me == "" || !strings.Contains(r.out, want) {
					t.Errorf("%q is missing: %+v", want, r)
				}
			}
			if strings.Contains(r.out, "marked") {
				t.Errorf("a marker was left: %+v", r)
			}
			if got := k.got()[before:]; !slices.Contains(got, "api.test:"+k.port+" "+c.want) {
				t.Errorf("the host got %q: %+v", got, r)
			}
		})
	}
	t.Run("another host", func(t *testing.T) {
		u.write("template", "machine other.test login me password {{ANTHROPIC_API_KEY}}\n")
		before := len(k.got())
		r := u.run("--allow", "api.test:"+k.port, "--allow", "other.test:"+k.port, "--secret", secret, "--secret-file", "ANTHROPIC_API_KEY=.netrc",
			"--secret-template", "ANTHROPIC_API_KEY=template", "--", "curl", "-sSnk", "https://other.test:"+k.port)
		if got := k.got()[before:]; len(got) != 1 || !strings.HasPrefix(got[0], "other.test:"+k.port+" Basic ") || strings.HasSuffix(got[0], basic) {
			t.Errorf("the host got %q: %+v", got, r)
		}
	})
	u.holdsNowhere(secretValue)
}

// A file that cannot be made ends the run before its command, with what to do.
func TestSecretFilesThatAreWrong(t *testing.T) {
	u := newUser(t)
	k := newKeyed(t, u, "api.test")
	u.write("good", "{{ANTHROPIC_API_KEY}}")
	u.write("unmarked", "{{OTHER}}")
	u.write("long", "{{ANTHROPIC_API_KEY}}"+strings.Repeat("x", 64<<10))
	u.write("often", strings.Repeat("{{ANTHROPIC_API_KEY}}", 2000)+strings.Repeat("x", 20<<10))
	u.write("binary", "{{ANTHROPIC_API_KEY}}\xff")
	u.write("value", "{{ANTHROPIC_API_KEY}} "+secretValue)
	for _, c := range []struct {
		name string
		args []string
		why  string
	}{
		{"no marker", []string{"KEY=f", "KEY=unmarked"}, "it has no {{ANTHROPIC_API_KEY}}"},
		{"too long", []string{"KEY=f", "KEY=long"}, "at most 65536 bytes"},
		{"too long with the placeholders", []string{"KEY=f", "KEY=often"}, "write {{ANTHROPIC_API_KEY}} less often"},
		{"no text", []string{"KEY=f", "KEY=binary"}, "no text in UTF-8"},
		{"the value itself", []string{"KEY=f", "KEY=value"}, "it has the value of ANTHROPIC_API_KEY"},
		{"no such template", []string{"KEY=f", "KEY=missing"}, "no such file"},
		{"no template named", []string{"KEY=f", "KEY="}, "write NAME=FILE"},
		{"no file for it", []string{"", "KEY=good"}, "there is no file that it is for"},
		{"outside", []string{"KEY=/etc/x", "KEY=good"}, "not below the home"},
		{"above", []string{"KEY=../x", "KEY=good"}, `it has ".."`},
		{"a mount", []string{"KEY=there/x", "KEY=good"}, "is mounted from the host"},
		{"above a mount", []string{"KEY=there", "KEY=good"}, "is mounted from the host"},
		{"a directory", []string{"KEY=there/", "KEY=good"}, "names a directory"},
	} {
		full := func(s string) string { return strings.Replace(s, "KEY=", "ANTHROPIC_API_KEY=", 1) }
		args := []string{
			"--allow", "api.test:" + k.port, "--secret", "ANTHROPIC_API_KEY@api.test:" + k.port, "-v", ".:~/there",
			"--secret-template", full(c.args[1]),
		}
		if c.args[0] != "" {
			args = append(args, "--secret-file", full(c.args[0]))
		}
		r := u.run(append(args, "--", "echo", "it ran")...)
		if r.code != 125 || !strings.Contains(r.err, c.why) || strings.Contains(r.out, "it ran") || strings.Contains(r.err, secretValue) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	r := u.run("--allow", "api.test:"+k.port, "--secret", "ANTHROPIC_API_KEY@api.test:"+k.port+"=header:X-Key", "--secret-file",
		"ANTHROPIC_API_KEY=f", "--", "echo", "it ran")
	if r.code != 125 || !strings.Contains(r.err, "it has none") {
		t.Errorf("of one that is injected: %+v", r)
	}
}
