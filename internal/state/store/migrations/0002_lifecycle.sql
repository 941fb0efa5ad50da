-- Paused and restored workspaces, the named defaults that one was made with, how long it may live and
-- how long it may run with nothing in it; and requests that must not be carried out
-- twice. A check cannot be altered, so that the table is made anew.
CREATE TABLE workspaces_2 (
	name       TEXT PRIMARY KEY,
	key        TEXT NOT NULL,
	owner      TEXT NOT NULL,
	root       TEXT NOT NULL,
	boundary   TEXT NOT NULL,
	profile    TEXT NOT NULL DEFAULT '',
	limits     TEXT NOT NULL CHECK (json_valid(limits)),
	state      TEXT NOT NULL CHECK (state IN ('creating', 'restoring', 'stopped', 'running', 'paused', 'destroying', 'destroyed')),
	-- Whether destroying removes the home, for a start-up that has to finish it.
	purge      INTEGER NOT NULL DEFAULT 0 CHECK (purge IN (0, 1)),
	-- Where destroying kept the home, if it did.
	retained   TEXT NOT NULL DEFAULT '',
	-- Unix time at which it is destroyed; 0 is never.
	expires_ns INTEGER NOT NULL DEFAULT 0,
	-- Nanoseconds without a process after which it is stopped; 0 is the configured time,
	-- -1 is never.
	idle_ns    INTEGER NOT NULL DEFAULT 0,
	created_ns INTEGER NOT NULL,
	changed_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO workspaces_2 (name, key, owner, root, boundary, limits, state, purge, retained, created_ns, changed_ns)
	SELECT name, key, owner, root, boundary, limits, state, purge, retained, created_ns, changed_ns FROM workspaces;
DROP TABLE workspaces;
ALTER TABLE workspaces_2 RENAME TO workspaces;
CREATE UNIQUE INDEX workspaces_living_key ON workspaces (key) WHERE state <> 'destroyed';

-- A request that its client gave an id. The answer is kept as JSON once it is known.
CREATE TABLE requests (
	principal TEXT NOT NULL,
	id        TEXT NOT NULL,
	-- Of the action, so that an id is not taken for that of another request.
	digest    TEXT NOT NULL,
	-- '' while it is under way, or was when the daemon ended.
	answer    TEXT NOT NULL DEFAULT '',
	began_ns  INTEGER NOT NULL,
	PRIMARY KEY (principal, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_began ON requests (began_ns);

-- Homes that were put away. The file is <id>.tar.zst in the daemon's directory.
CREATE TABLE archives (
	id         TEXT PRIMARY KEY,
	workspace  TEXT NOT NULL,
	key        TEXT NOT NULL,
	owner      TEXT NOT NULL,
	profile    TEXT NOT NULL,
	limits     TEXT NOT NULL CHECK (json_valid(limits)),
	sha256     TEXT NOT NULL,
	-- Of the file, and of what is in it.
	size       INTEGER NOT NULL,
	entries    INTEGER NOT NULL,
	bytes      INTEGER NOT NULL,
	created_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX archives_by_key ON archives (key, created_ns);
