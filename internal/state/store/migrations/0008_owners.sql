-- So that nobody's look reads what is others'.
CREATE INDEX approvals_owner ON approvals (owner, asked_ns, id);
CREATE INDEX workspaces_destroyed ON workspaces (key, changed_ns) WHERE phase = 'destroyed';
CREATE INDEX workspaces_retained ON workspaces (changed_ns) WHERE phase = 'destroyed' AND retained <> '';
