-- Whether a workspace is for one use, and goes with its home when nobody has destroyed it.
ALTER TABLE workspaces ADD COLUMN one_use INTEGER NOT NULL DEFAULT 0;
