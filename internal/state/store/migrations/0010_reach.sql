-- What the commands of a workspace may reach of the network, as JSON of workspace.Reach; {} is nothing.
ALTER TABLE workspaces ADD COLUMN reach TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(reach));
-- What they might reach when it was archived, which a restore gives them.
ALTER TABLE archives ADD COLUMN reach TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(reach));
