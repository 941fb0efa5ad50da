-- Tokens of the API. Of the secret only its hash is kept.
CREATE TABLE tokens (
	id         TEXT PRIMARY KEY,
	-- SHA-256 of the secret.
	hash       BLOB NOT NULL CHECK (length(hash) = 32),
	name       TEXT NOT NULL,
	owner      TEXT NOT NULL,
	-- The token that made it, '' if a user did.
	parent     TEXT NOT NULL,
	maker      TEXT NOT NULL,
	-- JSON arrays of names.
	roles      TEXT NOT NULL CHECK (json_valid(roles)),
	scope      TEXT NOT NULL CHECK (json_valid(scope)),
	created_ns INTEGER NOT NULL,
	expires_ns INTEGER NOT NULL,
	-- 0 is any number; uses are counted only where there is a maximum.
	max_uses   INTEGER NOT NULL CHECK (max_uses >= 0),
	uses       INTEGER NOT NULL DEFAULT 0 CHECK (uses >= 0 AND (max_uses = 0 OR uses <= max_uses)),
	-- Requests a second, 0 for any number, and how many at once.
	rate       REAL NOT NULL,
	burst      INTEGER NOT NULL,
	revoked_ns INTEGER NOT NULL DEFAULT 0,
	-- When it was used last, give or take a minute.
	used_ns    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX tokens_by_owner ON tokens (owner);
