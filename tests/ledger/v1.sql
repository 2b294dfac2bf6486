PRAGMA application_id = 1936089444;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE budgets (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    period_start REAL NOT NULL,
    charged_usd REAL NOT NULL,
    PRIMARY KEY (scope, name, period_start)
) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    type TEXT NOT NULL,
    severity TEXT NOT NULL,
    run_id TEXT,
    root_id TEXT,
    body TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1.76732304567890095708e+09,'run_accepted','low','a1','a1','{"agent_name":"claude"}');
INSERT INTO "events" VALUES(5,1.76732304567890095708e+09,'run_completed','low','a1','a1','{"agent_name":"claude","message":"exit 0"}');
CREATE TABLE labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (key, value, number)
) WITHOUT ROWID;
INSERT INTO "labels" VALUES('team','blue',1);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    uid INTEGER,
    channel TEXT NOT NULL,
    parent_id TEXT,
    root_id TEXT NOT NULL,
    depth INTEGER NOT NULL,
    chain TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT,
    argv TEXT NOT NULL,
    cwd TEXT NOT NULL,
    labels TEXT NOT NULL,
    mode TEXT,
    allowed_tools TEXT NOT NULL,
    blocked_tools TEXT NOT NULL,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    ended INTEGER NOT NULL,
    reason TEXT,
    exit_code INTEGER,
    signal INTEGER,
    attempts INTEGER NOT NULL,
    limits TEXT NOT NULL,
    usage TEXT NOT NULL,
    cost_usd REAL,
    descendants INTEGER NOT NULL,
    milestone TEXT,
    pid INTEGER,
    pid_started INTEGER,
    boot_id TEXT,
    model TEXT,
    provider TEXT,
    result_head BLOB,
    deadline REAL,
    started_at REAL,
    ended_at REAL,
    archived_at REAL,
    refusals_counted INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "runs" VALUES(1,'a1','ann',1000,'cli',NULL,'a1',0,'["claude"]','agent','claude',NULL,'["claude","-p","café ''quoted''\n"]','/srv','{"team":"blue"}','foreground','["Read"]','[]',1.76732304567890095708e+09,'completed',1,NULL,0,NULL,1,'[{"kind":"time","threshold":120.0,"action":"terminate","source":"default"}]','{"stream":{"turns":3,"messages":null,"input_tokens":null,"output_tokens":null,"tokens":null,"cost_usd":0.25,"elapsed_s":2.5,"source":"stream"}}',0.25,0,NULL,4242,123456,'5f3c1d6e-0000-4000-8000-000000000001','sonnet',NULL,X'00646F6E65',NULL,1.76732304567890095708e+09,1.76732304817890095716e+09,NULL,0);
INSERT INTO "runs" VALUES(2,'a2','ann',1000,'cli','a1','a1',1,'["claude","claude2"]','agent','claude2',NULL,'["claude","-p","do it"]','/srv','{}',NULL,'[]','[]',1.76732304567890095708e+09,'rejected_depth',1,'{"kind":"depth","message":"too deep"}',NULL,NULL,0,'[{"kind":"time","threshold":120.0,"action":"terminate","source":"default"}]','{"none":{"turns":null,"messages":null,"input_tokens":null,"output_tokens":null,"tokens":null,"cost_usd":null,"elapsed_s":null,"source":"none"}}',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "runs" VALUES(3,'a3','ann',1001,'cli',NULL,'a3',0,'["claude"]','agent','claude',NULL,'["claude","-p","do it"]','/srv','{}',NULL,'[]','[]',1.76732304567890095708e+09,'running',0,NULL,NULL,NULL,0,'[{"kind":"time","threshold":120.0,"action":"terminate","source":"default"}]','{"none":{"turns":null,"messages":null,"input_tokens":null,"output_tokens":null,"tokens":null,"cost_usd":null,"elapsed_s":null,"source":"none"}}',NULL,0,NULL,4243,99,'5f3c1d6e-0000-4000-8000-000000000001',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0);
CREATE INDEX runs_ended ON runs (ended, number, created_at);
CREATE INDEX runs_parent ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_root ON runs (root_id, ended, number);
CREATE INDEX runs_name ON runs (name, ended, number);
CREATE INDEX runs_user ON runs (user, ended, number);
CREATE INDEX runs_uid ON runs (uid, ended, number);
CREATE INDEX runs_status ON runs (status, number);
CREATE INDEX events_run ON events (run_id, seq) WHERE run_id IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',7);
INSERT INTO "sqlite_sequence" VALUES('events',5);
COMMIT;
