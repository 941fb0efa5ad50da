-- Which of its owner's secrets a workspace uses, and the sealed key of the authority that it trusts, as JSON of
-- workspace.Secrets; {} is none.
ALTER TABLE workspaces ADD COLUMN secrets TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(secrets));
