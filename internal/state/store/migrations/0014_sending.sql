-- How a secret is sent, as JSON of httprule.Sending; {} is in the place of its placeholder, in headers of every request.
ALTER TABLE secrets ADD COLUMN sending TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(sending));
