-- What was left of a workspace's life when it was archived, in nanoseconds: -1 is without an end, 0 as configured.
ALTER TABLE archives ADD COLUMN ttl_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE archives ADD COLUMN idle_ns INTEGER NOT NULL DEFAULT 0;
