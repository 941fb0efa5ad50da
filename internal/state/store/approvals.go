package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
)

const (
	// keepApprovals is how long one is kept after its time.
	keepApprovals = 90 * 24 * time.Hour
)

// Approval is an approval as it is kept.
type Approval struct {
	approval.Approval
	// Owner is whom the workspace belongs to.
	Owner string
	// Shown is JSON of what a person is shown; the store does not read it.
	Shown json.RawMessage
	// Intent is the sequence number of the intent that it was spent on, 0 if that is not
	// known to be written.
	Intent int64
}

// encode writes JSON as it is kept: what only a page of HTML needs escaped would make a
// question six times as long.
func encode(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// Show sets what a person is shown.
func (a *Approval) Show(v any) error {
	text, err := encode(v)
	a.Shown = json.RawMessage(text)
	return err
}

// Bytes is how many bytes of the database it takes, but for a few hundred.
func (a *Approval) Bytes() (int64, error) {
	text, err := encode(a.Approval)
	return int64(len(text) + len(a.Shown)), err
}

// subjectDigest names a subject by all its fields.
func subjectDigest(s approval.Subject) (string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("cannot write the subject of an approval: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// Ask keeps a new question.
func (s *Store) Ask(ctx context.Context, a Approval) error {
	fail := func(err error) error { return fmt.Errorf("cannot keep approval %s: %w", a.ID, err) }
	subject, err := subjectDigest(a.Subject)
	if err != nil {
		return fail(err)
	}
	text, err := encode(a.Approval)
	if err != nil {
		return fail(err)
	}
	if err := s.change(ctx, `INSERT INTO approvals (id, state, requester, owner, workspace, subject, approval, shown, asked_ns, until_ns)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		a.ID, a.State, a.Subject.By, a.Owner, a.Subject.Workspace, subject, text, string(a.Shown), a.AskedAt.UnixNano(),
		a.Until.UnixNano()); err != nil {
		return fail(err)
	}
	return nil
}

// ForgetApprovals removes the approvals whose time was over so long ago that nobody asks for
// them any more, and of those that are over the oldest of each workspace owner's that are more
// than so many bytes; but none that the record is still to have something of. It reads the
// whole table.
func (s *Store) ForgetApprovals(ctx context.Context, now time.Time, keep int64) error {
	err := s.change(ctx, `DELETE FROM approvals WHERE until_ns < ? AND NOT (state = 'spent' AND intent = 0)
			AND NOT (state = 'pending' AND ended <= 0)`, now.Add(-keepApprovals).UnixNano())
	if err == nil {
		err = s.change(ctx, `DELETE FROM approvals WHERE id IN (SELECT id FROM (
			SELECT id, SUM(octet_length(approval) + octet_length(shown)) OVER (PARTITION BY owner ORDER BY asked_ns DESC, id DESC) AS kept
			FROM approvals WHERE state = 'denied' OR state = 'spent' AND intent > 0 OR state = 'pending' AND ended > 0
			OR state = 'approved' AND answered_ns < ?
		) WHERE kept > ?)`, now.Add(-approval.SpendWithin).UnixNano(), keep)
	}
	if err != nil {
		return fmt.Errorf("cannot remove old approvals: %w", err)
	}
	return nil
}

const approvalColumns = `approval, owner, shown, intent, ended`

// row is an approval as it was read. It is decoded when the database is free for others.
type row struct {
	text, shown   []byte
	owner         string
	intent, ended int64
}

func (r *row) scan(from interface{ Scan(...any) error }) error {
	return from.Scan(&r.text, &r.owner, &r.shown, &r.intent, &r.ended)
}

func (r *row) size() int64 { return int64(len(r.text) + len(r.shown)) }

func (r *row) decode() (Approval, error) {
	a := Approval{Owner: r.owner, Shown: r.shown, Intent: r.intent}
	if err := json.Unmarshal(r.text, &a.Approval); err != nil {
		return a, fmt.Errorf("cannot read an approval: %w: %w", err, errdefs.ErrDataLoss)
	}
	if r.ended != 0 {
		a.State = approval.Expired
	}
	return a, nil
}

// Approval returns the approval with that id. not_found: there is none.
func (s *Store) Approval(ctx context.Context, name id.Approval) (a Approval, err error) {
	var r row
	err = s.inTurn(ctx, func() error {
		return r.scan(s.db.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE id = ?`, name))
	})
	if err == nil {
		a, err = r.decode()
	}
	if errors.Is(err, sql.ErrNoRows) {
		return a, noApproval(name)
	}
	if err != nil {
		return a, fmt.Errorf("cannot read approval %s: %w", name, err)
	}
	return a, nil
}

func noApproval(name id.Approval) error {
	return fmt.Errorf("cannot find approval %s: there is none with this id; \"carrel approvals list\" lists them: %w", name,
		errdefs.ErrNotFound)
}

// ChangeApproval changes an approval as f says, in one transaction with what comes of it: a
// permission that an answer gives is kept with it. f is not called concurrently for any two
// approvals, and its error changes nothing.
func (s *Store) ChangeApproval(
	ctx context.Context, name id.Approval, f func(approval.Approval) (approval.Approval, error),
) (Approval, error) {
	var a Approval
	give, err := s.turn(ctx)
	if err != nil {
		return a, fmt.Errorf("cannot change approval %s: %w", name, err)
	}
	defer give()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		var r row
		err := r.scan(tx.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE id = ?`, name))
		if err == nil {
			a, err = r.decode()
		}
		if errors.Is(err, sql.ErrNoRows) {
			return noApproval(name)
		}
		if err != nil {
			return fmt.Errorf("cannot read approval %s: %w", name, err)
		}
		before := a.State
		if a.Approval, err = f(a.Approval); err != nil {
			return err
		}
		text, err := encode(a.Approval)
		if err != nil {
			return fmt.Errorf("cannot keep approval %s: %w", name, err)
		}
		var answered int64
		if a.Answer != nil {
			answered = a.Answer.At.UnixNano()
		}
		if _, err := tx.ExecContext(ctx, `UPDATE approvals SET state = ?, approval = ?, answered_ns = ? WHERE id = ?`, a.State, text,
			answered, name); err != nil {
			return fmt.Errorf("cannot keep approval %s: %w", name, err)
		}
		if p, ok := a.Permission(); ok && before == approval.Pending {
			return grantPermission(ctx, tx, p, a.Owner)
		}
		return nil
	})
	return a, err
}

// AddRule keeps a rule. resource_exhausted: there are as many as there may be.
func (s *Store) AddRule(ctx context.Context, p approval.Permission) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM permissions WHERE id LIKE 'al-%'`).Scan(&n); err != nil {
			return fmt.Errorf("cannot count the rules that allow commands: %w", err)
		}
		if n >= approval.MaxRules {
			return fmt.Errorf("cannot allow more commands: there are %d rules, as many as there may be; \"carrel policy rules\" lists them, and "+
				"\"carrel policy disallow ID\" takes one back: %w", n, errdefs.ErrResourceExhausted)
		}
		return grantPermission(ctx, tx, p, p.Rule.Owner)
	})
}

// Rules returns the rules that allow commands.
func (s *Store) Rules(ctx context.Context) ([]Permission, error) {
	return s.permissions(ctx, `WHERE id LIKE 'al-%' ORDER BY given_ns, id`)
}

func grantPermission(ctx context.Context, tx *sql.Tx, p approval.Permission, owner string) error {
	subject, err := "", error(nil) // no action has the subject of a rule or of a plan's commands
	if p.Rule == nil {
		if err := roomForPermission(ctx, tx, p); err != nil {
			return err
		}
	}
	if p.Rule == nil && len(p.Steps) == 0 {
		if subject, err = subjectDigest(p.Subject); err != nil {
			return err
		}
	}
	text, err := json.Marshal(p)
	if err == nil {
		_, err = tx.ExecContext(ctx, `INSERT INTO permissions (id, requester, owner, workspace, thread, subject, permission, given_ns)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			p.From, p.Subject.By, owner, p.Subject.Workspace, p.Subject.Thread, subject, string(text), p.At.UnixNano())
	}
	if err != nil {
		return fmt.Errorf("cannot keep the permission of approval %s: %w", p.From, err)
	}
	return nil
}

// roomForPermission is an error if as much is remembered as may be, of the thread or session or of whoever asks. None makes room for
// another one: what a person has allowed stays until they take it back.
func roomForPermission(ctx context.Context, tx *sql.Tx, p approval.Permission) error {
	var here, all int
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE workspace = ? AND thread = ?), count(*) FROM permissions
			WHERE requester = ? AND id NOT LIKE 'al-%'`,
		p.Subject.Workspace, p.Subject.Thread, p.Subject.By).Scan(&here, &all); err != nil {
		return fmt.Errorf("cannot count the permissions of a thread: %w", err)
	}
	what, most := "thread", approval.MaxOfThread
	if len(p.Steps) > 0 {
		what, most = "session", approval.MaxOfSession
	}
	switch {
	case here >= most:
		return fmt.Errorf("cannot remember more for this %s: it has %d permissions, as many as there may be; answer once, or take some "+
			"back with \"carrel approvals revoke ID\": %w", what, here, errdefs.ErrResourceExhausted)
	case all >= approval.MaxOfRequester:
		return fmt.Errorf("cannot remember more for %s: there are %d permissions, as many as there may be; answer once, or take some back "+
			"with \"carrel approvals revoke ID\": %w", p.Subject.By, all, errdefs.ErrResourceExhausted)
	}
	return nil
}

// SettleApproval notes the intent that a spent approval was spent on.
func (s *Store) SettleApproval(ctx context.Context, name id.Approval, intent int64) error {
	if err := s.change(ctx, `UPDATE approvals SET intent = ? WHERE id = ? AND state = 'spent'`, intent, name); err != nil {
		return fmt.Errorf("cannot note what approval %s was spent on: %w", name, err)
	}
	return nil
}

// UnsettledApprovals returns those that were spent on an intent that is not known to be
// written: a crash came between, or before the note of it.
func (s *Store) UnsettledApprovals(ctx context.Context) ([]Approval, error) {
	return s.approvals(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE state = 'spent' AND intent = 0`)
}

// OpenApprovals returns the questions to exactly this subject that can still be answered, or
// whose answer lets it pass and was not used, the oldest first.
func (s *Store) OpenApprovals(ctx context.Context, subject approval.Subject) ([]Approval, error) {
	digest, err := subjectDigest(subject)
	if err != nil {
		return nil, err
	}
	return s.approvals(ctx, `SELECT `+approvalColumns+` FROM approvals
			WHERE subject = ? AND state IN ('pending', 'approved') AND ended = 0 ORDER BY asked_ns, id`, digest)
}

func (s *Store) approvals(ctx context.Context, query string, args ...any) ([]Approval, error) {
	rows, _, err := s.rows(ctx, math.MaxInt64, query, args...)
	if err != nil {
		return nil, err
	}
	return decodeAll(rows)
}

// rows reads approvals in one turn, up to the one with which they have so many bytes. cut says that it may not be
// the last.
func (s *Store) rows(ctx context.Context, most int64, query string, args ...any) (list []row, cut bool, err error) {
	fail := func(err error) ([]row, bool, error) {
		return nil, false, fmt.Errorf("cannot read the approvals: %w", err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return fail(err)
	}
	defer give()
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	bytes := int64(0)
	for !cut && rows.Next() {
		var r row
		if err := r.scan(rows); err != nil {
			return fail(err)
		}
		list = append(list, r)
		bytes += r.size()
		cut = bytes >= most
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return list, cut, nil
}

func decodeAll(rows []row) (list []Approval, err error) {
	for i := range rows {
		a, err := rows[i].decode()
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// Permission is a permission as it is kept.
type Permission struct {
	approval.Permission
	// Owner is whom the workspace belongs to.
	Owner string
}

// PermissionFor returns a permission whose subject is that of an action but for the digest.
func (s *Store) PermissionFor(ctx context.Context, subject approval.Subject) (p Permission, ok bool, err error) {
	subject.Digest = ""
	digest, err := subjectDigest(subject)
	if err != nil {
		return p, false, err
	}
	list, err := s.permissions(ctx, `WHERE subject = ? LIMIT 1`, digest)
	if err != nil || len(list) == 0 {
		return p, false, err
	}
	return list[0], true, nil
}

// Permissions returns what is remembered of answers, the newest first; requester, workspace
// and thread choose, where they are not empty.
func (s *Store) Permissions(ctx context.Context, requester string, workspace id.Workspace, thread string) ([]Permission, error) {
	return s.permissions(ctx, `WHERE (? = '' OR requester = ?) AND (? = '' OR workspace = ?) AND (? = '' OR thread = ?)
			ORDER BY given_ns DESC, id`,
		requester, requester, workspace, workspace, thread, thread)
}

// Permission returns the permission that came of an approval. not_found: there is none.
func (s *Store) Permission(ctx context.Context, name id.Approval) (Permission, error) {
	list, err := s.permissions(ctx, `WHERE id = ?`, name)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("cannot find permission %s: there is none; \"carrel approvals permissions\" lists them: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return Permission{}, err
	}
	return list[0], nil
}

// Revoke removes a permission; one that is gone is no error.
func (s *Store) Revoke(ctx context.Context, name id.Approval) error {
	if err := s.change(ctx, `DELETE FROM permissions WHERE id = ?`, name); err != nil {
		return fmt.Errorf("cannot revoke permission %s: %w", name, err)
	}
	return nil
}

func (s *Store) permissions(ctx context.Context, rest string, args ...any) ([]Permission, error) {
	give, err := s.turn(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read the permissions: %w", err)
	}
	defer give()
	//nolint:gosec // rest is one of the constants above
	rows, err := s.db.QueryContext(ctx, `SELECT permission, owner FROM permissions `+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("cannot read the permissions: %w", err)
	}
	defer rows.Close()
	var list []Permission
	for rows.Next() {
		var p Permission
		var text []byte
		if err := rows.Scan(&text, &p.Owner); err != nil {
			return nil, fmt.Errorf("cannot read a permission: %w", err)
		}
		if err := json.Unmarshal(text, &p.Permission); err != nil {
			return nil, fmt.Errorf("cannot read a permission: %w: %w", err, errdefs.ErrDataLoss)
		}
		list = append(list, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the permissions: %w", err)
	}
	return list, nil
}

// inTx makes changes that belong together, to the end as exec does. The caller has the turn.
func (s *Store) inTx(ctx context.Context, f func(*sql.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.inRoom(func() error { return s.tx(context.WithoutCancel(ctx), f) })
}

func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("cannot change the database: %w", err)
	}
	err = f(tx)
	if err == nil && s.beside.value != nil {
		_, err = tx.ExecContext(ctx, setMeta, s.beside.name, s.beside.value())
	}
	if err != nil {
		return errors.Join(full(err), tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("cannot change the database: %w", full(err))
	}
	return nil
}
