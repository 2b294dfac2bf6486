PRAGMA application_id = 1936089444;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE budgets (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    period_start REAL NOT NULL,
    charged_usd REAL NOT NULL,
    PRIMARY KEY (scope, name, period_start)
) WITHOUT ROWID;
INSERT INTO "budgets" VALUES('user','ann',1767312000.0,0.25);
CREATE TABLE calls (
    run INTEGER NOT NULL,
    time REAL NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    upstream TEXT NOT NULL,
    model TEXT,
    input_tokens INTEGER,
    cached_tokens INTEGER,
    cache_write_tokens INTEGER,
    output_tokens INTEGER,
    cost_usd REAL,
    partial INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    at_most INTEGER NOT NULL,
    status INTEGER,
    clamped_to INTEGER,
    refused TEXT,
    error TEXT,
    streamed INTEGER NOT NULL,
    reserved_input INTEGER,
    reserved_output INTEGER,
    tools INTEGER NOT NULL,
    waited_s REAL,
    first_byte_s REAL,
    elapsed_s REAL,
    path TEXT,
    more INTEGER NOT NULL,
    served TEXT,
    price_from TEXT,
    modes TEXT,
    PRIMARY KEY (run, time, number)
) WITHOUT ROWID;
INSERT INTO "calls" VALUES(1,1.76732304667890095708e+09,84000001,'ended','anthropic','claude-sonnet-4-5',100,40,10,20,0.25,0,1,0,200,4096,NULL,NULL,1,120,4096,2,0.25,0.5,1.5,NULL,0,'claude-opus-4-8','claude-opus-4-8','{"image":[60,0]}');
INSERT INTO "calls" VALUES(1,1.76732304767890095707e+09,84000002,'refused','anthropic','claude-sonnet-4-5',NULL,NULL,NULL,NULL,NULL,0,0,0,NULL,NULL,'not reserved: 0.3 USD more',NULL,0,NULL,NULL,0,0.0,NULL,NULL,NULL,7,NULL,NULL,NULL);
CREATE TABLE deleted (
    name TEXT PRIMARY KEY,
    highest INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "deleted" VALUES('events',0);
INSERT INTO "deleted" VALUES('runs',7);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
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
CREATE TABLE marks (
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (kind, value, number)
) WITHOUT ROWID;
CREATE TABLE owners (
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    PRIMARY KEY (user, uid)
) WITHOUT ROWID;
CREATE TABLE plans (
    provider TEXT NOT NULL,
    account TEXT NOT NULL,
    heard_at REAL NOT NULL,
    known TEXT NOT NULL,
    PRIMARY KEY (provider, account)
) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    status TEXT NOT NULL,
    ended INTEGER NOT NULL,
    created_at REAL NOT NULL,
    uid INTEGER,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    parent_id TEXT,
    root_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    depth INTEGER NOT NULL,
    chain TEXT NOT NULL,
    kind TEXT NOT NULL,
    type TEXT,
    meter TEXT,
    worktree TEXT,
    branch TEXT,
    argv TEXT NOT NULL,
    cwd TEXT NOT NULL,
    labels TEXT NOT NULL,
    mode TEXT,
    allowed_tools TEXT NOT NULL,
    blocked_tools TEXT NOT NULL,
    reason TEXT,
    exit_code INTEGER,
    signal INTEGER,
    attempts INTEGER NOT NULL,
    limits TEXT NOT NULL,
    usage TEXT NOT NULL,
    plans TEXT NOT NULL,
    cost_usd REAL,
    tokens INTEGER,
    partial INTEGER NOT NULL,
    at_most INTEGER NOT NULL,
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
    refusals_counted INTEGER NOT NULL DEFAULT 0,
    queue_group TEXT,
    continues TEXT,
    continued_by TEXT,
    session_id TEXT,
    fleet TEXT,
    stopped_children TEXT,
    task TEXT,
    request BLOB
);
INSERT INTO "runs" VALUES(1,'a1','completed',1,1.76732304567890095708e+09,1000,'ann','claude',NULL,'a1','cli',0,'["claude"]','agent',NULL,'claude',NULL,NULL,'["claude","-p","café ''quoted''\n"]','/srv','{"team":"blue"}','foreground','["Read"]','[]',NULL,0,NULL,1,'[{"kind":"time","threshold":120.0,"action":"terminate","source":"default","used":1.5,"scope":"run","enforced_by":"clock"},{"kind":"cost","threshold":1.0,"action":"warn","source":"--limit cost","used":0.25,"scope":"tree","enforced_by":"meter"}]','{"report":{"turns":3,"tokens":120,"input_tokens":100,"output_tokens":20,"cost_usd":0.25,"cost_from":"agent","elapsed_s":1.5,"source":"report"},"stream":{"turns":2,"cost_usd":0.2,"cost_from":"prices","elapsed_s":1.5,"source":"stream"}}','[]',0.25,120,1,0,0,NULL,4242,123456,'5f3c1d6e-0000-4000-8000-000000000001','sonnet',NULL,X'00646F6E65',NULL,1.76732304567890095708e+09,1.76732304817890095716e+09,0,NULL,NULL,NULL,NULL,NULL,'{"count":1,"names":["writer"],"message":"stopped 1 child that was still running: writer; wait for it, or --detach"}','look at HEAD~1',NULL);
INSERT INTO "runs" VALUES(2,'a2','rejected_depth',1,1.76732304567890095708e+09,1000,'ann','claude2','a1','a1','cli',1,'["claude","claude2"]','agent',NULL,NULL,NULL,NULL,'["claude","-p","do it"]','/srv','{}',NULL,'[]','[]','{"kind":"depth","message":"too deep"}',NULL,NULL,0,'[{"kind":"time","threshold":120.0,"action":"terminate","source":"default"}]','{"none":{"turns":null,"messages":null,"input_tokens":null,"output_tokens":null,"tokens":null,"cost_usd":null,"elapsed_s":null,"source":"none"}}','[]',NULL,NULL,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "runs" VALUES(3,'a3','running',0,1.76732304567890095708e+09,1001,'ann','claude',NULL,'a3','cli',0,'["claude"]','agent',NULL,NULL,NULL,NULL,'["claude","-p","do it"]','/srv','{}',NULL,'[]','[]',NULL,NULL,NULL,0,'[{"kind":"time","threshold":120.0,"action":"terminate","source":"default"}]','{"none":{"turns":null,"messages":null,"input_tokens":null,"output_tokens":null,"tokens":null,"cost_usd":null,"elapsed_s":null,"source":"none"}}','[]',NULL,NULL,0,0,0,NULL,4243,99,'5f3c1d6e-0000-4000-8000-000000000001',NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE unmarked (highest INTEGER NOT NULL);
INSERT INTO "unmarked" VALUES(3);
CREATE INDEX runs_parent ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_root ON runs (root_id, number) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_name ON runs (name, number);
CREATE INDEX runs_status ON runs (status, number, created_at);
CREATE INDEX runs_created ON runs (created_at);
CREATE INDEX runs_uid ON runs (uid, number);
CREATE INDEX events_breaches ON events (time) WHERE type = 'limit_exceeded';
CREATE TRIGGER runs_deleted AFTER DELETE ON runs WHEN OLD.number > (SELECT ifnull(max(number), 0) FROM runs) BEGIN
    UPDATE deleted SET highest = max(highest, OLD.number) WHERE name = 'runs';
END;
CREATE TRIGGER events_deleted AFTER DELETE ON events WHEN OLD.seq > (SELECT ifnull(max(seq), 0) FROM events) BEGIN
    UPDATE deleted SET highest = max(highest, OLD.seq) WHERE name = 'events';
END;
CREATE TRIGGER runs_owner AFTER INSERT ON runs
    WHEN NOT EXISTS (SELECT 1 FROM owners WHERE user = NEW.user AND uid = ifnull(NEW.uid, -1)) BEGIN
    INSERT INTO owners VALUES (NEW.user, ifnull(NEW.uid, -1));
END;
CREATE TRIGGER runs_marked AFTER INSERT ON runs
    WHEN NEW.queue_group IS NOT NULL OR NEW.mode IS 'session' BEGIN
    INSERT INTO marks SELECT 'group', NEW.queue_group, NEW.number
        WHERE NEW.queue_group IS NOT NULL;
    INSERT INTO marks SELECT 'mode', 'session', NEW.number WHERE NEW.mode IS 'session';
END;
CREATE TRIGGER runs_unmarked AFTER DELETE ON runs
    WHEN OLD.queue_group IS NOT NULL OR OLD.mode IS 'session' BEGIN
    DELETE FROM marks WHERE kind = 'group' AND value = OLD.queue_group AND number = OLD.number;
    DELETE FROM marks WHERE kind = 'mode' AND value = OLD.mode AND number = OLD.number;
END;
ALTER TABLE runs ADD COLUMN checks TEXT;
COMMIT;
