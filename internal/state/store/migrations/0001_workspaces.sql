-- A destroyed workspace keeps its row, so that its name is never used again,
-- and frees its key.
CREATE TABLE workspaces (
	name       TEXT PRIMARY KEY,
	key        TEXT NOT NULL,
	owner      TEXT NOT NULL,
	root       TEXT NOT NULL,
	boundary   TEXT NOT NULL,
	limits     TEXT NOT NULL CHECK (json_valid(limits)),
	state      TEXT NOT NULL CHECK (state IN ('creating', 'stopped', 'running', 'destroying', 'destroyed')),
	-- Whether destroying removes the home, for a start-up that has to finish it.
	purge      INTEGER NOT NULL DEFAULT 0 CHECK (purge IN (0, 1)),
	-- Where destroying kept the home, if it did.
	retained   TEXT NOT NULL DEFAULT '',
	created_ns INTEGER NOT NULL,
	changed_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX workspaces_living_key ON workspaces (key) WHERE state <> 'destroyed';

-- Single values that the daemon keeps across restarts.
CREATE TABLE meta (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
