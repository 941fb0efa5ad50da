-- Questions to people about actions, and what they answered. Times are Unix nanoseconds.
CREATE TABLE approvals (
	id          TEXT PRIMARY KEY,
	-- As in package approval; expired is never kept, it follows from the time.
	state       TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'spent')),
	-- Who asked, and whom the workspace belongs to.
	requester   TEXT NOT NULL,
	owner       TEXT NOT NULL,
	workspace   TEXT NOT NULL,
	-- Digest of the subject: what an answer is bound to, in one text.
	subject     TEXT NOT NULL,
	approval    TEXT NOT NULL CHECK (json_valid(approval)),
	-- What a person is shown of the action and of how it was judged.
	shown       TEXT NOT NULL CHECK (json_valid(shown)),
	-- Of a spent one, the sequence number of its intent in the record; 0 until that is
	-- written.
	intent      INTEGER NOT NULL DEFAULT 0,
	asked_ns    INTEGER NOT NULL,
	until_ns    INTEGER NOT NULL,
	answered_ns INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_asked ON approvals (asked_ns, id);
CREATE INDEX approvals_requester ON approvals (requester, asked_ns, id);
CREATE INDEX approvals_subject ON approvals (subject) WHERE state IN ('pending', 'approved');
CREATE INDEX approvals_open ON approvals (until_ns, requester) WHERE state = 'pending';
CREATE INDEX approvals_unsettled ON approvals (id) WHERE state = 'spent' AND intent = 0;

-- What answers for a thread let pass.
CREATE TABLE permissions (
	-- Of the approval that it comes from.
	id         TEXT PRIMARY KEY,
	requester  TEXT NOT NULL,
	owner      TEXT NOT NULL,
	workspace  TEXT NOT NULL,
	thread     TEXT NOT NULL,
	-- Digest of its subject.
	subject    TEXT NOT NULL,
	permission TEXT NOT NULL CHECK (json_valid(permission)),
	given_ns   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX permissions_subject ON permissions (subject);
CREATE INDEX permissions_given ON permissions (given_ns, id);
