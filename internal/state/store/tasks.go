package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

const taskColumns = `id, workspace, owner, principal, protocol, argv, state, reason, began_ns, ended_ns, last, lost`

func scanTask(scan func(...any) error) (t workspace.Task, err error) {
	var argv []byte
	var began, ended int64
	if err := scan(&t.ID, &t.Workspace, &t.Owner, &t.Principal, &t.Protocol, &argv, &t.State, &t.Reason, &began, &ended, &t.Last,
		&t.Lost); err != nil {
		return t, err
	}
	t.Began, t.Ended = time.Unix(0, began), timeOf(ended)
	return t, json.Unmarshal(argv, &t.Argv)
}

// AddTask keeps a new task, and removes what is over: the oldest of its owner's that have ended, so that they have at
// most so many, and those of workspaces that are gone. resource_exhausted: as many of the owner's run.
func (s *Store) AddTask(ctx context.Context, t workspace.Task, most int) error {
	argv, err := json.Marshal(t.Argv)
	if err != nil {
		return fmt.Errorf("cannot store task %s: %w", t.ID, err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot store task %s: %w", t.ID, err)
	}
	defer give()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM tasks WHERE state <> 'running' AND workspace IN
				(SELECT name FROM workspaces WHERE phase = 'destroyed')`); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE owner = ?1 AND state <> 'running'
				ORDER BY began_ns LIMIT max(0, (SELECT count(*) FROM tasks WHERE owner = ?1) + 1 - ?2))`, t.Owner, most); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO tasks (id, workspace, owner, principal, protocol, argv, state, began_ns)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			t.ID, t.Workspace, t.Owner, t.Principal, t.Protocol, string(argv), t.State, t.Began.UnixNano())
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot store task %s: %w", t.ID, full(err))
	}
	return nil
}

// AddMessages keeps messages of a task, and removes those up to a number.
func (s *Store) AddMessages(ctx context.Context, task id.Command, all []workspace.TaskMessage, removed int64) error {
	if len(all) == 0 {
		return nil
	}
	give, err := s.turn(ctx)
	if err == nil {
		defer give()
		err = s.inTx(ctx, func(tx *sql.Tx) error {
			for _, m := range all {
				if _, err := tx.ExecContext(ctx, `INSERT INTO task_messages (task, n, at_ns, kind, body) VALUES (?, ?, ?, ?, ?)`,
					task, m.Number, m.Time.UnixNano(), m.Kind, string(m.Body)); err != nil {
					return err
				}
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM task_messages WHERE task = ? AND n <= ?`, task, removed); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `UPDATE tasks SET last = ?, lost = ? WHERE id = ?`, all[len(all)-1].Number, removed, task)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("cannot store messages of task %s: %w", task, full(err))
	}
	return nil
}

// EndTask notes how a task that runs has ended.
func (s *Store) EndTask(ctx context.Context, task id.Command, state workspace.TaskState, reason string, at time.Time) error {
	err := s.change(ctx, `UPDATE tasks SET state = ?, reason = ?, ended_ns = ? WHERE id = ? AND state = 'running'`, state, reason,
		at.UnixNano(), task)
	if err != nil {
		return fmt.Errorf("cannot store how task %s ended: %w", task, err)
	}
	return nil
}

// FailTasks notes of all tasks that run that they have failed, for that reason.
func (s *Store) FailTasks(ctx context.Context, reason string, at time.Time) error {
	err := s.change(ctx, `UPDATE tasks SET state = 'failed', reason = ?, ended_ns = ? WHERE state = 'running'`, reason, at.UnixNano())
	if err != nil {
		return fmt.Errorf("cannot store that the tasks of the last run have ended: %w", err)
	}
	return nil
}

// Task returns a task of a workspace. not_found: there is none with that id, or no longer.
func (s *Store) Task(ctx context.Context, on id.Workspace, task id.Command) (t workspace.Task, err error) {
	err = s.inTurn(ctx, func() error {
		t, err = scanTask(s.db.QueryRowContext(ctx, `SELECT `+taskColumns+` FROM tasks WHERE id = ? AND workspace = ?`, task, on).Scan)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return t, fmt.Errorf("cannot find task %s in %s: there is none, or it is no longer kept; \"carrel task ls\" lists them: %w", task, on,
			errdefs.ErrNotFound)
	}
	if err != nil {
		return t, fmt.Errorf("cannot read task %s: %w", task, err)
	}
	return t, nil
}

// Tasks returns the tasks of a workspace that are kept, the newest first.
func (s *Store) Tasks(ctx context.Context, on id.Workspace) ([]workspace.Task, error) {
	all, err := list(ctx, s, scanTask, `SELECT `+taskColumns+` FROM tasks WHERE workspace = ? ORDER BY began_ns DESC, id`, on)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tasks of %s: %w", on, err)
	}
	return all, nil
}

// Messages returns the first messages of a task after a number, at most so many.
func (s *Store) Messages(ctx context.Context, task id.Command, after int64, most int) ([]workspace.TaskMessage, error) {
	all, err := list(ctx, s, func(scan func(...any) error) (m workspace.TaskMessage, err error) {
		var at int64
		var body []byte
		err = scan(&m.Number, &at, &m.Kind, &body)
		m.Time, m.Body = time.Unix(0, at), body
		return m, err
	}, `SELECT n, at_ns, kind, body FROM task_messages WHERE task = ? AND n > ? ORDER BY n LIMIT ?`, task, after, most)
	if err != nil {
		return nil, fmt.Errorf("cannot read the messages of task %s: %w", task, err)
	}
	return all, nil
}
