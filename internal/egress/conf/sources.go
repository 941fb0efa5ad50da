package conf

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// golang reads GOPROXY and GOSUMDB (go help environment). The checksum database is asked through the proxy if that
// has it, else directly.
func (r *reading) golang() ([]string, error) {
	proxies, sums := r.variable("GOPROXY"), r.variable("GOSUMDB")
	if proxies == "" || sums == "" {
		r := *r
		// A go.mod is not read in /; a toolchain is not fetched.
		r.env = append(slices.Clone(r.env), "GOTOOLCHAIN=local", "GOWORK=off", "GO111MODULE=on")
		out, err := r.ask("go", "env", "GOPROXY", "GOSUMDB")
		if err != nil && proxies == "" {
			return nil, err
		}
		if lines := strings.Split(out, "\n"); err == nil && len(lines) == 2 {
			proxies, sums = strings.TrimSpace(lines[0]), strings.TrimSpace(lines[1])
		}
	}
	var urls []string
	for _, p := range strings.FieldsFunc(proxies, func(r rune) bool { return r == ',' || r == '|' }) {
		switch p = strings.TrimSpace(p); {
		case p == "off":
		case strings.Contains(p, "://"):
			urls = append(urls, p)
		case strings.ContainsAny(p, ".:"): // as go completes it
			urls = append(urls, "https://"+p)
		}
	}
	all, err := hosts("GOPROXY", urls...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	database := ""
	switch fields := strings.Fields(sums); {
	case len(fields) == 2: // NAME+KEY URL
		database = fields[1]
	case len(fields) == 1 && fields[0] != "off": // NAME or NAME+HASH+KEY
		database, _, _ = strings.Cut(fields[0], "+")
	}
	if database != "" && !strings.Contains(database, "://") {
		database = "https://" + database
	}
	return hosts("GOPROXY and GOSUMDB", append(urls, database)...)
}

// npm reads the registry, and those of scopes in ~/.npmrc.
func (r *reading) npm() ([]string, error) {
	path := r.home(".npmrc")
	for _, name := range []string{"npm_config_userconfig", "NPM_CONFIG_USERCONFIG"} {
		if v := r.variable(name); v != "" {
			path = v
		}
	}
	text, err := r.file(path)
	if err != nil {
		return nil, err
	}
	var configured string
	var urls []string
	for line := range strings.Lines(text) {
		key, value, ok := setting(line)
		value = r.expand(value)
		switch {
		case !ok:
		case key == "registry":
			configured = value
		case strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry"):
			urls = append(urls, value)
		}
	}
	for _, name := range []string{"npm_config_registry", "NPM_CONFIG_REGISTRY"} {
		if v := r.variable(name); v != "" {
			return hosts("npm", append(urls, v)...)
		}
	}
	asked, err := r.ask("npm", "config", "get", "registry")
	switch {
	case err == nil:
		configured = asked
	case configured == "":
		return nil, err
	}
	return hosts("npm", append(urls, configured)...)
}

// expand replaces ${NAME}, as npm does in its files.
func (r *reading) expand(value string) string {
	for from := 0; ; {
		start := strings.Index(value[from:], "${")
		if start < 0 {
			return value
		}
		start += from
		length := strings.IndexByte(value[start:], '}')
		if length < 0 {
			return value
		}
		v := r.variable(value[start+2 : start+length])
		value = value[:start] + v + value[start+length+1:]
		from = start + len(v)
	}
}

// pipDefault prints pip's own index and the host that its pages link to.
const pipDefault = "from pip._internal.models.index import PyPI; print(PyPI.simple_url); print('https://' + PyPI.file_storage_domain)"

// pip reads the index and those that are extra. Without an index it asks pip for its own, and for the host of the
// files there. To which host the pages of another index link is unknown.
func (r *reading) pip() ([]string, error) {
	index, extra := strings.Fields(r.variable("PIP_INDEX_URL")), strings.Fields(r.variable("PIP_EXTRA_INDEX_URL"))
	if len(index) == 0 || len(extra) == 0 {
		lines, err := r.pipSettings()
		if err != nil {
			return nil, err
		}
		set := map[string][]string{}
		for _, line := range lines {
			// SECTION.index-url, where the section is global, the name of a command, or :env:
			key, value, _ := setting(line)
			if _, name, ok := strings.Cut(key, "."); ok {
				set[name] = append(set[name], strings.Fields(strings.ReplaceAll(value, `\n`, " "))...)
			}
		}
		if len(index) == 0 {
			index = set["index-url"]
		}
		if len(extra) == 0 {
			extra = set["extra-index-url"]
		}
	}
	if len(index) == 0 {
		out, err := r.ask("python3", "-E", "-c", pipDefault)
		if err != nil {
			return nil, err
		}
		index = strings.Fields(out)
	}
	return hosts("pip", append(index, extra...)...)
}

// pipSettings returns lines of SECTION.KEY=VALUE, from pip itself or else from its files.
func (r *reading) pipSettings() (lines []string, err error) {
	if out, err := r.ask("python3", "-E", "-m", "pip", "--disable-pip-version-check", "config", "list"); err == nil {
		return strings.Split(out, "\n"), nil
	}
	config := r.variable("XDG_CONFIG_HOME")
	if !filepath.IsAbs(config) {
		config = r.home(".config")
	}
	for _, path := range []string{
		filepath.Join("/", r.of.Root, "etc/pip.conf"), r.home(".pip/pip.conf"), filepath.Join(config, "pip/pip.conf"),
		r.variable("PIP_CONFIG_FILE"),
	} {
		text, err := r.file(path)
		if err != nil {
			return nil, err
		}
		section := ""
		for line := range strings.Lines(text) {
			trimmed := strings.TrimSpace(line)
			switch _, _, ok := setting(line); {
			case strings.HasPrefix(trimmed, "["):
				section = strings.Trim(trimmed, "[]")
			case strings.TrimLeft(line, " \t") != line && len(lines) > 0 && trimmed != "": // a value goes on
				lines[len(lines)-1] += " " + trimmed
			case ok:
				lines = append(lines, section+"."+trimmed)
			}
		}
	}
	return lines, nil
}

// setting reads KEY = VALUE of files in the form of INI. Comments are none.
func setting(line string) (key, value string, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' || line[0] == ';' {
		return "", "", false
	}
	key, value, ok = strings.Cut(line, "=")
	return strings.TrimSpace(key), strings.Trim(strings.TrimSpace(value), `"'`), ok
}

// apt reads sources.list(5): the form of one line, and deb822.
func (r *reading) apt() ([]string, error) {
	etc := filepath.Join("/", r.of.Root, "etc/apt")
	paths := []string{filepath.Join(etc, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(etc, "sources.list.d", pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	var urls []string
	for _, path := range paths {
		text, err := r.file(path)
		if err != nil {
			return nil, err
		}
		if filepath.Ext(path) == ".sources" {
			urls = append(urls, deb822(text)...)
			continue
		}
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, "#")
			kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "[") {
				_, rest, _ = strings.Cut(rest, "]")
			}
			if fields := strings.Fields(rest); (kind == "deb" || kind == "deb-src") && len(fields) > 0 {
				urls = append(urls, fields[0])
			}
		}
	}
	return hosts("apt", urls...)
}

// deb822 returns the URIs of the stanzas that are not disabled.
func deb822(text string) (all []string) {
	var urls []string
	enabled, field := true, ""
	flush := func() {
		if enabled {
			all = append(all, urls...)
		}
		urls, enabled, field = nil, true, ""
	}
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "#"):
			continue
		case trimmed == "":
			flush()
			continue
		case line[0] != ' ' && line[0] != '\t':
			var value string
			field, value, _ = strings.Cut(trimmed, ":")
			field, line = strings.ToLower(field), value
		}
		switch field {
		case "uris":
			urls = append(urls, strings.Fields(line)...)
		case "enabled":
			enabled = !slices.Contains([]string{"no", "false", "off", "without", "disable", "0"}, strings.ToLower(strings.TrimSpace(line)))
		}
	}
	flush()
	return all
}

// cargo reads config.toml, each setting of one line, and the variables of registries. cargo does not tell its default.
func (r *reading) cargo() ([]string, error) {
	home := r.variable("CARGO_HOME")
	if !filepath.IsAbs(home) {
		home = r.home(".cargo")
	}
	var urls []string
	for _, v := range r.env {
		name, value, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "CARGO_REGISTRIES_") && strings.HasSuffix(name, "_INDEX") {
			urls = append(urls, value)
		}
	}
	if home == "" {
		return hosts("cargo", urls...)
	}
	// cargo prefers the name without an extension.
	text, err := r.file(filepath.Join(home, "config"))
	if err == nil && text == "" {
		text, err = r.file(filepath.Join(home, "config.toml"))
	}
	if err != nil {
		return nil, err
	}
	section := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		if strings.HasPrefix(line, "[") {
			section, _, _ = strings.Cut(strings.Trim(line, "[]"), ".")
			continue
		}
		key, value, ok := setting(line)
		if strings.HasPrefix(value, `""`) {
			return nil, fmt.Errorf("cargo's configuration has a text of several lines, which is not read: %w", errdefs.ErrNotImplemented)
		}
		if ok && (section == "source" && key == "registry" || section == "registries" && key == "index") {
			urls = append(urls, value)
		}
	}
	return hosts("cargo", urls...)
}
