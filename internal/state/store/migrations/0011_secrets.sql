-- Secrets that are kept for the workspaces of their owners. A value is only kept sealed: see package secret.
CREATE TABLE secrets (
	owner      TEXT NOT NULL,
	name       TEXT NOT NULL,
	sealed     BLOB NOT NULL,
	-- JSON arrays: rules of the hosts that get the value, and names of headers, none for all.
	hosts      TEXT NOT NULL CHECK (json_valid(hosts)),
	headers    TEXT NOT NULL CHECK (json_valid(headers)),
	created_ns INTEGER NOT NULL,
	-- When it last got another value, 0 for never.
	rotated_ns INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;
