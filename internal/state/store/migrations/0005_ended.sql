-- Of a question whose time was over without an answer, the sequence number of the record of
-- that; -1 while it is to be written, 0 if it can still be answered.
ALTER TABLE approvals ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;
-- Of those that are over by now it is not known whether the record has it: a start looks.
UPDATE approvals SET ended = -1 WHERE state = 'pending' AND until_ns <= unixepoch() * 1000000000;
DROP INDEX approvals_open;
CREATE INDEX approvals_open ON approvals (until_ns) WHERE state = 'pending' AND ended = 0;
CREATE INDEX approvals_ending ON approvals (id) WHERE ended = -1;
