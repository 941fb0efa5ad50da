-- Tasks, each named by its command, and their messages, numbered from 1. Of a task that says much the oldest messages go.
CREATE TABLE tasks (
    id        TEXT    NOT NULL PRIMARY KEY,
    workspace TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    principal TEXT    NOT NULL,
    protocol  TEXT    NOT NULL,
    argv      TEXT    NOT NULL CHECK (json_valid(argv)),
    state     TEXT    NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'stopped')),
    reason    TEXT    NOT NULL DEFAULT '',
    began_ns  INTEGER NOT NULL,
    ended_ns  INTEGER NOT NULL DEFAULT 0,
    last      INTEGER NOT NULL DEFAULT 0, -- the number of the newest message
    lost      INTEGER NOT NULL DEFAULT 0  -- how many of the oldest are gone
) STRICT;
CREATE INDEX tasks_workspace ON tasks (workspace, began_ns);
CREATE INDEX tasks_owner ON tasks (owner, began_ns);
CREATE INDEX tasks_running ON tasks (id) WHERE state = 'running';

CREATE TABLE task_messages (
    task  TEXT    NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    n     INTEGER NOT NULL,
    at_ns INTEGER NOT NULL,
    kind  TEXT    NOT NULL,
    body  TEXT    NOT NULL CHECK (json_valid(body)),
    PRIMARY KEY (task, n)
) STRICT, WITHOUT ROWID;
