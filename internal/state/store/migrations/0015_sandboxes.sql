-- What a workspace has for clients of E2B: JSON of e2b.row. It goes with the workspace.
CREATE TABLE sandboxes (
    name TEXT NOT NULL PRIMARY KEY REFERENCES workspaces (name) ON DELETE CASCADE,
    text TEXT NOT NULL CHECK (json_valid(text))
) STRICT;
