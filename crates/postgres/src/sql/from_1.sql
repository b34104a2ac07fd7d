-- What the tables of version 1 lack. The functions are replaced after it.

ALTER TABLE fencepost.locks ADD COLUMN looked_at timestamptz, ADD COLUMN readers_until timestamptz;

UPDATE fencepost.state SET version = 2;
