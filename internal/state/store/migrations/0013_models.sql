-- Which models a workspace may use, and their budget, as JSON of workspace.Models; {} is none. An archive has the same.
ALTER TABLE workspaces ADD COLUMN models TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(models));
ALTER TABLE archives ADD COLUMN models TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(models));

-- What was used of models: for each subject of package models its sums as JSON, among them how many requests were
-- reserved ahead. workspace is "" for subjects that are none.
CREATE TABLE model_sums (
	subject   TEXT PRIMARY KEY,
	workspace TEXT NOT NULL,
	sums	  TEXT NOT NULL CHECK (json_valid(sums))
) STRICT, WITHOUT ROWID;
