-- What a request that its client gave an id acts on, by that thing's own name: a key may mean
-- another thing when the request is repeated. '' is not known yet, or of an earlier build.
ALTER TABLE requests ADD COLUMN own TEXT NOT NULL DEFAULT '';
