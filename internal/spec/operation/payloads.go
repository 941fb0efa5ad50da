package operation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Plain is an operation whose target says all there is to say.
type Plain struct{ name Name }

// Simple returns the operation with that name and no payload.
func Simple(n Name) Plain { return Plain{n} }

// Op implements Operation.
func (p Plain) Op() Name { return p.name }

// Create makes a workspace. Durations are milliseconds, -1 without an end. Reach is what its commands may reach of the
// network, as workspace.Reach.Texts says it, sorted. Whoever may make the workspace may say it.
type Create struct {
	Key     id.Key              `json:"key,omitempty"`
	Limits  json.RawMessage     `json:"limits,omitempty"`
	Profile string              `json:"profile,omitempty"`
	TTLMS   int64               `json:"ttl_ms,omitempty"`
	IdleMS  int64               `json:"idle_ms,omitempty"`
	NoStart bool                `json:"no_start,omitempty"`
	Mounts  json.RawMessage     `json:"mounts,omitempty"`
	Allow   []workspace.Opening `json:"allow,omitempty"`
	Reach   []string            `json:"reach,omitempty"`
	// Secrets are the names of those that it uses, sorted.
	Secrets []string `json:"secrets,omitempty"`
	// SecretFiles are where placeholders are kept in files, as NAME=PATH, sorted.
	SecretFiles []string `json:"secret_files,omitempty"`
	// SecretTemplates are what such files have beside placeholders, as NAME sha256:DIGEST, sorted.
	SecretTemplates []string `json:"secret_templates,omitempty"`
	// Models are those that it may use, as workspace.ModelUse.String says it, sorted.
	Models      []string        `json:"models,omitempty"`
	ModelBudget json.RawMessage `json:"model_budget,omitempty"`
}

// Op implements Operation.
func (Create) Op() Name { return CreateWorkspace }

// NewCreate returns the operation that makes the workspace that is wanted, once every field
// of it was found in bounds.
func NewCreate(w workspace.Wanted) (Create, error) {
	if err := w.Validate(); err != nil {
		return Create{}, err
	}
	c := Create{
		Key: w.Key, Profile: w.Profile, TTLMS: Millis(w.TTL), IdleMS: Millis(w.Idle), NoStart: w.NoStart, Allow: w.Allow,
		Limits: limits(w.Limits), Reach: once(w.Reach.Texts()), Secrets: once(w.Secrets), SecretFiles: once(workspace.FileTexts(w.SecretFiles)),
		SecretTemplates: once(workspace.TemplateTexts(w.SecretTemplates)),
		Models:          once(workspace.Models{Uses: w.Models}.Texts()), ModelBudget: modelBudget(w.ModelBudget),
	}
	if len(w.Mounts) > 0 {
		c.Mounts = raw(w.Mounts)
	}
	return c, nil
}

// Update changes a workspace. What is empty stays as it is. Reach are the rules of the network that are added, as in
// Create, and Unreach the texts of those that are removed, sorted. Whoever may change the workspace may change them.
type Update struct {
	Key    id.Key          `json:"key,omitempty"`
	Limits json.RawMessage `json:"limits,omitempty"`
	TTLMS  int64           `json:"ttl_ms,omitempty"`
	IdleMS int64           `json:"idle_ms,omitempty"`

	Reach   []string `json:"reach,omitempty"`
	Unreach []string `json:"unreach,omitempty"`
	// Secrets are the names of those that it uses from now on, and Unused of those that it used, sorted.
	Secrets []string `json:"secrets,omitempty"`
	Unused  []string `json:"unused,omitempty"`
	// SecretFiles and SecretTemplates are as in Create.
	SecretFiles     []string `json:"secret_files,omitempty"`
	SecretTemplates []string `json:"secret_templates,omitempty"`
	// Models are those that it may use from now on, as in Create, and Unmodels the names of those that it used, sorted.
	// ModelBudget has the limits that change, -1 for one that is taken away.
	Models      []string        `json:"models,omitempty"`
	Unmodels    []string        `json:"unmodels,omitempty"`
	ModelBudget json.RawMessage `json:"model_budget,omitempty"`
}

// Op implements Operation.
func (Update) Op() Name { return UpdateWorkspace }

// NewUpdate returns the operation that makes a change, once every field was found in bounds.
func NewUpdate(c workspace.Change) (Update, error) {
	if err := c.Validate(); err != nil {
		return Update{}, err
	}
	return Update{
		Key: c.Key, Limits: limits(c.Limits), TTLMS: Millis(c.TTL), IdleMS: Millis(c.Idle),
		Reach: once(c.Reach.Added().Texts()), Unreach: once(c.Reach.Remove),
		Secrets: once(c.Secrets.Add), Unused: once(c.Secrets.Remove), SecretFiles: once(workspace.FileTexts(c.Secrets.Files)),
		SecretTemplates: once(workspace.TemplateTexts(c.Secrets.Templates)),
		Models:          once(workspace.Models{Uses: c.Models.Add}.Texts()), Unmodels: once(c.Models.Remove),
		ModelBudget: modelBudget(c.Models.Budget),
	}, nil
}

// Connect is a connection out of a workspace, to a canonical name or address. Rule is the text of the rule that asks.
type Connect struct {
	Host string `json:"host"`
	Port uint16 `json:"port"`
	Rule string `json:"rule"`
}

// Op implements Operation.
func (Connect) Op() Name { return ConnectOut }

// Target is HOST:PORT, as a rule names it.
func (c Connect) Target() string {
	host := c.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]" // IPv6
	}
	return host + ":" + strconv.Itoa(int(c.Port))
}

// Destroy ends a workspace. Ref is what a repeatable request called it.
type Destroy struct {
	Ref   id.Key `json:"key,omitempty"`
	Purge bool   `json:"purge,omitempty"`
}

// Op implements Operation.
func (Destroy) Op() Name { return DestroyWorkspace }

// Removal finishes a destroy that a crash broke off.
type Removal struct {
	Purge bool `json:"purge,omitempty"`
}

// Op implements Operation.
func (Removal) Op() Name { return Recover }

// PutAway archives a workspace. Ref is what the request called it, Destroy removes it once
// the archive is safe, Live takes files while commands run, and Export sends the archive to
// the client.
type PutAway struct {
	Ref     id.Key `json:"key,omitempty"`
	Destroy bool   `json:"purge,omitempty"`
	Live    bool   `json:"live,omitempty"`
	Export  bool   `json:"export,omitempty"`
}

// Op implements Operation.
func (PutAway) Op() Name { return ArchiveWorkspace }

// Restore makes a workspace from an archive; without one, from what the client sends.
type Restore struct {
	Key     id.Key          `json:"key,omitempty"`
	Limits  json.RawMessage `json:"limits,omitempty"`
	Profile string          `json:"profile,omitempty"`
	TTLMS   int64           `json:"ttl_ms,omitempty"`
	IdleMS  int64           `json:"idle_ms,omitempty"`
	Archive string          `json:"archive,omitempty"`
}

// Op implements Operation.
func (Restore) Op() Name { return RestoreWorkspace }

// NewRestore returns the operation that restores an archive to a key.
func NewRestore(key id.Key, archive string, w workspace.RestoreWanted) (Restore, error) {
	if err := w.Validate(); err != nil {
		return Restore{}, err
	}
	return Restore{
		Key: key, Limits: limits(w.Limits), Profile: w.Profile, TTLMS: Millis(w.Life.TTL), IdleMS: Millis(w.Life.Idle), Archive: archive,
	}, nil
}

// Stored is an operation on an archive that is kept.
type Stored struct {
	name Name
	ID   string `json:"archive"`
}

// OnArchive returns the operation with that name on an archive.
func OnArchive(n Name, archive string) Stored { return Stored{n, archive} }

// Op implements Operation.
func (s Stored) Op() Name { return s.name }

// OfCommand is an operation on one command of a workspace. Signal is a number, "hangup" or
// "end".
type OfCommand struct {
	name   Name
	ID     id.Command `json:"command,omitempty"`
	Signal string     `json:"signal,omitempty"`
}

// OnCommand returns the operation with that name on a command.
func OnCommand(n Name, command id.Command) OfCommand { return OfCommand{name: n, ID: command} }

// Signal returns the operation that sends a signal to a command, or ends it: with 0 by TERM,
// with hangup by HUP, as when its client goes away.
func Signal(command id.Command, signal int, hangup bool) OfCommand {
	name := strconv.Itoa(signal)
	switch {
	case hangup:
		name = "hangup"
	case signal == 0:
		name = "end"
	}
	return OfCommand{SignalCommand, command, name}
}

// Op implements Operation.
func (c OfCommand) Op() Name { return c.name }

// OfApproval is an operation on a question or on a permission that came of one.
type OfApproval struct {
	name Name
	ID   id.Approval `json:"approval,omitempty"`
}

// OnApproval returns the operation with that name on an approval or a permission.
func OnApproval(n Name, approval id.Approval) OfApproval { return OfApproval{n, approval} }

// Op implements Operation.
func (a OfApproval) Op() Name { return a.name }

// Allow lets commands of a shape pass unasked: in the target, or in all workspaces of the caller or of everybody.
type Allow struct {
	Argv      []string `json:"argv"`
	Everybody bool     `json:"everybody,omitempty"`
}

// Op implements Operation.
func (Allow) Op() Name { return AllowCommands }

// OfToken is an operation on tokens. Token is the canonical JSON of the one that is wanted,
// or the id of the one that it is about.
type OfToken struct {
	name  Name
	Token json.RawMessage `json:"token,omitempty"`
}

// OnToken returns the operation with that name on the token with that id, which consists of
// hexadecimal digits; "" is on none.
func OnToken(n Name, token string) OfToken {
	if token == "" {
		return OfToken{name: n}
	}
	return OfToken{n, json.RawMessage(`"` + token + `"`)}
}

// NewToken returns the operation that makes a token.
func NewToken(w principal.Wanted) (OfToken, error) {
	text, err := json.Marshal(struct {
		Name    string          `json:"name,omitempty"`
		Owner   string          `json:"owner,omitempty"`
		Roles   []string        `json:"roles"`
		Scope   principal.Scope `json:"scope,omitempty"`
		LifeMS  int64           `json:"life_ms,omitempty"`
		MaxUses int64           `json:"max_uses,omitempty"`
		Rate    float64         `json:"rate,omitempty"`
		Burst   int             `json:"burst,omitempty"`
	}{w.Name, w.Owner, w.Roles.Names(), w.Scope, w.Life.Milliseconds(), w.MaxUses, w.Rate, w.Burst})
	if err != nil {
		return OfToken{}, fmt.Errorf("cannot make the token: what is wanted cannot be written down: %w", err)
	}
	return OfToken{CreateToken, text}, nil
}

// Op implements Operation.
func (t OfToken) Op() Name { return t.name }

// OfSecret is an operation on secrets. Its record has what a secret is called and whom it is for. The value is no part
// of it.
type OfSecret struct {
	op Name
	// Name is the secret's. It is not called "secret" in the record, where values of that name are masked.
	Name string `json:"name,omitempty"`
	// Owner is whose it is, if that is not the caller's owner.
	Owner   string   `json:"owner,omitempty"`
	Hosts   []string `json:"hosts,omitempty"`
	Headers []string `json:"headers,omitempty"`
	// Inject is where it is injected, Methods and Paths are the requests for which it is, and JSON has places in bodies.
	Inject  string   `json:"inject,omitempty"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	JSON    []string `json:"json,omitempty"`
}

// OnSecret returns the operation with that name on a secret by its name, "" for none.
func OnSecret(n Name, secret string) OfSecret { return OfSecret{op: n, Name: secret} }

// NewSecret returns the operation that stores a secret for hosts, in some headers or in all, sent in this way.
func NewSecret(secret string, hosts, headers []string, s workspace.Sending) OfSecret {
	return OfSecret{
		op: SetSecret, Name: secret, Hosts: hosts, Headers: headers, Inject: s.Inject, Methods: s.Methods, Paths: s.Paths, JSON: s.Pointers,
	}
}

// Op implements Operation.
func (s OfSecret) Op() Name { return s.op }

// Millis is a duration in an operation: milliseconds, and workspace.Forever as -1.
func Millis(d time.Duration) int64 {
	if d == workspace.Forever {
		return -1
	}
	return d.Milliseconds()
}

// once are texts of which the order has no influence: sorted, and each once.
func once(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// modelBudget is the budget of models that was asked for, nil if none was.
func modelBudget(b workspace.ModelBudget) json.RawMessage {
	if b == (workspace.ModelBudget{}) {
		return nil
	}
	return raw(b)
}

// limits are the limits that were asked for, nil if none were.
func limits(l workspace.Limits) json.RawMessage {
	if l == (workspace.Limits{}) {
		return nil
	}
	return raw(l)
}

// raw is JSON of structures of numbers and texts, which always marshal.
func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("operation: " + err.Error())
	}
	return b
}

// envOf returns the names of NAME=VALUE strings, sorted, and the hex SHA-256 over the sorted
// "NAME=VALUE\0" strings, so that two commands that differ in a value differ in digest.
func envOf(env []string) (names []string, digest string) {
	if len(env) == 0 {
		return nil, ""
	}
	sorted := slices.Sorted(slices.Values(env))
	h := sha256.New()
	names = make([]string, 0, len(sorted))
	for _, kv := range sorted {
		h.Write([]byte(kv))
		h.Write([]byte{0})
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	return names, hex.EncodeToString(h.Sum(nil))
}
