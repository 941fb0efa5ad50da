package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// workspaceColumns are what scanWorkspace reads, before more.
const workspaceColumns = `name, key, owner, root, boundary, profile, limits, phase, purge, expires_ns, idle_ns, created_ns, reach, secrets,
	models, one_use`

func scanWorkspace(scan func(...any) error, more ...any) (w Workspace, err error) {
	var limits, reach, secrets, models []byte
	var expires, created int64
	if err := scan(append([]any{
		&w.Name, &w.Key, &w.Owner, &w.Root, &w.Boundary, &w.Profile, &limits, &w.Phase, &w.Purge, &expires, &w.Idle, &created,
		&reach, &secrets, &models, &w.OneUse,
	}, more...)...); err != nil {
		return w, fmt.Errorf("cannot read a workspace: %w", err)
	}
	if err := json.Unmarshal(limits, &w.Limits); err != nil {
		return w, fmt.Errorf("cannot read the limits of workspace %s: %w", w.Name, err)
	}
	if err := json.Unmarshal(reach, &w.Reach); err != nil {
		return w, fmt.Errorf("cannot read what workspace %s may reach: %w", w.Name, err)
	}
	if err := json.Unmarshal(secrets, &w.Secrets); err != nil {
		return w, fmt.Errorf("cannot read which secrets workspace %s uses: %w", w.Name, err)
	}
	if err := json.Unmarshal(models, &w.Models); err != nil {
		return w, fmt.Errorf("cannot read which models workspace %s uses: %w", w.Name, err)
	}
	w.CreatedAt, w.Expires = time.Unix(0, created), timeOf(expires)
	return w, nil
}

// encoded are the fields of a workspace that are kept as JSON.
type encoded struct{ limits, reach, secrets, models string }

func texts(w Workspace) (x encoded, err error) {
	for _, f := range []struct {
		to   *string
		from any
	}{{&x.limits, w.Limits}, {&x.reach, w.Reach}, {&x.secrets, w.Secrets}, {&x.models, w.Models}} {
		b, merr := json.Marshal(f.from)
		*f.to, err = string(b), errors.Join(err, merr)
	}
	return x, err
}

// nanos and timeOf keep a time as Unix nanoseconds, and none as 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
