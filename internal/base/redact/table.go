package redact

import "strings"

// charset is a set of bytes of which a secret consists.
type charset uint8

const (
	alnum     charset = iota // letters and digits
	word                     // and "_"
	dashed                   // and "_" and "-"
	upper                    // capitals and digits
	dotted                   // dashed, and ".": several parts
	base64s                  // letters, digits and "+/="
	headers                  // dotted, and ",:/=+@<>()": of a header of a key
	crypted                  // letters, digits and "./$=,+-_": of a hash of crypt(5)
	plainWord                // letters, digits and "_./+=-": no shell takes one of them for more than itself
)

func (c charset) has(b byte) bool {
	switch {
	case b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		return true
	case b >= 'a' && b <= 'z':
		return c != upper
	case b == '_':
		return c == word || c == dashed || c == dotted || c >= headers
	case b == '-', b == '.':
		return b == '-' && c == dashed || c == dotted || c >= headers
	case b == '+', b == '/', b == '=':
		return c >= base64s
	}
	return c == headers && strings.IndexByte(",:@<>()", b) >= 0 || c == crypted && (b == '$' || b == ',')
}

// shape is the prefix of a kind of secret, the charset of the rest, and its least length.
type shape struct {
	kind   string
	prefix string
	set    charset
	least  int
	// exact: the rest has exactly that length.
	exact bool
	// mixed: the rest must have digits and letters, which words with hyphens do not.
	mixed bool
}

// shapes are the published forms of tokens. A prefix must begin at the beginning of a word.
var shapes = []shape{
	{kind: "aws-key-id", prefix: "AKIA", set: upper, least: 16, exact: true},
	{kind: "aws-key-id", prefix: "ASIA", set: upper, least: 16, exact: true},
	{kind: "github", prefix: "ghp_", set: alnum, least: 36},
	{kind: "github", prefix: "gho_", set: alnum, least: 36},
	{kind: "github", prefix: "ghu_", set: alnum, least: 36},
	{kind: "github", prefix: "ghs_", set: alnum, least: 36},
	{kind: "github", prefix: "ghr_", set: alnum, least: 36},
	{kind: "github", prefix: "github_pat_", set: word, least: 22},
	{kind: "gitlab", prefix: "glpat-", set: dashed, least: 20},
	{kind: "slack", prefix: "xoxb-", set: dashed, least: 10},
	{kind: "slack", prefix: "xoxp-", set: dashed, least: 10},
	{kind: "slack", prefix: "xoxa-", set: dashed, least: 10},
	{kind: "slack", prefix: "xoxr-", set: dashed, least: 10},
	{kind: "slack", prefix: "xoxs-", set: dashed, least: 10},
	{kind: "slack", prefix: "xoxe-", set: dashed, least: 10},
	{kind: "slack", prefix: "xapp-", set: dashed, least: 10},
	{kind: "google", prefix: "AIza", set: dashed, least: 35},
	{kind: "google", prefix: "GOCSPX-", set: dashed, least: 20},
	{kind: "google", prefix: "ya29.", set: dashed, least: 20},
	{kind: "anthropic", prefix: "sk-ant-", set: dashed, least: 20},
	{kind: "openai", prefix: "sk-", set: dashed, least: 32, mixed: true},
	{kind: "stripe", prefix: "sk_live_", set: alnum, least: 16},
	{kind: "stripe", prefix: "rk_live_", set: alnum, least: 16},
	{kind: "stripe", prefix: "sk_test_", set: alnum, least: 16},
	{kind: "npm", prefix: "npm_", set: alnum, least: 36},
	{kind: "pypi", prefix: "pypi-", set: dashed, least: 50},
	{kind: "huggingface", prefix: "hf_", set: alnum, least: 30},
	{kind: "docker", prefix: "dckr_pat_", set: dashed, least: 20},
	{kind: "digitalocean", prefix: "dop_v1_", set: alnum, least: 64},
	{kind: "sendgrid", prefix: "SG.", set: dotted, least: 40},
	{kind: "age", prefix: "AGE-SECRET-KEY-1", set: upper, least: 58},
	{kind: "carrel", prefix: "crl_", set: dashed, least: 16},
	{kind: "slack", prefix: "hooks.slack.com/services/", set: plainWord, least: 20},
	{kind: "docker", prefix: "eyJhdXRocyI6", set: base64s, least: 20}, // {"auths": in base64
	{kind: "key-base64", prefix: "LS0tLS1CRUdJTi", set: base64s, least: 40},
	{kind: "crypt", prefix: "$1$", set: crypted, least: 24, mixed: true},
	{kind: "crypt", prefix: "$5$", set: crypted, least: 40, mixed: true},
	{kind: "crypt", prefix: "$6$", set: crypted, least: 80, mixed: true},
	{kind: "crypt", prefix: "$y$", set: crypted, least: 40, mixed: true},
	{kind: "crypt", prefix: "$2a$", set: crypted, least: 50, mixed: true},
	{kind: "crypt", prefix: "$2b$", set: crypted, least: 50, mixed: true},
	{kind: "crypt", prefix: "$2y$", set: crypted, least: 50, mixed: true},
	{kind: "crypt", prefix: "$argon2", set: crypted, least: 40, mixed: true},
	{kind: "jwt", prefix: "eyJ", set: dotted, least: 30, mixed: true}, // and two dots, see jwt
}

// byFirst are the shapes by the first byte of their prefix.
var byFirst = func() (t [256][]shape) {
	for _, s := range shapes {
		t[s.prefix[0]] = append(t[s.prefix[0]], s)
	}
	return t
}()

// What a byte may begin.
const (
	beginsShape = 1 << iota // of a shape, or of a private key
	partsWords              // stands between words
	marks                   // a mask, or the value of a name
)

// notable are the bytes at which scan looks closer.
var notable = func() (t [256]uint8) {
	for c, list := range byFirst {
		if len(list) > 0 {
			t[c] |= beginsShape
		}
	}
	t['-'] |= beginsShape
	for _, c := range " \t\n\"'" {
		t[c] |= partsWords
	}
	for _, c := range "[=: " {
		t[c] |= marks
	}
	return t
}()

// kinds are the kinds in masks.
var kinds = func() map[string]bool {
	m := map[string]bool{
		"secret": true, "argument": true, "value": true, "private-key": true, "authorization": true, "url-password": true,
	}
	for _, s := range shapes {
		m[s.kind] = true
	}
	return m
}()

// maxKind is the length of the longest kind, maskDigits the number of the digest's digits.
const (
	maxKind    = 16
	maskDigits = 8
)

// The last parts of names of secrets, in lower case without "-" and "_". With a certain name any
// value is a secret; with a likely one a path, a number or a plain word is not.
var (
	certain = []string{
		"password", "passwd", "passphrase", "pwd", "secret", "secretkey", "secretaccesskey", "apikey", "authtoken", "accesstoken",
		"privatekey", "clientsecret",
	}
	likely = []string{"token", "key", "credential", "credentials", "auth", "pass", "bearer"}
)

// flags are options of programs that take a secret although their name does not say so. joined: the
// secret follows the flag in the same word. after: the secret follows the first such byte of the
// value.
var flags = []struct {
	program, flag string
	joined        bool
	after         byte
}{
	{"mysql", "-p", true, 0},
	{"mysqldump", "-p", true, 0},
	{"mysqladmin", "-p", true, 0},
	{"mariadb", "-p", true, 0},
	{"mariadb-dump", "-p", true, 0},
	{"sshpass", "-p", false, 0},
	{"sshpass", "-p", true, 0},
	{"curl", "-u", false, ':'},
	{"curl", "--user", false, ':'},
	{"curl", "-U", false, ':'},
	{"curl", "--proxy-user", false, ':'},
	{"redis-cli", "-a", false, 0},
	{"docker", "-p", false, 0},
	{"podman", "-p", false, 0},
	{"mongosh", "-p", false, 0},
	{"ldapsearch", "-w", false, 0},
	{"ldapmodify", "-w", false, 0},
	{"7z", "-p", true, 0},
	{"unzip", "-P", false, 0},
	{"zip", "-P", false, 0},
	{"openssl", "-passin", false, ':'},
	{"openssl", "-passout", false, ':'},
	{"openssl", "-k", false, 0},
}

// onlyLogin are programs whose flag takes a secret in this subcommand only.
var onlyLogin = map[string]string{"docker": "login", "podman": "login"}
