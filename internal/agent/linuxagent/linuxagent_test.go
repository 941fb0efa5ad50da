package linuxagent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/linuxagent"
	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/policy/rules"
)

const config = `
api: {provider: ollama, model: llama3.1, base_url: "http://127.0.0.1:11434/v1", api_key: planted-key}
policy: {path: ~/rules.yaml, include_builtin: false}
file_patch: {allow_roots: [/srv]}
monitoring: {cpu_threshold: 80}
bogus: {x: 1}
cluster:
  batch_confirm_threshold: 3
  hosts:
    - name: web-1
      hostname: web1.example.org
      port: 2222
      username: deploy
      key_filename: ~/.ssh/id_web
      remote_profile: {remote_cwd: /srv/app, environment: clean, allow_sudo: true, sudo_allowlist: [systemctl restart nginx, "sh -c '*'"]}
    - {name: web-2, hostname: 192.0.2.7, username: root, remote_profile: {remote_cwd: work}}
    - {name: "bad name", hostname: x.example.org, username: u}
`

const theirRules = `
version: 1
rules:
  - {id: team.nginx, level: CONFIRM, risk_score: 70, capabilities: [service.mutate], reason: ours, match: {command: [nginx]}}
`

const disk = `
id: disk.full
title: Investigate disk usage
steps:
  - {command: df -h, purpose: Show it}
  - {command: rm -rf /var/tmp/x, purpose: Clean, read_only: false}
preflight_checks: [uptime]
verification_commands: [df -h]
rollback_commands: [touch /var/tmp/x]
`

func file(r *linuxagent.Result, name string) []byte {
	for _, f := range r.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// What is made is what carrel reads, and each setting is spoken of.
func TestConvert(t *testing.T) {
	r, err := linuxagent.Convert(linuxagent.Source{
		Config: &linuxagent.File{Name: "config.yaml", Data: []byte(config)},
		Policy: &linuxagent.File{Name: "rules.yaml", Data: []byte(theirRules)},
		Runbooks: []linuxagent.File{
			{Name: "disk.yaml", Data: []byte(disk)}, {Name: "again.yaml", Data: []byte(disk)}, {Name: "none.yaml", Data: []byte("id: x\n")},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	inv, err := fleet.ParseInventory("hosts.yaml", file(r, "hosts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hosts := inv.Hosts()
	want := "[{web-1 web1.example.org 2222 deploy [~/.ssh/id_web] [] false /srv/app {false [] []} [[systemctl restart nginx]] map[] []} " +
		"{web-2 192.0.2.7 0 root [] [] false  {true [] []} [] map[] []}]"
	if got := fmt.Sprint(hosts); got != want {
		t.Errorf("hosts\n%s\nare not\n%s", got, want)
	}
	c, err := conf.Parse("egress.yaml", file(r, "egress.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m := c.Models["ollama"]
	if m.API != conf.OpenAI || m.URL != "http://127.0.0.1:11434/v1" || m.Key != "LOCAL_LLM_KEY" || len(c.Rules) != 1 {
		t.Errorf("%+v %+v", m, c.Rules)
	}
	if _, err := rules.New(rules.Config{Rules: &rules.Source{Name: "policy.yaml", Data: file(r, "policy.yaml")}}); err != nil {
		t.Error(err)
	}
	b, err := runbooks.Parse("disk-full.yaml", file(r, "runbooks/disk-full.yaml"))
	if err != nil || len(b.Steps) != 2 || !b.Steps[0].ReadOnly || b.Steps[1].ReadOnly ||
		!slices.Equal(b.Match, []string{"disk", "full", "usage"}) || len(b.Preflight) != 1 || len(b.Verification) != 1 || len(b.Rollback) != 1 {
		t.Errorf("%v: %+v", err, b)
	}
	var notes []string
	for _, n := range r.Notes {
		notes = append(notes, fmt.Sprintf("%v %s", n.Taken, n.Setting))
		if n.What == "" {
			t.Errorf("nothing is said of %s", n.Setting)
		}
	}
	for _, want := range []string{
		"true api", "false api.api_key", "true policy.path", "false policy.include_builtin", "false file_patch.allow_roots",
		"false monitoring.cpu_threshold", "false bogus.x", "false cluster.batch_confirm_threshold", "true cluster.hosts[0] web-1",
		"false cluster.hosts[0] web-1 sudo_allowlist", "true cluster.hosts[1] web-2", "false cluster.hosts[1] web-2 remote_cwd",
		"false cluster.hosts[2] bad name", "true runbook disk.yaml", "false runbook again.yaml", "false runbook none.yaml",
	} {
		if !slices.Contains(notes, want) {
			t.Errorf("it lacks %q: %q", want, notes)
		}
	}
	for _, f := range r.Files {
		if strings.Contains(string(f.Data), "planted") {
			t.Errorf("the key is in %s", f.Name)
		}
	}
	if strings.Contains(fmt.Sprint(r.Notes), "planted") || r.Host != "127.0.0.1:11434" || r.Endpoint != "ollama" || r.Model != "llama3.1" {
		t.Errorf("%+v", r)
	}
}

// A file of another form is an error, and rules that carrel cannot read are left.
func TestOtherForms(t *testing.T) {
	of := func(text string) (*linuxagent.Result, error) {
		return linuxagent.Convert(linuxagent.Source{Config: &linuxagent.File{Name: "c.yaml", Data: []byte(text)}})
	}
	for _, text := range []string{"[", "api: [1]\n", "- a\n", "cluster: {hosts: {a: 1}}\n", strings.Repeat("#", linuxagent.MaxFile+1)} {
		if _, err := of(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	r, err := linuxagent.Convert(linuxagent.Source{
		Policy: &linuxagent.File{Name: "p.yaml", Data: []byte("rules: [{id: x, match: {nothing: 1}}]\n")},
	})
	if err != nil || len(r.Files) != 0 || len(r.Notes) != 1 || r.Notes[0].Taken {
		t.Errorf("%v: %+v", err, r)
	}
	if r, err := of(""); err != nil || len(r.Files)+len(r.Notes) != 0 {
		t.Errorf("of an empty file: %v: %+v", err, r)
	}
}
