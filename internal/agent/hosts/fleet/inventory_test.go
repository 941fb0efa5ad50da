package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

const hostsFile = `
defaults:
  user: deploy
  proxy_jump: [gate, inner]
  env: {base: inherit, set: {STAGE: production, EMPTY: ""}}
hosts:
  web2: {address: web2.example.org, labels: {role: web, zone: a}, groups: [canary]}
  web1:
    port: 2200
    user: root
    identity_files: [~/.ssh/web]
    proxy_jump: []
    remote_cwd: /srv
    env: {base: clean, keep: [LANG], set: {N: 1}}
    sudo:
      - [systemctl, restart, nginx]
      - ["id"]
    labels: {role: web}
  db: {}
  gate: {address: 192.0.2.1}
  inner: {address: "2001:db8::1"}
groups:
  front: [web1, web2]
  canary: [db]
  empty: []
`

func inventory(t *testing.T, text string) *fleet.Inventory {
	t.Helper()
	inv, err := fleet.ParseInventory("hosts.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestInventory(t *testing.T) {
	hosts := inventory(t, hostsFile).Hosts()
	by := map[string]fleet.Host{}
	for _, h := range hosts {
		if err := h.Validate(); err != nil {
			t.Error(err)
		}
		by[h.Name] = h
	}
	ways := func(h fleet.Host) (names []string) {
		for _, j := range h.Jump {
			names = append(names, j.Name+"="+j.Address)
		}
		return names
	}
	web1, web2 := by["web1"], by["web2"]
	if web2.Address != "web2.example.org" || web2.User != "deploy" || web2.Port != 0 || !web2.Env.Inherit || len(web2.Sudo) != 0 ||
		!slices.Equal(web2.Env.Set, []string{"STAGE=production", "EMPTY="}) || !slices.Equal(web2.Groups, []string{"canary", "front"}) ||
		!slices.Equal(ways(web2), []string{"gate=192.0.2.1", "inner=2001:db8::1"}) || web2.NoJump || web2.Labels["zone"] != "a" {
		t.Errorf("%+v", web2)
	}
	if web1.Address != "web1" || web1.User != "root" || web1.Port != 2200 || web1.Cwd != "/srv" || web1.Env.Inherit || len(web1.Jump) != 0 ||
		!web1.NoJump || !slices.Equal(web1.Env.Keep, []string{"LANG"}) || !slices.Equal(web1.Env.Set, []string{"N=1"}) ||
		len(web1.Sudo) != 2 || !slices.Equal(web1.Sudo[0], []string{"systemctl", "restart", "nginx"}) ||
		!slices.Equal(web1.IdentityFiles, []string{"~/.ssh/web"}) {
		t.Errorf("%+v", web1)
	}
	// What all go through does not go through itself.
	if got := by["gate"]; len(got.Jump) != 0 || !got.NoJump {
		t.Errorf("%+v", got)
	}
	if got := by["inner"]; !slices.Equal(ways(got), []string{"gate=192.0.2.1"}) {
		t.Errorf("%+v", got)
	}
	// A caller who changes what it got changes nothing for others.
	hosts[1].Sudo[0][0], hosts[0].Labels["role"], hosts[0].Jump[0].Address = "rm", "x", "x"
	if again := inventory(t, hostsFile).Hosts(); again[1].Sudo[0][0] != "systemctl" {
		t.Error(again)
	}
	inv := inventory(t, hostsFile)
	inv.Hosts()[1].Sudo[0][0] = "rm"
	if inv.Hosts()[1].Sudo[0][0] != "systemctl" {
		t.Error("hosts are shared")
	}
}

func TestInventoryRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"fanout: {fork: 1}":                           `:1:10: no setting is named "fork"; there is forks`,
		"hosts: {a: {}}\nfanout: {forks: 0}":          ":2:17: forks",
		"hosts: {a: {}}\nfanout:\n  serial: 120%":     ":3:11: serial",
		"fanout: {max_failures: -1}":                  ":1:24: max failures",
		"fanout: {canary: no}":                        `:1:18: canary "no"`,
		"fanout: [1]":                                 ":1:9: a mapping is needed",
		"fanout: {forks: 1, forks: 2}":                "already defined",
		"groups: {g: {fanout: {serial: 0}}}":          ":1:31: serial",
		"groups: {g: {order: {serial: 1}}}":           `:1:14: no setting is named "order"`,
		"groups: {g: {hosts: a}}":                     "a list is needed here",
		"groups: {g: {hosts: [a]}}":                   `no host is named "a"`,
		"groups: {" + groupsWithOrders(65) + "}":      "more than 64 groups have a fanout",
		"hosts: {a: {prot: 22}}":                      `:1:13: no setting is named "prot"; there is port`,
		"host: {}":                                    `:1:1: no setting is named "host"; there is hosts`,
		"hosts:\n  a: {port: 0}":                      ":2:13: ",
		"hosts:\n  a: {port: 022}":                    ":2:13: ",
		"hosts:\n  a: {port: [1]}":                    ":2:13: ",
		"hosts:\n  a: {}\n  a: {}":                    ":3:3: ",
		"hosts:\n  a: {}\n  \"a\": {}":                `:3:3: mapping key "a" already defined`,
		"hosts:\n  a b: {}":                           ":2:3: ",
		"hosts:\n  -a: {}":                            ":2:",
		"hosts: [a]":                                  ":1:8: ",
		"hosts: {a: x}":                               ":1:12: ",
		"hosts: {a: {address: -oProxyCommand=x}}":     "is no address",
		"hosts: {a: {address: 'a b'}}":                "is no address",
		"hosts: {a: {address: ''}}":                   "is no address",
		"hosts: {a: {user: -x}}":                      "no name of a user",
		"hosts: {a: {remote_cwd: tmp}}":               "no absolute path",
		"hosts: {a: {env: {base: dirty}}}":            ":1:25: ",
		"hosts: {a: {env: {set: {LD_PRELOAD: x}}}}":   ":1:25: LD_PRELOAD",
		"hosts: {a: {env: {keep: [BASH_ENV]}}}":       "BASH_ENV may not be set",
		"hosts: {a: {env: {set: {A: [1]}}}}":          ":1:28: ",
		"hosts: {a: {sudo: [id]}}":                    "a list is needed here",
		"hosts: {a: {sudo: [[]]}}":                    "needs a program",
		"hosts: {a: {sudo: [[-u, root]]}}":            "needs a program",
		"hosts: {a: {proxy_jump: [b]}}":               `no host is named "b"`,
		"hosts: {a: {proxy_jump: [a]}}":               "on the way to itself",
		"hosts: {a: {proxy_jump: a}}":                 "a list is needed",
		"hosts: {a: {groups: [a]}}":                   "a is a host and a group",
		"hosts: {a: {}}\ngroups: {a: []}":             ":2:10: a is a host and a group",
		"hosts: {web1: {}}\ngroups: {g: [web2]}":      `:2:14: no host is named "web2"; there is web1`,
		"hosts: {a: &x {port: 1}, b: *x}":             ":1:",
		"hosts: {a: !!map {}}":                        ":1:",
		"hosts: {a: {<<: {port: 1}}}":                 ":1:",
		"hosts: {}\n---\nhosts: {}":                   "second document",
		"hosts: {":                                    ":1:",
		"hosts: {a: {labels: {x: 'a b'}}}":            "is no name",
		"hosts: " + strings.Repeat("[", 5000):         "nested more",
		strings.Repeat("- ", 100) + "x":               "nested more",
		strings.Repeat("#", fleet.MaxInventory+1):     "more than",
		"hosts: {a: " + strings.Repeat("x", 9000):     "a line has more",
		"x: |\n" + strings.Repeat(" ", 200) + "hello": "nested more",
	} {
		inv, err := fleet.ParseInventory("hosts.yaml", []byte(text))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hosts.yaml") {
			t.Errorf("%.60s: %v, %v", text, inv, err)
		}
	}
	for _, text := range []string{"", "# nothing\n", "hosts:\n", "hosts: {a: }\n", "---\nhosts: {a: {}}\n"} {
		if _, err := fleet.ParseInventory("hosts.yaml", []byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestResolve(t *testing.T) {
	inv := inventory(t, hostsFile)
	for names, want := range map[string]string{
		"web1": "web1", "db web2": "web2 db", "front": "web2 web1", "web1 front web1 role=web": "web2 web1", "canary": "web2 db",
		"zone=a": "web2",
		"*":      "web2 web1 db gate inner", "db * front": "web2 web1 db gate inner",
	} {
		hosts, err := inv.Resolve(strings.Fields(names)...)
		var got []string
		for _, h := range hosts {
			got = append(got, h.Name)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v", names, got, err)
		}
	}
	for name, want := range map[string]string{
		"wbe1": "; there is web1", "WEB1": "; there is web1", "fron": "; there is front", "nothing": `named "nothing": not found`,
		"role=wbe": "; there is role=web",
		"role":     "not found", "web": "; there is web1, web2", "web*": "web1", "empty": "has no host", "web1.": "web1", "-x": "not found",
		"":          "not found",
		"web1,web2": "not found", "\x1b[2J": `"\x1b[2J"`,
	} {
		hosts, err := inv.Resolve("db", name)
		if hosts != nil || !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", name, hosts, err)
		}
	}
	if _, err := inv.Resolve(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no name: %v", err)
	}
	if _, err := inventory(t, "").Resolve("*"); !errdefs.IsNotFound(err) {
		t.Errorf("all of none: %v", err)
	}
}

func FuzzInventory(f *testing.F) {
	for _, s := range []string{
		hostsFile, "hosts: {a: {sudo: [[a]]}}", "a: &b [*b]", "? a\n: b", "hosts:\n  a:\n    env: {set: {A: |\n      x\n}}", "- - - x", "{[",
		"%YAML 1.1\n---\n",
		"hosts: {a: {port: 0x16, labels: {x: 1e3, y: true, z: .inf}}}", "groups: {g: [a]}\nhosts: {a: {groups: [g]}}", "hosts: {a: !!str x}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		inv, err := fleet.ParseInventory("hosts.yaml", text)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "hosts.yaml") {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		hosts := inv.Hosts()
		if len(hosts) == 0 {
			return
		}
		var names []string
		for _, h := range hosts {
			if err := h.Validate(); err != nil {
				t.Fatalf("%q is taken with %v", text, err)
			}
			names = append(names, h.Name)
		}
		slices.Reverse(names)
		all, err := inv.Resolve(append(names, fleet.All)...)
		if err != nil || len(all) != len(hosts) {
			t.Fatalf("%q: %d of %d, %v", text, len(all), len(hosts), err)
		}
		for i := range all {
			if all[i].Name != hosts[i].Name {
				t.Fatalf("%q: %s is at the place of %s", text, all[i].Name, hosts[i].Name)
			}
		}
	})
}

func groupsWithOrders(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "g%d: {fanout: {forks: 1}}, ", i)
	}
	return b.String()
}

// What an inventory says of how steps reach several hosts: for all, and for the hosts of a group, whoever names them.
func TestInventoryOrders(t *testing.T) {
	inv := inventory(t, `
fanout: {forks: 4, serial: 20%, max_failures: 1, canary: false}
hosts:
  a: {groups: [data]}
  b: {}
  c: {}
groups:
  web: [b, c]
  data:
    hosts: [c]
    fanout: {serial: 1, canary: true}
  named: {fanout: {forks: 1}}
`)
	if got := inv.Order().Order().String(); got != "forks 4, serial 20%, max_failures 1, canary false" {
		t.Error(got)
	}
	var got []string
	for _, g := range inv.GroupOrders() {
		got = append(got, fmt.Sprint(g.Group, g.Hosts, g.Order.Over(inv.Order()).Order()))
	}
	if want := []string{
		"data[a c] forks 4, serial 1, max_failures 1, canary true", "named[] forks 1, serial 20%, max_failures 1, canary false",
	}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	inv = inventory(t, "hosts: {a: {}}\nfanout: {}")
	if inv.Order().Order().String() != "forks 8, serial 100%, canary true" || len(inv.GroupOrders()) != 0 {
		t.Errorf("%+v", inv.Order())
	}
}
