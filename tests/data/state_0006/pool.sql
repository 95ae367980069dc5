BEGIN TRANSACTION;
CREATE TABLE alarms (
	rule VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	label VARCHAR NOT NULL, 
	severity VARCHAR NOT NULL, 
	why VARCHAR NOT NULL, 
	since DATETIME NOT NULL, 
	until DATETIME, 
	told_at DATETIME, 
	CONSTRAINT pk_alarms PRIMARY KEY (rule, subject)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0006');
CREATE TABLE api_tokens (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	revoked BOOLEAN NOT NULL, 
	created_by VARCHAR, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	CONSTRAINT pk_api_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_api_tokens_digest UNIQUE (digest)
);
CREATE TABLE claims (
	placement_id VARCHAR NOT NULL, 
	device_id VARCHAR NOT NULL, 
	mode VARCHAR NOT NULL, 
	mib INTEGER NOT NULL, 
	priority INTEGER NOT NULL, 
	CONSTRAINT pk_claims PRIMARY KEY (placement_id, device_id), 
	CONSTRAINT ck_claims_mib CHECK (mib >= 0), 
	CONSTRAINT fk_claims_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_claims_placement_id FOREIGN KEY(placement_id) REFERENCES placements (id)
);
INSERT INTO "claims" VALUES('pl-01m8q9f3jtxn7mk9xz790t32re','cpu-tested','shared',64,0);
CREATE TABLE commands (
	node_id VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	payload JSON NOT NULL, 
	CONSTRAINT pk_commands PRIMARY KEY (node_id, seq), 
	CONSTRAINT fk_commands_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE TABLE devices (
	id VARCHAR NOT NULL, 
	node_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	position INTEGER NOT NULL, 
	memory_mib INTEGER NOT NULL, 
	short_ref VARCHAR, 
	failed_rules JSON NOT NULL, 
	hourly_usd FLOAT, 
	proof VARCHAR NOT NULL, 
	stand_in BOOLEAN NOT NULL, 
	present BOOLEAN NOT NULL, 
	CONSTRAINT pk_devices PRIMARY KEY (id), 
	CONSTRAINT fk_devices_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
INSERT INTO "devices" VALUES('cpu-tested','node-01m8q9f3g77rkjy14j0pthmtc9','cpu','AMD EPYC',0,12052,NULL,'[]',NULL,'unproven',0,1);
CREATE TABLE events (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	at DATETIME NOT NULL, 
	data JSON NOT NULL
, actor VARCHAR);
INSERT INTO "events" VALUES(1,'control.started','inst-01m8q9f2ntmmxg1y28e674b9g8','2026-11-30 22:33:33.118287','{}',NULL);
INSERT INTO "events" VALUES(2,'node.joined','node-01m8q9f3g77rkjy14j0pthmtc9','2026-11-30 22:33:33.957722','{"node": "tested", "address": "127.0.0.1"}',NULL);
INSERT INTO "events" VALUES(3,'node.connected','node-01m8q9f3g77rkjy14j0pthmtc9','2026-11-30 22:33:33.984209','{"node": "tested", "session": "s-00000004979627715571-1cb15905"}',NULL);
INSERT INTO "events" VALUES(4,'node.verifying','node-01m8q9f3g77rkjy14j0pthmtc9','2026-11-30 22:33:33.984209','{"node": "tested", "reason": null}',NULL);
INSERT INTO "events" VALUES(5,'node.ready','node-01m8q9f3g77rkjy14j0pthmtc9','2026-11-30 22:33:33.984209','{"node": "tested", "reason": "no proof asked"}',NULL);
INSERT INTO "events" VALUES(6,'device.found','cpu-tested','2026-11-30 22:33:33.984209','{"node": "tested", "name": "AMD EPYC", "memory_mib": 12052}',NULL);
INSERT INTO "events" VALUES(7,'workload.created','wl-01m8q9f3jejn8xrdb37r8qshrx','2026-11-30 22:33:34.028486','{"workload": "kept", "wanted": 1}',NULL);
INSERT INTO "events" VALUES(8,'placement.planned','pl-01m8q9f3jtxn7mk9xz790t32re','2026-11-30 22:33:34.038254','{"workload": "kept", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "hourly_usd": 0.0}',NULL);
INSERT INTO "events" VALUES(9,'placement.noted','pl-01m8q9f3jtxn7mk9xz790t32re','2026-11-30 22:33:34.179632','{"port": 31202, "restarts": 0, "rate": null}',NULL);
INSERT INTO "events" VALUES(10,'placement.starting','pl-01m8q9f3jtxn7mk9xz790t32re','2026-11-30 22:33:34.179632','{"workload": "kept", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(11,'placement.verifying','pl-01m8q9f3jtxn7mk9xz790t32re','2026-11-30 22:33:34.179632','{"workload": "kept", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(12,'placement.active','pl-01m8q9f3jtxn7mk9xz790t32re','2026-11-30 22:33:34.453131','{"workload": "kept", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(13,'workload.created','wl-01m8q9f41fy43n0rm3810mz1ph','2026-11-30 22:33:34.511162','{"workload": "deleted", "wanted": 1}',NULL);
INSERT INTO "events" VALUES(14,'placement.planned','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:34.516899','{"workload": "deleted", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "hourly_usd": 0.0}',NULL);
INSERT INTO "events" VALUES(15,'placement.noted','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:34.639443','{"port": 31737, "restarts": 0, "rate": null}',NULL);
INSERT INTO "events" VALUES(16,'placement.starting','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:34.639443','{"workload": "deleted", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(17,'placement.verifying','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:34.639443','{"workload": "deleted", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(18,'placement.active','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:34.916736','{"workload": "deleted", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(19,'workload.deleted','wl-01m8q9f41fy43n0rm3810mz1ph','2026-11-30 22:33:34.957739','{"workload": "deleted"}',NULL);
INSERT INTO "events" VALUES(20,'workload.created','wl-01m8q9f4fn6qtc299mdb1mppy4','2026-11-30 22:33:34.964867','{"workload": "off", "wanted": 0}',NULL);
INSERT INTO "events" VALUES(21,'placement.draining','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:34.969545','{"workload": "deleted", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": "deleted"}',NULL);
INSERT INTO "events" VALUES(22,'workload.created','wl-01m8q9f4g4qmfwxsb0593mn7pn','2026-11-30 22:33:34.979996','{"workload": "failing", "wanted": 1}',NULL);
INSERT INTO "events" VALUES(23,'placement.planned','pl-01m8q9f4ghywh2axacxqtrwkj4','2026-11-30 22:33:34.991233','{"workload": "failing", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "hourly_usd": 0.0}',NULL);
INSERT INTO "events" VALUES(24,'placement.ended','pl-01m8q9f41p99z8jzgea1mrcqk6','2026-11-30 22:33:35.049546','{"workload": "deleted", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": "stopped"}',NULL);
INSERT INTO "events" VALUES(25,'placement.noted','pl-01m8q9f4ghywh2axacxqtrwkj4','2026-11-30 22:33:35.049546','{"port": 32148, "restarts": 0, "rate": null}',NULL);
INSERT INTO "events" VALUES(26,'placement.starting','pl-01m8q9f4ghywh2axacxqtrwkj4','2026-11-30 22:33:35.049546','{"workload": "failing", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": null}',NULL);
INSERT INTO "events" VALUES(27,'placement.failed','pl-01m8q9f4ghywh2axacxqtrwkj4','2026-11-30 22:33:35.152745','{"workload": "failing", "node_id": "node-01m8q9f3g77rkjy14j0pthmtc9", "version": 1, "reason": "exit: code 7 after 0.1 s"}',NULL);
INSERT INTO "events" VALUES(28,'workload.backing_off','wl-01m8q9f4g4qmfwxsb0593mn7pn','2026-11-30 22:33:35.152745','{"workload": "failing", "why": "failed 1 time in a row, last: exit: code 7 after 0.1 s", "pause": 0.57}',NULL);
CREATE TABLE heard (
	subject VARCHAR NOT NULL, 
	replica VARCHAR NOT NULL, 
	linked BOOLEAN NOT NULL, 
	since FLOAT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_heard PRIMARY KEY (subject)
);
CREATE TABLE hotkeys (
	address VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	created_by VARCHAR, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_hotkeys PRIMARY KEY (address), 
	CONSTRAINT uq_hotkeys_name UNIQUE (name)
);
CREATE TABLE jobs (
	id VARCHAR NOT NULL, 
	workload_id VARCHAR NOT NULL, 
	placement_id VARCHAR, 
	state VARCHAR NOT NULL, 
	reason VARCHAR, 
	created_at DATETIME NOT NULL, 
	changed_at DATETIME NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_placement_id FOREIGN KEY(placement_id) REFERENCES placements (id), 
	CONSTRAINT fk_jobs_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
CREATE TABLE join_tokens (
	id VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	node_name VARCHAR, 
	hourly_usd FLOAT, 
	region VARCHAR, 
	short_ref VARCHAR, 
	uses INTEGER NOT NULL, 
	used INTEGER NOT NULL, 
	revoked BOOLEAN NOT NULL, 
	created_by VARCHAR, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_join_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_join_tokens_digest UNIQUE (digest)
);
CREATE TABLE leases (
	name VARCHAR NOT NULL, 
	holder VARCHAR NOT NULL, 
	epoch INTEGER NOT NULL, 
	until FLOAT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE "nodes" (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	public_key VARCHAR NOT NULL, 
	address VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	locked BOOLEAN NOT NULL, 
	draining BOOLEAN NOT NULL, 
	hourly_usd FLOAT, 
	runtimes JSON NOT NULL, 
	session VARCHAR, 
	boot_id VARCHAR NOT NULL, 
	joined_at DATETIME NOT NULL, 
	seen_at DATETIME NOT NULL, 
	command_seq INTEGER DEFAULT 0 NOT NULL, 
	region VARCHAR, 
	short_ref VARCHAR, 
	pinned JSON DEFAULT '[]' NOT NULL, 
	removed_at DATETIME, 
	CONSTRAINT pk_nodes PRIMARY KEY (id)
);
INSERT INTO "nodes" VALUES('node-01m8q9f3g77rkjy14j0pthmtc9','tested','a2MSWxSMSoSIb14Cmrk1RCKJtIyYtsPU9Wtsexg/Nek=','127.0.0.1','ready',0,0,NULL,'["process"]','s-00000004979627715571-1cb15905','00000000-0000-0000-0000-000000000000','2026-11-30 22:33:33.957722','2026-11-30 22:33:35.152745',4,NULL,NULL,'[]',NULL);
CREATE TABLE nonces (
	node_id VARCHAR NOT NULL, 
	nonce VARCHAR NOT NULL, 
	stamp BIGINT NOT NULL, 
	CONSTRAINT pk_nonces PRIMARY KEY (node_id, nonce)
);
CREATE TABLE placements (
	id VARCHAR NOT NULL, 
	workload_id VARCHAR NOT NULL, 
	workload_version INTEGER NOT NULL, 
	node_id VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	live BOOLEAN NOT NULL, 
	reason VARCHAR, 
	port INTEGER, 
	restarts INTEGER NOT NULL, 
	rate FLOAT, 
	created_at DATETIME NOT NULL, 
	changed_at DATETIME NOT NULL, 
	CONSTRAINT pk_placements PRIMARY KEY (id), 
	CONSTRAINT fk_placements_node_id FOREIGN KEY(node_id) REFERENCES nodes (id), 
	CONSTRAINT fk_placements_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "placements" VALUES('pl-01m8q9f3jtxn7mk9xz790t32re','wl-01m8q9f3jejn8xrdb37r8qshrx',1,'node-01m8q9f3g77rkjy14j0pthmtc9','active',1,NULL,31202,0,NULL,'2026-11-30 22:33:34.038254','2026-11-30 22:33:34.453131');
INSERT INTO "placements" VALUES('pl-01m8q9f41p99z8jzgea1mrcqk6','wl-01m8q9f41fy43n0rm3810mz1ph',1,'node-01m8q9f3g77rkjy14j0pthmtc9','ended',0,'stopped',31737,0,NULL,'2026-11-30 22:33:34.516899','2026-11-30 22:33:35.049546');
INSERT INTO "placements" VALUES('pl-01m8q9f4ghywh2axacxqtrwkj4','wl-01m8q9f4g4qmfwxsb0593mn7pn',1,'node-01m8q9f3g77rkjy14j0pthmtc9','failed',0,'exit: code 7 after 0.1 s',32148,0,NULL,'2026-11-30 22:33:34.991233','2026-11-30 22:33:35.152745');
CREATE TABLE replicas (
	instance_id VARCHAR NOT NULL, 
	url VARCHAR NOT NULL, 
	host VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	started FLOAT NOT NULL, 
	renewed FLOAT NOT NULL, 
	CONSTRAINT pk_replicas PRIMARY KEY (instance_id)
);
CREATE TABLE seen_keys (
	scope VARCHAR NOT NULL, 
	position INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	CONSTRAINT pk_seen_keys PRIMARY KEY (scope, position), 
	CONSTRAINT uq_seen_keys_scope_key UNIQUE (scope, "key")
);
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',1,'rep-01m8q9f3ghr3fkvh3t3bg5a31b');
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',2,'rep-01m8q9f3pxme9v02tvc43fa1wz');
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',3,'rep-01m8q9f3zh8nvhsp2g43gtr1ng');
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',4,'rep-01m8q9f45d08pa1tvvzf15frng');
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',5,'rep-01m8q9f4e2140nzmysegg3a108');
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',6,'rep-01m8q9f4j756r3t03gs7bbf5dd');
INSERT INTO "seen_keys" VALUES('report:node-01m8q9f3g77rkjy14j0pthmtc9',7,'rep-01m8q9f4ne3mn1cmgqrhhs6yxy');
CREATE TABLE silences (
	id VARCHAR NOT NULL, 
	pattern VARCHAR NOT NULL, 
	until DATETIME NOT NULL, 
	why VARCHAR NOT NULL, 
	"by" VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_silences PRIMARY KEY (id)
);
CREATE TABLE workloads (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	spec JSON NOT NULL, 
	wanted INTEGER NOT NULL, 
	deleted BOOLEAN NOT NULL, 
	failures INTEGER NOT NULL, 
	not_before DATETIME, 
	why VARCHAR, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_workloads PRIMARY KEY (id)
);
INSERT INTO "workloads" VALUES('wl-01m8q9f3jejn8xrdb37r8qshrx','kept',1,'{"name": "kept", "kind": "chute", "protocol": "http", "command": ["python", "-m", "http.server", "{port}", "--bind", "{host}"], "image": null, "selector": {"gpu_count": 0, "min_vram_mib": 0, "include": [], "exclude": [], "max_hourly_usd": null}, "port": null, "health_path": "/", "models": [], "env": {}, "concurrency": 1, "model_ref": null, "memory_mib": 64, "private": true, "start_timeout_seconds": 300, "grace_seconds": 2.0, "max_restarts": 3}',1,0,0,NULL,NULL,'2026-11-30 22:33:34.028486');
INSERT INTO "workloads" VALUES('wl-01m8q9f41fy43n0rm3810mz1ph','deleted',1,'{"name": "deleted", "kind": "chute", "protocol": "http", "command": ["python", "-m", "http.server", "{port}", "--bind", "{host}"], "image": null, "selector": {"gpu_count": 0, "min_vram_mib": 0, "include": [], "exclude": [], "max_hourly_usd": null}, "port": null, "health_path": "/", "models": [], "env": {}, "concurrency": 1, "model_ref": null, "memory_mib": 64, "private": true, "start_timeout_seconds": 300, "grace_seconds": 2.0, "max_restarts": 3}',1,1,0,NULL,NULL,'2026-11-30 22:33:34.511162');
INSERT INTO "workloads" VALUES('wl-01m8q9f4fn6qtc299mdb1mppy4','off',1,'{"name": "off", "kind": "chute", "protocol": "http", "command": ["python", "-m", "http.server", "{port}", "--bind", "{host}"], "image": null, "selector": {"gpu_count": 0, "min_vram_mib": 0, "include": [], "exclude": [], "max_hourly_usd": null}, "port": null, "health_path": "/", "models": [], "env": {}, "concurrency": 1, "model_ref": null, "memory_mib": 64, "private": true, "start_timeout_seconds": 300, "grace_seconds": 2.0, "max_restarts": 3}',0,0,0,NULL,NULL,'2026-11-30 22:33:34.964867');
INSERT INTO "workloads" VALUES('wl-01m8q9f4g4qmfwxsb0593mn7pn','failing',1,'{"name": "failing", "kind": "chute", "protocol": "http", "command": ["python", "-c", "raise SystemExit(7)"], "image": null, "selector": {"gpu_count": 0, "min_vram_mib": 0, "include": [], "exclude": [], "max_hourly_usd": null}, "port": null, "health_path": "/", "models": [], "env": {}, "concurrency": 1, "model_ref": null, "memory_mib": 64, "private": true, "start_timeout_seconds": 300, "grace_seconds": 2.0, "max_restarts": 0}',1,0,1,'2026-11-30 22:33:35.725178','failed 1 time in a row, last: exit: code 7 after 0.1 s','2026-11-30 22:33:34.979996');
CREATE INDEX ix_devices_node_id_position_id ON devices (node_id, position, id);
CREATE INDEX ix_workloads_created_at_id ON workloads (created_at, id);
CREATE UNIQUE INDEX uq_workloads_living_name ON workloads (name) WHERE deleted = 0;
CREATE INDEX ix_placements_created_at_id ON placements (created_at, id);
CREATE INDEX ix_placements_live_created_at_id ON placements (live, created_at, id);
CREATE INDEX ix_placements_node_id_created_at_id ON placements (node_id, created_at, id);
CREATE INDEX ix_placements_node_id_live_created_at_id ON placements (node_id, live, created_at, id);
CREATE INDEX ix_placements_workload_id_created_at_id ON placements (workload_id, created_at, id);
CREATE INDEX ix_placements_workload_id_live_created_at_id ON placements (workload_id, live, created_at, id);
CREATE INDEX ix_claims_device_id_placement_id ON claims (device_id, placement_id);
CREATE INDEX ix_jobs_placement_id ON jobs (placement_id);
CREATE INDEX ix_jobs_created_at_id ON jobs (created_at, id);
CREATE INDEX ix_jobs_workload_id_created_at_id ON jobs (workload_id, created_at, id);
CREATE INDEX ix_events_subject_seq ON events (subject, seq);
CREATE INDEX ix_nodes_joined_at_id ON nodes (joined_at, id);
CREATE UNIQUE INDEX uq_nodes_living_name ON nodes (name) WHERE state <> 'removed';
CREATE UNIQUE INDEX uq_nodes_living_public_key ON nodes (public_key) WHERE state <> 'removed';
CREATE INDEX ix_nodes_public_key ON nodes (public_key);
CREATE INDEX ix_join_tokens_created_at_id ON join_tokens (created_at, id);
CREATE INDEX ix_join_tokens_expires_at ON join_tokens (expires_at);
CREATE INDEX ix_api_tokens_created_at_id ON api_tokens (created_at, id);
CREATE INDEX ix_nonces_stamp ON nonces (stamp);
CREATE INDEX ix_events_asked ON events (seq, actor) WHERE actor IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',28);
COMMIT;
