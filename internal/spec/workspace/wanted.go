package workspace

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Wanted describes a requested workspace. Zero fields mean the profile's values, or without a
// profile the configured ones.
type Wanted struct {
	Key id.Key
	// Profile names a set of defaults.
	Profile string
	Limits  Limits
	// TTL is how long it lives, or Forever.
	TTL time.Duration
	// Idle is how long it may be idle, or Forever.
	Idle    time.Duration
	NoStart bool
	// OneUse: see Kept.
	OneUse bool
	// Allow is what commands may do that is closed otherwise, in the order of Openings.
	Allow []Opening
	// Reach is what commands may reach of the network.
	Reach Reach
	// Secrets are names of the owner's secrets, of which commands have placeholders.
	Secrets []string
	// SecretFiles are for some of Secrets.
	SecretFiles []SecretFile
	// SecretTemplates are what some of these files have, by the names of their secrets: see WithTemplates.
	SecretTemplates map[string]string
	// Models are those that commands may use, and ModelBudget where that ends.
	Models      []ModelUse
	ModelBudget ModelBudget
	// Mounts come with a grant for them.
	Mounts []Mount
	// Request is the client's id of the request, "" for none.
	Request string
	// Wait is how long a person may take to answer where one is asked; 0 is not to wait.
	Wait time.Duration
}

// Validate reports the first field that cannot be used. The key was parsed before.
func (w *Wanted) Validate() error {
	if err := w.Limits.OrDefault().Validate(); err != nil {
		return err
	}
	if len(w.Mounts) > 0 {
		if err := CheckMounts(w.Mounts); err != nil {
			return err
		}
	}
	if err := CheckOpenings(w.Allow, w.Mounts); err != nil {
		return err
	}
	if err := w.Reach.Validate(); err != nil {
		return err
	}
	if err := CheckSecretNames(SecretNamesOf(w.Secrets, w.SecretFiles)); err != nil {
		return err
	}
	if err := CheckSecretFiles(w.SecretFiles, w.Mounts); err != nil {
		return err
	}
	if _, err := WithTemplates(w.SecretFiles, w.SecretTemplates); err != nil {
		return err
	}
	if err := CheckModels(w.Models); err != nil {
		return err
	}
	if err := w.ModelBudget.Validate(); err != nil {
		return err
	}
	return ValidateLife(w.TTL, w.Idle, w.Request)
}

// Change describes changes to a workspace. Zero fields stay as they are.
type Change struct {
	Limits Limits
	Key    id.Key
	// TTL counts from now.
	TTL, Idle time.Duration
	// Reach changes what commands may reach of the network.
	Reach ReachChange
	// Secrets changes which of its owner's secrets it uses.
	Secrets SecretsChange
	// Models changes which models it may use, and their budget.
	Models  ModelsChange
	Request string
}

// Validate reports the first field that cannot be used. The key was parsed before.
func (c *Change) Validate() error {
	if err := c.Limits.OrDefault().Validate(); err != nil {
		return err
	}
	if err := c.Reach.Validate(); err != nil {
		return err
	}
	if err := c.Secrets.Validate(); err != nil {
		return err
	}
	if err := c.Models.Validate(); err != nil {
		return err
	}
	return ValidateLife(c.TTL, c.Idle, c.Request)
}

// Forever is a duration without an end.
const Forever time.Duration = -1

// Bounds of a lifetime. A shorter one would end before the workspace has started.
const (
	MinTTL  = time.Second
	MaxTTL  = 10 * 365 * 24 * time.Hour
	MinIdle = time.Second
	// MaxRequest bounds the id of a request in bytes.
	MaxRequest = 128
)

// ValidateLife reports a lifetime or an id of a request that cannot be used.
func ValidateLife(ttl, idle time.Duration, request string) error {
	for _, d := range []struct {
		name          string
		v, least, top time.Duration
	}{{"time to live", ttl, MinTTL, MaxTTL}, {"idle time-out", idle, MinIdle, MaxTTL}} {
		if d.v != 0 && d.v != Forever && (d.v < d.least || d.v > d.top) {
			return fmt.Errorf("cannot use %v as %s: it must be between %v and %v, or -1 for ever: %w",
				d.v, d.name, d.least, d.top, errdefs.ErrInvalidArgument)
		}
	}
	if len(request) > MaxRequest {
		return fmt.Errorf("cannot use an id of %d bytes for a request: at most %d are allowed: %w",
			len(request), MaxRequest, errdefs.ErrInvalidArgument)
	}
	for _, c := range []byte(request) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("cannot use %q as the id of a request: it must be printable ASCII without spaces: %w",
				request, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// Life is how long a workspace lives, and how long it may be idle. Zero means the configured
// time, Forever no end.
type Life struct{ TTL, Idle time.Duration }
