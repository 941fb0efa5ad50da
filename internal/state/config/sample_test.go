package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/carrel-dev/carrel/internal/state/config"
)

func load(t *testing.T, s config.Sources) *config.Config {
	t.Helper()
	if s.File == "" {
		s.File = write(t, empty)
	}
	c, err := config.Load(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The sample changes nothing as it is. With its settings uncommented it has every key, at its default.
func TestSample(t *testing.T) {
	defaults := load(t, config.Sources{})
	same := func(c *config.Config) {
		t.Helper()
		if d := cmp.Diff(defaults, c, cmpopts.IgnoreUnexported(config.Config{})); d != "" {
			t.Errorf("the sample differs from the defaults (-want +got):\n%s", d)
		}
	}
	sample := config.Sample()
	same(load(t, config.Sources{File: write(t, sample)}))
	var bare strings.Builder
	for line := range strings.Lines(sample) {
		bare.WriteString(strings.TrimPrefix(line, "#"))
	}
	c := load(t, config.Sources{File: write(t, bare.String())})
	same(c)
	for _, s := range c.Effective() {
		if s.From == "default" {
			t.Errorf("the sample has no %s", s.Name)
		}
	}
}

// candidates has for each kind of setting a value that is not the default of all of its kind.
var candidates = []string{
	"/x", "7", "true", "false", "sudo", "0600", "off", "debug", "json", "userns", "2m", "512MiB", ":7443", "http://127.0.0.1/x",
	"https://a.example", "b",
}

// Every field of Config is set by a key, so that the sample, which has every key, lacks no setting.
func TestEveryFieldHasAKey(t *testing.T) {
	defaults, set := fields(load(t, config.Sources{})), map[string]bool{}
	for _, k := range config.Keys() {
		changes := false
		for _, text := range candidates {
			c, err := config.Load(config.Sources{File: write(t, empty), Flags: map[string]string{k.Flag(): text}})
			if err != nil {
				continue
			}
			for name, v := range fields(c) {
				if !reflect.DeepEqual(defaults[name], v) {
					changes, set[name] = true, true
				}
			}
		}
		if !changes {
			t.Errorf("%s changes no field with any of %q", k.Name, candidates)
		}
	}
	for name := range defaults {
		if !set[name] {
			t.Errorf("no key sets %s", name)
		}
	}
}

// fields are the exported fields of a configuration, those of its limits each.
func fields(c *config.Config) map[string]any {
	all := map[string]any{}
	for _, from := range []reflect.Value{reflect.ValueOf(*c), reflect.ValueOf(c.Limits)} {
		for i := range from.NumField() {
			if f := from.Type().Field(i); f.IsExported() && f.Name != "Limits" {
				all[f.Name] = from.Field(i).Interface()
			}
		}
	}
	return all
}
