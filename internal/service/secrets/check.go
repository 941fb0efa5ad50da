package secrets

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Bounds of secrets. Lengths are in bytes. Values are what package intercept takes, in UTF-8: what is shorter than
// MinValue would be found by chance.
const (
	MinValue   = 8
	MaxValue   = 8 << 10
	MaxHeaders = 16
)

// checked returns a secret in the form in which it is kept. No error has the value, or its length.
func checked(want workspace.Secret, v redact.Value) (workspace.Secret, error) {
	of, err := conf.NewSecret(want.Name, want.Hosts)
	if err != nil {
		return want, err
	}
	kept := workspace.Secret{Name: of.Name}
	for _, r := range of.Hosts {
		kept.Hosts = append(kept.Hosts, r.Text)
	}
	if len(want.Headers) > MaxHeaders {
		return want, fmt.Errorf("cannot keep secret %s: it is for %d headers, and at most %d are taken; without any it is for all: %w",
			want.Name, len(want.Headers), MaxHeaders, errdefs.ErrInvalidArgument)
	}
	for _, h := range want.Headers {
		if !httprule.IsField(h) {
			return want, fmt.Errorf("cannot keep secret %s: %.70q is not the name of a header; give one as X-Api-Key: %w", want.Name, h,
				errdefs.ErrInvalidArgument)
		}
		kept.Headers = append(kept.Headers, textproto.CanonicalMIMEHeaderKey(h))
	}
	slices.Sort(kept.Headers)
	kept.Headers = slices.Compact(kept.Headers)
	sending, err := httprule.Sending(want.Sending).Canonical()
	if err != nil {
		return want, fmt.Errorf("cannot keep secret %s: %w", want.Name, err)
	}
	kept.Sending = workspace.Sending(sending)
	if kept.Sending.Inject != "" && len(kept.Headers) > 0 {
		return want, fmt.Errorf("cannot keep secret %s: it is injected, so there is no placeholder to be replaced in headers; leave --header "+
			"or --inject out: %w", want.Name, errdefs.ErrInvalidArgument)
	}
	if err := checkValue(want.Name, v); err != nil {
		return want, err
	}
	return kept, checkInjected(want.Name, kept.Sending, v)
}

// checkInjected refuses a value that cannot be put where it is to be injected.
func checkInjected(name string, s workspace.Sending, v redact.Value) error {
	if s.Inject != "basic" || strings.Contains(v.Reveal(), ":") {
		return nil
	}
	return fmt.Errorf("cannot keep secret %s: its value is to be USER:PASSWORD, and has no colon; give such a value, or inject it as "+
		"basic:USER: %w", name, errdefs.ErrInvalidArgument)
}

// checkValue refuses a value that could not be used.
func checkValue(name string, v redact.Value) error {
	if err := conf.CheckSecretName(name); err != nil {
		return err
	}
	value, why := v.Reveal(), ""
	switch {
	case len(value) < MinValue || len(value) > MaxValue:
		why = fmt.Sprintf("its value does not have %d to %d bytes", MinValue, MaxValue)
	case !utf8.ValidString(value):
		why = "its value is not text in UTF-8; give another one"
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		why = "its value has a control character, such as a line end; remove it"
	case strings.TrimSpace(value) != value:
		why = "its value begins or ends with a space; remove it"
	default:
		return nil
	}
	return fmt.Errorf("cannot keep secret %s: %s: %w", name, why, errdefs.ErrInvalidArgument)
}
