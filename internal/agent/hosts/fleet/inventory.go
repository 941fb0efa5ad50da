package fleet

import (
	"maps"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/carrel-dev/carrel/internal/base/fanout"
)

// Inventory is a set of hosts and groups. It does not change.
type Inventory struct {
	hosts  []Host // in the order of the file
	byName map[string]int
	groups map[string][]int // indexes of hosts, sorted
	order  fanout.Settings
	orders map[string]fanout.Settings // of groups
}

// ParseInventory reads an inventory in YAML:
//
//	defaults:            # hold for hosts that do not say otherwise; each setting replaces as a whole
//	  user: deploy
//	hosts:
//	  web1:
//	    address: web1.example.org   # otherwise the name
//	    port: 22
//	    user: deploy
//	    labels: {role: web}
//	    groups: [production]
//	    identity_files: [~/.ssh/id_ed25519]
//	    proxy_jump: [bastion]       # hosts of this file, the nearest first; [] is none
//	    remote_cwd: /srv/app
//	    env: {base: clean, keep: [LANG], set: {STAGE: production}}   # base: clean or inherit
//	    sudo: [[systemctl, restart, nginx]]                          # prefixes of argument vectors
//	groups:
//	  web: [web1, web2]
//	  data:
//	    hosts: [db1]
//	    fanout: {serial: 1, max_failures: 0}                         # in place of what holds for all hosts
//	fanout: {forks: 8, serial: 20%, max_failures: 1, canary: true}   # how a step reaches several hosts
//
// Unknown and repeated keys, aliases and tags are errors. An error has name, line and column.
func ParseInventory(name string, b []byte) (*Inventory, error) {
	r := &reader{name: name}
	root, err := r.parse(b)
	if err != nil {
		return nil, err
	}
	inv := &Inventory{byName: map[string]int{}, groups: map[string][]int{}, orders: map[string]fanout.Settings{}}
	var defaults Host
	var jumps []jump // of each host
	var defaultJump jump
	fields, err := r.mapping(root, "defaults", "hosts", "groups", "fanout")
	if err != nil {
		return nil, err
	}
	if n, ok := fields["defaults"]; ok {
		if defaultJump, err = r.host(n, &defaults, false); err != nil {
			return nil, err
		}
	}
	if n, ok := fields["hosts"]; ok {
		entries, err := r.entries(n)
		if err != nil {
			return nil, err
		}
		if len(entries) > MaxHosts {
			return nil, r.errorf(n, "there are more than %d hosts", MaxHosts)
		}
		for _, e := range entries {
			if err := checkName(e.key); err != nil {
				return nil, r.wrap(e.at, err)
			}
			h := defaults.clone()
			h.Name, h.Address = e.key, e.key
			j := defaultJump
			if own, err := r.host(e.value, &h, true); err != nil {
				return nil, err
			} else if own.at != nil {
				j = own
			}
			inv.byName[h.Name] = len(inv.hosts)
			inv.hosts, jumps = append(inv.hosts, h), append(jumps, j)
		}
	}
	if err := r.join(inv, jumps); err != nil {
		return nil, err
	}
	if inv.order, err = r.fanOut(fields["fanout"]); err != nil {
		return nil, err
	}
	return inv, r.groups(inv, fields["groups"])
}

// Hosts returns every host, in the order of the file.
func (inv *Inventory) Hosts() []Host {
	all := make([]Host, len(inv.hosts))
	for i := range inv.hosts {
		all[i] = inv.hosts[i].clone()
	}
	return all
}

// jump is what proxy_jump says.
type jump struct {
	names []string
	at    ast.Node // nil if it is not there
	own   bool     // not a default
}

// join puts the hosts on the way into each host. A host on the way has no way of its own here: its own proxy_jump must be
// part of the list, so that what a person reads is the whole way.
func (r *reader) join(inv *Inventory, jumps []jump) error {
	for i, j := range jumps {
		if j.at == nil {
			continue
		}
		h := &inv.hosts[i]
		if k := slices.Index(j.names, h.Name); k >= 0 {
			if j.own {
				return r.errorf(j.at, "%s is on the way to itself", h.Name)
			}
			j.names = j.names[:k] // the default way goes through it, so its own way is what leads there
		}
		h.NoJump = len(j.names) == 0
		for _, name := range j.names {
			k, ok := inv.byName[name]
			if !ok {
				return r.errorf(j.at, "no host is named %.80q%s", name, near(name, slices.Collect(maps.Keys(inv.byName))))
			}
			on := inv.hosts[k].clone()
			on.Jump, on.NoJump = nil, true
			h.Jump = append(h.Jump, on)
		}
	}
	return nil
}

// groups reads the groups, adds those that hosts name, and gives each host all of its own.
func (r *reader) groups(inv *Inventory, n ast.Node) error {
	members := map[string]map[int]bool{}
	add := func(group string, i int) {
		if members[group] == nil {
			members[group] = map[int]bool{}
		}
		members[group][i] = true
	}
	for i := range inv.hosts {
		for _, g := range inv.hosts[i].Groups {
			add(g, i)
		}
	}
	if n != nil {
		entries, err := r.entries(n)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := checkName(e.key); err != nil {
				return r.wrap(e.at, err)
			}
			if _, clash := inv.byName[e.key]; clash {
				return r.errorf(e.at, "%s is a host and a group; give one of them another name", e.key)
			}
			if members[e.key] == nil {
				members[e.key] = map[int]bool{} // there, and empty
			}
			items, err := r.group(inv, e)
			if err != nil {
				return err
			}
			for _, item := range items {
				name, err := r.text(item)
				if err != nil {
					return err
				}
				i, ok := inv.byName[name]
				if !ok {
					return r.errorf(item, "no host is named %.80q%s", name, near(name, slices.Collect(maps.Keys(inv.byName))))
				}
				add(e.key, i)
			}
		}
	}
	for i := range inv.hosts {
		inv.hosts[i].Groups = nil
	}
	for _, g := range slices.Sorted(maps.Keys(members)) {
		if _, clash := inv.byName[g]; clash {
			return invalid("cannot use %s: %s is a host and a group; give one of them another name", r.name, g)
		}
		inv.groups[g] = slices.Sorted(maps.Keys(members[g]))
		for _, i := range inv.groups[g] {
			inv.hosts[i].Groups = append(inv.hosts[i].Groups, g)
		}
	}
	return nil
}

// host reads the settings of a host into h. Those of the defaults name no single host.
func (r *reader) host(n ast.Node, h *Host, single bool) (j jump, err error) {
	keys := []string{"port", "user", "identity_files", "proxy_jump", "remote_cwd", "env", "sudo", "labels", "groups"}
	if single {
		keys = append(keys, "address")
	}
	f, err := r.mapping(n, keys...)
	if err != nil {
		return j, err
	}
	for _, key := range slices.Sorted(maps.Keys(f)) {
		n := f[key]
		switch key {
		case "address":
			h.Address, err = r.checked(n, checkAddress)
		case "user":
			h.User, err = r.checked(n, checkUser)
		case "remote_cwd":
			h.Cwd, err = r.checked(n, checkCwd)
		case "port":
			h.Port, err = r.port(n)
		case "identity_files":
			h.IdentityFiles, err = r.texts(n, checkPath)
		case "proxy_jump":
			j.at, j.own = n, single
			if j.names, err = r.texts(n, checkName); err == nil && len(j.names) > MaxJumps {
				err = r.errorf(n, "there are more than %d hosts on the way", MaxJumps)
			}
		case "groups":
			h.Groups, err = r.texts(n, checkName)
		case "labels":
			h.Labels, err = r.labels(n)
		case "env":
			h.Env, err = r.env(n)
		case "sudo":
			h.Sudo, err = r.sudo(n)
		}
		if err != nil {
			return j, err
		}
	}
	return j, nil
}

func (r *reader) port(n ast.Node) (int, error) {
	s, err := r.text(n)
	if err != nil {
		return 0, err
	}
	p, err := strconv.Atoi(s)
	if err != nil || p == 0 || checkPort(p) != nil || strconv.Itoa(p) != s {
		return 0, r.errorf(n, "%.80q is no port: give 1 to 65535", s)
	}
	return p, nil
}

func (r *reader) labels(n ast.Node) (map[string]string, error) {
	entries, err := r.entries(n)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	for _, e := range entries {
		v, err := r.checked(e.value, checkName)
		if err != nil {
			return nil, err
		}
		if err := checkName(e.key); err != nil {
			return nil, r.wrap(e.at, err)
		}
		labels[e.key] = v
	}
	return labels, nil
}

func (r *reader) env(n ast.Node) (env Env, err error) {
	f, err := r.mapping(n, "base", "keep", "set")
	if err != nil {
		return env, err
	}
	if n, ok := f["base"]; ok {
		s, err := r.text(n)
		if err != nil {
			return env, err
		}
		if s != "clean" && s != "inherit" {
			return env, r.errorf(n, "%.80q is no base of an environment: give clean or inherit", s)
		}
		env.Inherit = s == "inherit"
	}
	if n, ok := f["keep"]; ok {
		if env.Keep, err = r.texts(n, checkVar); err != nil {
			return env, err
		}
	}
	if n, ok := f["set"]; ok {
		entries, err := r.entries(n)
		if err != nil {
			return env, err
		}
		for _, e := range entries {
			v, err := r.text(e.value)
			if err != nil {
				return env, err
			}
			env.Set = append(env.Set, e.key+"="+v)
			if err := checkVars(env.Set); err != nil {
				return env, r.wrap(e.at, err)
			}
		}
	}
	return env, nil
}

func (r *reader) sudo(n ast.Node) (all [][]string, err error) {
	items, err := r.items(n, maxListed)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		words, err := r.texts(item, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, words)
		if err := checkSudo(all); err != nil {
			return nil, r.wrap(item, err)
		}
	}
	return all, nil
}
