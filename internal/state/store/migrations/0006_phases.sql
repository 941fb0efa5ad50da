-- What exists and runs is the broker's ledger's to say. What is kept here of a workspace is what people said about
-- it, and how far an operation on it has come. A check cannot be altered, so that the table is made anew.
CREATE TABLE workspaces_6 (
	name       TEXT PRIMARY KEY,
	key        TEXT NOT NULL,
	owner      TEXT NOT NULL,
	root       TEXT NOT NULL,
	boundary   TEXT NOT NULL,
	profile    TEXT NOT NULL DEFAULT '',
	limits     TEXT NOT NULL CHECK (json_valid(limits)),
	phase      TEXT NOT NULL CHECK (phase IN ('creating', 'restoring', 'settled', 'destroying', 'destroyed')),
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

INSERT INTO workspaces_6 (name, key, owner, root, boundary, profile, limits, phase, purge, retained, expires_ns, idle_ns, created_ns, changed_ns)
	SELECT name, key, owner, root, boundary, profile, limits,
		CASE WHEN state IN ('stopped', 'running', 'paused') THEN 'settled' ELSE state END,
		purge, retained, expires_ns, idle_ns, created_ns, changed_ns FROM workspaces;
DROP TABLE workspaces;
ALTER TABLE workspaces_6 RENAME TO workspaces;
CREATE UNIQUE INDEX workspaces_living_key ON workspaces (key) WHERE phase <> 'destroyed';
