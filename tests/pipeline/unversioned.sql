BEGIN TRANSACTION;
CREATE TABLE crops (
	crop_id VARCHAR(100) NOT NULL, 
	event_id VARCHAR(200) NOT NULL, 
	kind VARCHAR(10) NOT NULL, 
	sha256 VARCHAR(64), 
	time DOUBLE NOT NULL, 
	frame_id BIGINT NOT NULL, 
	box JSON NOT NULL, 
	score DOUBLE NOT NULL, 
	quality DOUBLE NOT NULL, 
	width INTEGER NOT NULL, 
	height INTEGER NOT NULL, 
	frame_width INTEGER NOT NULL, 
	frame_height INTEGER NOT NULL, 
	deadline DOUBLE NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	reason VARCHAR(40) NOT NULL, 
	created DOUBLE NOT NULL, 
	PRIMARY KEY (crop_id), 
	FOREIGN KEY(event_id) REFERENCES events (id) ON DELETE CASCADE
);
INSERT INTO "crops" VALUES('e','front.a-1','early','9506e750bbf6f361ce1aa8b34c4c6991658764d158f2e0902cf3f744955602b9',1764435337.5,7,'[10.0, 20.0, 58.0, 116.0]',0.8,0.5,48,96,640,480,1764435436.5,'described','none',1.79598714384553050996e+09);
CREATE TABLE descriptions (
	crop_id VARCHAR(100) NOT NULL, 
	text TEXT NOT NULL, 
	model VARCHAR(300) NOT NULL, 
	prompt_hash VARCHAR(64) NOT NULL, 
	finish_reason VARCHAR(20) NOT NULL, 
	prompt_tokens INTEGER NOT NULL, 
	cached_tokens INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	first_token_s DOUBLE NOT NULL, 
	total_s DOUBLE NOT NULL, 
	created DOUBLE NOT NULL, 
	PRIMARY KEY (crop_id), 
	FOREIGN KEY(crop_id) REFERENCES crops (crop_id) ON DELETE CASCADE
);
INSERT INTO "descriptions" VALUES('e','A person in a red jacket.','tiny','abababababababababababababababababababababababababababababababab','stop',100,90,12,0.2,0.9,1.79598714387964773176e+09);
CREATE TABLE events (
	id VARCHAR(200) NOT NULL, 
	track VARCHAR(200) NOT NULL, 
	camera VARCHAR(64) NOT NULL, 
	label VARCHAR(100) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	last_seen DOUBLE NOT NULL, 
	box JSON NOT NULL, 
	score DOUBLE NOT NULL, 
	end_reason VARCHAR(40), 
	final_crop BOOLEAN NOT NULL, 
	gave_up BOOLEAN NOT NULL, 
	description_state VARCHAR(20) NOT NULL, 
	description TEXT, 
	reason VARCHAR(40) NOT NULL, 
	announced_crop_id VARCHAR(100), 
	best_crop_id VARCHAR(100), 
	model VARCHAR(300), 
	created DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	touched DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (track)
);
INSERT INTO "events" VALUES('front.a-1','front/a-1','front','person','ended',1764435336.5,1764435340.5,'[10.0, 20.0, 58.0, 116.0]',0.8,'none',0,0,'final','A person in a red jacket.','none',NULL,'e','tiny',1.79598714379603195193e+09,1.79598714389524531358e+09,1.79598714388531041142e+09);
CREATE INDEX events_newest ON events (first_seen, id);
CREATE INDEX events_by_state ON events (state, touched);
CREATE INDEX events_newest_of_camera ON events (camera, first_seen, id);
CREATE INDEX events_by_description_state ON events (description_state, touched);
CREATE INDEX crops_by_outcome ON crops (outcome, deadline);
CREATE INDEX crops_of_event ON crops (event_id);
COMMIT;
