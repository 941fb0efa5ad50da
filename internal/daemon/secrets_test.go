package daemon_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// What carrel itself holds is in nothing that it writes, when somebody who has it writes it
// where it is kept: here as the key of a workspace. The minted token is shown once.
func TestWhatCarrelHoldsIsNotWritten(t *testing.T) {
	f := setUp(t)
	dir := filepath.Dir(f.cfg.DataDir)
	files := map[string]string{}
	put := func(name, text string) string {
		t.Helper()
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		return files[name]
	}
	hook := "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()))
	f.cfg.RedactFiles = []string{put("one", "# of the operator\nviolet umbrella\n"), put("two.env", "export A='lantern quill'\nPORT=80\n")}
	f.cfg.WebhookURL, f.cfg.WebhookSecretFile = "http://127.0.0.1:9/", put("hook", hook+"\n")
	f.cfg.Listen = "127.0.0.1:0"
	if err := f.start(false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.log.String(), "too short to be looked for") {
		t.Error("a short value is not told of")
	}
	state := filepath.Join(f.cfg.DataDir, "daemon")
	read := func(path ...string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(append([]string{state}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	block, _ := pem.Decode([]byte(read("tls", "key.pem")))
	if block == nil {
		t.Fatal("no key for TLS")
	}
	checkpointKey, ageKey := read("audit", "checkpoint.key"), read("secrets.key")
	out, err := f.call("TokenService/CreateToken", `{"name":"a token","roles":["agent"]}`)
	if err != nil {
		t.Fatal(out, err)
	}
	token, _ := out["secret"].(string)
	secrets := map[string]string{
		"a file": "violet umbrella", "a variable": "lantern quill", "the webhook": hook, "its base64": strings.TrimPrefix(hook, "whsec_"),
		"TLS": base64.StdEncoding.EncodeToString(block.Bytes)[:64], "checkpoints": strings.SplitN(checkpointKey, "+", 5)[4],
		"digests":        read("redact.key"),
		"kept secrets":   ageKey[strings.LastIndex(ageKey, "\n")+1:],
		"a minted token": token,
	}
	hide := func(what, secret string) {
		t.Helper()
		if len(secret) < 10 {
			t.Fatalf("%s: there is no secret", what)
		}
		for _, text := range []string{what + " is " + secret, "see " + secret + ";" + what} {
			body, _ := json.Marshal(map[string]any{"key": text, "noStart": true})
			if out, err := f.call("WorkspaceService/Create", string(body)); err != nil {
				t.Errorf("%s: %v %v", what, out, err)
			}
			body, _ = json.Marshal(map[string]any{"workspace": text})
			_, _ = f.call("WorkspaceService/Destroy", string(body)) // it may fail with it
			_, _ = f.call("WorkspaceService/Get", string(body))
		}
	}
	for what, secret := range secrets {
		hide(what, secret)
	}
	hide("base64", base64.StdEncoding.EncodeToString([]byte("user:violet umbrella\n"))[8:])
	secrets["base64"] = base64.StdEncoding.EncodeToString([]byte("user:violet umbrella"))[7:]

	if os.Geteuid() == 0 { // administrators reload
		// Another file is read at a reload, and one that cannot be used changes nothing.
		put("one", "brass anchor\n")
		if out, err := f.call("SystemService/ReloadPolicy", `{}`); err != nil {
			t.Fatal(out, err)
		}
		secrets["a new file"] = "brass anchor"
		hide("a new file", "brass anchor")
		put("one", "short\n")
		if out, err := f.call("SystemService/ReloadPolicy", `{}`); err == nil || !strings.Contains(out["message"].(string), "line 1") ||
			strings.Contains(out["message"].(string), "short\n") {
			t.Error(out, err)
		}
		hide("what was known", "brass anchor")
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}

	masks := 0
	look := func(path string, b []byte) {
		masks += bytes.Count(b, []byte("[redacted:"))
		for what, secret := range secrets {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s is in %s", what, path)
			}
		}
	}
	look("the log", []byte(f.log.String()))
	err = filepath.WalkDir(state, func(path string, e fs.DirEntry, err error) error {
		// The database has the keys of workspaces as they are: they are found by them.
		if err != nil || e.IsDir() || strings.HasSuffix(path, ".key") || strings.HasSuffix(path, "key.pem") ||
			strings.Contains(path, "carrel.db") {
			return err
		}
		b, err := os.ReadFile(path)
		look(path, b)
		return err
	})
	if err != nil || masks < len(secrets) {
		t.Errorf("%d masks, %v", masks, err)
	}
}

// A file of secrets that others could read or write stops the start, and is not quoted.
func TestFilesOfSecretsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		is   func(error) bool
		says string
	}{
		"readable by all": {"violet umbrella", 0o644, errdefs.IsPermissionDenied, "chmod o-rwx"},
		"writable":        {"violet umbrella", 0o660, errdefs.IsFailedPrecondition, "chmod go-w"},
		"too short":       {"violet umbrella\nviole\n", 0o600, errdefs.IsInvalidArgument, "line 2"},
		"too long":        {strings.Repeat("violet umbrella\n", 1<<17), 0o600, errdefs.IsInvalidArgument, "longer than"},
		"none":            {"", 0, errdefs.IsInvalidArgument, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			path := filepath.Join(filepath.Dir(f.cfg.DataDir), "secrets")
			f.cfg.RedactFiles = []string{path}
			if c.mode != 0 {
				if err := errors.Join(os.WriteFile(path, []byte(c.text), c.mode), os.Chmod(path, c.mode)); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.start(false); !c.is(err) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "viole") {
				t.Errorf("%v", err)
			}
		})
	}
}

// The daemon makes the key of its secrets once, takes another one that it is told of, and does not start with one that
// others could have read.
func TestTheKeyOfSecrets(t *testing.T) {
	f := setUp(t)
	state := filepath.Join(f.cfg.DataDir, "daemon", "secrets.key")
	run := func() error {
		err := f.start(false)
		if err == nil {
			err = f.stop()
		}
		return err
	}
	var keys []string
	for range 2 {
		if err := run(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, string(b))
	}
	if keys[0] != keys[1] {
		t.Error("another start made another key")
	}
	if err := os.Chmod(state, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), state) {
		t.Error(err)
	}
	f.cfg.SecretsKey = filepath.Join(filepath.Dir(f.cfg.DataDir), "elsewhere.key")
	if err := run(); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(f.cfg.SecretsKey); err != nil || fi.Mode() != 0o600 {
		t.Error(fi, err)
	}
}
