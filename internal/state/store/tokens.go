package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/principal"
)

const (
	// maxTokens is how many tokens are kept of one owner, ended ones included.
	maxTokens = 1024
	// keepTokens is how long one that ended is kept for who asks about it.
	keepTokens = 30 * 24 * time.Hour
	// usedEvery is how old the time of the last use may be.
	usedEvery = time.Minute
)

//nolint:gosec // names of columns
const tokenColumns = `SELECT id, hash, name, owner, parent, maker, roles, scope, created_ns, expires_ns, max_uses, uses, rate,
			burst, revoked_ns, used_ns
			FROM tokens`

func (s *Store) loadTokens(ctx context.Context) error {
	rows, err := s.db.QueryContext(ctx, tokenColumns)
	if err != nil {
		return fmt.Errorf("cannot read the tokens: %w", err)
	}
	defer rows.Close()
	now := s.clock()
	latest := now
	for rows.Next() {
		t, err := scanToken(rows.Scan)
		if err != nil {
			return fmt.Errorf("cannot read token %q: %w", t.ID, err)
		}
		s.tokens[t.ID] = t
		for _, at := range []time.Time{t.Created, t.LastUsed} {
			if at.After(latest) {
				latest = at
			}
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("cannot read the tokens: %w", err)
	}
	// A clock that was set back makes none good again or longer good: what is left of each is
	// from the latest time that is known, and passes by the clock that nobody sets.
	for id, t := range s.tokens {
		t.Expires = now.Add(t.Expires.Sub(latest.Round(0)))
		t.Makers = s.makers(t)
		s.tokens[id] = t
	}
	return nil
}

// maxMakers bounds a line of makers that an earlier build let grow longer than may be now.
const maxMakers = maxTokens

// makers are who made a token, its maker, and so on. The caller has the turn.
func (s *Store) makers(t principal.Issued) []string {
	all := []string{t.Maker}
	for len(all) < maxMakers {
		parent, ok := s.tokens[t.Parent]
		if !ok {
			break
		}
		t = parent
		all = append(all, t.Maker)
	}
	return all
}

func scanToken(scan func(...any) error) (t principal.Issued, err error) {
	var hash, roles, scope []byte
	var created, expires, revoked, used int64
	if err := scan(&t.ID, &hash, &t.Name, &t.Owner, &t.Parent, &t.Maker, &roles, &scope, &created, &expires, &t.MaxUses, &t.Uses,
		&t.Rate, &t.Burst, &revoked, &used); err != nil {
		return t, err
	}
	copy(t.Hash[:], hash)
	t.Created, t.Expires, t.Revoked, t.LastUsed = time.Unix(0, created), time.Unix(0, expires), timeOf(revoked), timeOf(used)
	var names []string
	if err := json.Unmarshal(roles, &names); err != nil {
		return t, err
	}
	if t.Roles, err = principal.ParseRoles(names...); err != nil {
		return t, err
	}
	return t, json.Unmarshal(scope, &t.Scope) // null narrows nothing
}

// AddToken keeps a token. resource_exhausted: its owner has as many as may be;
// permission_denied: the token that makes it has ended.
func (s *Store) AddToken(ctx context.Context, t principal.Issued) error {
	roles, err := json.Marshal(t.Roles.Names())
	if err != nil {
		return fmt.Errorf("cannot store token %s: %w", t.ID, err)
	}
	scope, err := json.Marshal(t.Scope)
	if err != nil {
		return fmt.Errorf("cannot store token %s: %w", t.ID, err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot store token %s: %w", t.ID, err)
	}
	defer give()
	if err := s.forgetTokens(ctx, t.Owner); err != nil {
		return err
	}
	// It may have been revoked since it was looked at, and this one would not have been.
	if parent, ok := s.Token(t.Parent); t.Parent != "" && (!ok || parent.Ended(s.Now()) != "") {
		return fmt.Errorf("cannot make a token with token %s: that is not good any more: %w", t.Parent, errdefs.ErrPermissionDenied)
	}
	if err := s.exec(ctx, `INSERT INTO tokens (id, hash, name, owner, parent, maker, roles, scope, created_ns, expires_ns, max_uses,
			rate, burst)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		t.ID, t.Hash[:], t.Name, t.Owner, t.Parent, t.Maker, string(roles), string(scope), t.Created.UnixNano(), t.Expires.UnixNano(),
		t.MaxUses, t.Rate, t.Burst); err != nil {
		return fmt.Errorf("cannot store token %s: %w", t.ID, err)
	}
	t.Makers = s.makers(t)
	s.putToken(t)
	return nil
}

func (s *Store) putToken(t principal.Issued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[t.ID] = t
}

// forgetTokens makes room: what ended long ago goes, and of an owner with too many all that
// ended. The caller has the turn.
func (s *Store) forgetTokens(ctx context.Context, owner string) error {
	now := s.Now()
	var own []principal.Issued
	s.mu.RLock()
	for _, t := range s.tokens {
		if t.Owner == owner {
			own = append(own, t)
		}
	}
	s.mu.RUnlock()
	var gone []string
	for _, t := range own {
		if t.Ended(now) != "" && (len(own) >= maxTokens || now.Sub(t.Expires) > keepTokens || !t.Revoked.IsZero() &&
			now.Sub(t.Revoked) > keepTokens) {
			gone = append(gone, t.ID)
		}
	}
	for _, id := range gone {
		if err := s.exec(ctx, `DELETE FROM tokens WHERE id = ?`, id); err != nil {
			return fmt.Errorf("cannot forget token %s: %w", id, err)
		}
		s.mu.Lock()
		delete(s.tokens, id)
		s.mu.Unlock()
	}
	if len(own)-len(gone) >= maxTokens {
		return fmt.Errorf("cannot make another token: %s has %d that are good, the most there may be; revoke some with \"carrel token "+
			"revoke\": %w", owner, len(own)-len(gone), errdefs.ErrResourceExhausted)
	}
	return nil
}

// Token returns the token with that id, good or ended.
func (s *Store) Token(id string) (principal.Issued, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.tokens[id]
	return t, ok
}

// Tokens returns all tokens, the newest last.
func (s *Store) Tokens() []principal.Issued {
	s.mu.RLock()
	all := make([]principal.Issued, 0, len(s.tokens))
	for _, t := range s.tokens {
		all = append(all, t)
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b principal.Issued) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// RevokeToken ends the token and all that were made with it, by it, and so on. It returns
// those that had not been revoked yet. not_found: there is none.
func (s *Store) RevokeToken(ctx context.Context, id string) ([]string, error) {
	give, err := s.turn(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot revoke token %s: %w", id, err)
	}
	defer give()
	if _, ok := s.Token(id); !ok {
		return nil, fmt.Errorf("cannot revoke token %q: there is none; \"carrel token ls\" lists them: %w", id, errdefs.ErrNotFound)
	}
	at := s.stamp()
	if err := s.exec(ctx, `WITH RECURSIVE line (id) AS (VALUES (?) UNION SELECT t.id FROM tokens t JOIN line ON t.parent = line.id)
		UPDATE tokens SET revoked_ns = ? WHERE revoked_ns = 0 AND id IN line`, id, at); err != nil {
		return nil, fmt.Errorf("cannot revoke token %s: %w", id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	children := map[string][]string{}
	for _, t := range s.tokens {
		children[t.Parent] = append(children[t.Parent], t.ID)
	}
	var ended []string
	line := []string{id}
	for i := 0; i < len(line); i++ {
		t := s.tokens[line[i]]
		if t.Revoked.IsZero() {
			t.Revoked = time.Unix(0, at)
			s.tokens[t.ID] = t
			ended = append(ended, t.ID)
		}
		line = append(line, children[line[i]]...)
		delete(children, line[i]) // none comes twice
	}
	return ended, nil
}

// SpendToken notes a use of a token, and returns the token as it is then. If its uses are
// counted, this one is on disk when SpendToken returns, so that no crash gives it back. A
// token that is not good any more, or for no further use, is permission_denied.
func (s *Store) SpendToken(ctx context.Context, id string) (principal.Issued, error) {
	now := s.Now()
	t, ok := s.Token(id)
	if ok && t.MaxUses == 0 && t.Ended(now) == "" && now.Sub(t.LastUsed) < usedEvery {
		return t, nil
	}
	// Who uses it is not in ctx yet.
	give, err := s.turns.take(ctx, t.Owner)
	if err != nil {
		return t, fmt.Errorf("cannot note a use of token %s: %w", id, err)
	}
	defer give()
	// Again, now that nobody else changes it.
	t, ok = s.Token(id)
	if !ok {
		return t, fmt.Errorf("cannot use token %q: there is none: %w", id, errdefs.ErrPermissionDenied)
	}
	if why := t.Ended(now); why != "" {
		return t, fmt.Errorf("cannot use token %s: it is %s: %w", id, why, errdefs.ErrPermissionDenied)
	}
	if t.MaxUses > 0 {
		t.Uses++
	}
	t.LastUsed = now
	if err := s.exec(ctx, `UPDATE tokens SET uses = ?, used_ns = ? WHERE id = ?`, t.Uses, now.UnixNano(), id); err != nil {
		return t, fmt.Errorf("cannot note a use of token %s: %w", id, err)
	}
	s.putToken(t)
	return t, nil
}

// Now is the time that tokens are judged by.
func (s *Store) Now() time.Time { return s.clock() }
