-- What the validator's tables must hold before a miner can do anything: the miner on the subnet, an image, a chute. The first
-- statement adds columns that its migrations expect before its models make them.
alter table instance_audit
    add column if not exists activated_at timestamp, add column if not exists billed_to text,
    add column if not exists compute_multiplier double precision, add column if not exists stop_billing_at timestamp,
    add column if not exists hourly_rate double precision;
insert into metagraph_nodes (hotkey, checksum, coldkey, node_id, netuid)
    values (:'miner', 'x', '5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY', 7, 64);
insert into users (user_id, coldkey, hotkey, username, fingerprint_hash, permissions_bitmask)
    values ('u1', '5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY', null, 'ada', 'x', 0);
insert into images (image_id, user_id, name, tag, public, status, chutes_version, patch_version)
    values ('img1', 'u1', 'base', '1.0', true, 'built and pushed', '0.3.31', 'initial');
insert into chutes (chute_id, user_id, name, image_id, public, cords, jobs, node_selector, code, filename, ref_str,
        version, chutes_version, concurrency, created_at, updated_at)
    values (:'chute', 'u1', 'hello', 'img1', true,
        '[{"path":"/x","method":"POST","stream":false,"function":"x"}]', '[]',
        '{"gpu_count":1,"min_vram_gb_per_gpu":16}', 'print(1)', 'app.py', 'app:chute', 'v1', '0.3.31', 8, now(), now());
