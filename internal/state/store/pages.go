package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
)

const (
	// MaxPage bounds a page of a list.
	MaxPage = 500
	// PageBytes bounds what is read for a page: it ends with the approval that reaches this.
	PageBytes = 4 << 20
	// A page is read in parts, with a turn for each: others wait for one.
	partRows  = 64
	partBytes = 512 << 10
)

// ApprovalFilter chooses approvals; what is empty chooses all.
type ApprovalFilter struct {
	State     approval.State
	Workspace id.Workspace
	Requester string
	// Visible, if not empty, is who looks, and VisibleOwner for whom: only what they asked,
	// or what is about that owner's workspaces, is there.
	Visible, VisibleOwner string
	// Now is when it is asked, for what has expired.
	Now time.Time
	// After is the mark that the page before ended with, "" for the first page.
	After string
	Limit int
}

// Approvals returns a page of approvals, the newest first, and the mark for the next one, ""
// if there is none.
func (s *Store) Approvals(ctx context.Context, f ApprovalFilter) (list []Approval, next string, err error) {
	limit := min(max(f.Limit, 1), MaxPage)
	bytes := int64(0)
	for {
		part, size, more, err := s.part(ctx, f, min(limit-len(list), partRows))
		if err != nil {
			return nil, "", err
		}
		if list = append(list, part...); !more {
			return list, "", nil
		}
		last := list[len(list)-1]
		f.After = Mark(last.AskedAt.UnixNano(), last.ID)
		if bytes += size; len(list) == limit || bytes >= PageBytes {
			return list, f.After, nil
		}
	}
}

// part reads in one turn up to so many of what f chooses, and at least one if there is one. size is how many bytes
// they are; more says that there may be another.
func (s *Store) part(ctx context.Context, f ApprovalFilter, limit int) (list []Approval, size int64, more bool, err error) {
	query, args, err := f.query(limit + 1)
	if err != nil {
		return nil, 0, false, err
	}
	rows, more, err := s.rows(ctx, partBytes, query, args...)
	if err != nil {
		return nil, 0, false, err
	}
	if len(rows) > limit {
		rows, more = rows[:limit], true
	}
	for i := range rows {
		size += rows[i].size()
	}
	give, err := s.Decode(ctx)
	if err != nil {
		return nil, 0, false, fmt.Errorf("cannot read the approvals: %w", err)
	}
	defer give()
	list, err = decodeAll(rows)
	return list, size, more, err
}

// query is what reads up to so many.
func (f *ApprovalFilter) query(limit int) (query string, args []any, err error) {
	var where []string
	and := func(clause string, a ...any) { where, args = append(where, clause), append(args, a...) }
	switch now := f.Now.UnixNano(); f.State {
	case "":
	case approval.Pending:
		and(`state = 'pending' AND ended = 0 AND until_ns > ?`, now)
	case approval.Approved:
		and(`state = 'approved' AND answered_ns > ?`, f.Now.Add(-approval.SpendWithin).UnixNano())
	case approval.Expired:
		and(`(state = 'pending' AND (ended <> 0 OR until_ns <= ?) OR state = 'approved' AND answered_ns <= ?)`, now,
			f.Now.Add(-approval.SpendWithin).UnixNano())
	case approval.Denied, approval.Spent:
		and(`state = ?`, f.State)
	default:
		return "", nil, fmt.Errorf("cannot list approvals in the state %q: it is one of pending, approved, denied, spent, expired: %w",
			f.State, errdefs.ErrInvalidArgument)
	}
	if f.Workspace != "" {
		and(`workspace = ?`, f.Workspace)
	}
	if f.Requester != "" {
		and(`requester = ?`, f.Requester)
	}
	if f.After != "" {
		at, name, err := ParseMark(f.After)
		if err != nil {
			return "", nil, err
		}
		and(`(asked_ns, id) < (?, ?)`, at, name)
	}
	const newest = ` ORDER BY asked_ns DESC, id DESC LIMIT ?`
	query = `SELECT ` + approvalColumns + ` FROM approvals`
	if f.Visible == "" {
		if len(where) > 0 {
			query += ` WHERE ` + strings.Join(where, ` AND `)
		}
		return query + newest, append(args, limit), nil
	}
	// Each by an index of its own, so that those of others are not read.
	which := func(column string) string {
		all := strings.Join(append([]string{column + ` = ?`}, where...), ` AND `)
		return `SELECT * FROM (SELECT id FROM approvals WHERE ` + all + newest + `)`
	}
	query += ` WHERE id IN (` + which(`requester`) + ` UNION ` + which(`owner`) + `)`
	return query + newest, slices.Concat([]any{f.Visible}, args, []any{limit, f.VisibleOwner}, args, []any{limit, limit}), nil
}

// Mark is what the page after one that ends with this approval begins after.
func Mark(askedNS int64, name id.Approval) string {
	return fmt.Sprintf("%d.%s", askedNS, name)
}

// ParseMark is the reverse of Mark.
func ParseMark(mark string) (askedNS int64, name id.Approval, err error) {
	ns, text, ok := strings.Cut(mark, ".")
	askedNS, err = strconv.ParseInt(ns, 10, 64)
	name, perr := id.ParseApproval(text)
	if !ok || err != nil || perr != nil {
		return 0, "", fmt.Errorf("cannot go on after %.64q: it is no mark of a page; give next_page_token as it was given: %w", mark,
			errdefs.ErrInvalidArgument)
	}
	return askedNS, name, nil
}
