BEGIN TRANSACTION;
CREATE TABLE acknowledgements (
	incident VARCHAR(400) NOT NULL, 
	opened_at FLOAT NOT NULL, 
	at FLOAT NOT NULL, 
	who VARCHAR(100) NOT NULL, 
	PRIMARY KEY (incident, opened_at)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE channels (
	channel VARCHAR(64) NOT NULL, 
	paused_until FLOAT NOT NULL, 
	paused_at FLOAT NOT NULL, 
	expired INTEGER NOT NULL, 
	PRIMARY KEY (channel)
);
CREATE TABLE history (
	id INTEGER NOT NULL, 
	incident VARCHAR(400) NOT NULL, 
	at FLOAT NOT NULL, 
	what VARCHAR(20) NOT NULL, 
	who VARCHAR(100) NOT NULL, 
	text VARCHAR(1000) NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "history" VALUES(1,'sft/ended/cuda-oom/1',1.79556128205260062211e+09,'open','','run-failed');
INSERT INTO "history" VALUES(2,'sft/ended/cuda-oom/1',1.79556128205260062211e+09,'resolved','','run-failed');
CREATE TABLE incidents (
	id VARCHAR(400) NOT NULL, 
	run VARCHAR(200) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	rule VARCHAR(200) NOT NULL, 
	severity VARCHAR(20) NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	episode INTEGER NOT NULL, 
	opened_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	resolved_at FLOAT, 
	payload JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "incidents" VALUES('sft/ended/cuda-oom/1','sft','ended','cuda-oom','critical','resolved',1,1.79556128205260062211e+09,1.79556128205260062211e+09,1.79556128205260062211e+09,'{"id":"sft/ended/cuda-oom/1","run":"sft","kind":"ended","rule":"cuda-oom","severity":"critical","status":"resolved","episode":1,"opened_at":1795561282.0526006,"updated_at":1795561282.0526006,"resolved_at":1795561282.0526006,"resolution":"run-failed","host":"node-1","phase":"train","rank":null,"step":30,"total_steps":100,"last_loss":0.0667,"stalled_seconds":null,"threshold_seconds":null,"learning":false,"harm":"fatal","count":1,"evidence":["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.01 GiB is free.","  train.py:30 in <module>"],"exception":"","note":"","primary":{"rule":"cuda-oom","title":"The GPU ran out of memory","role":"cause","harm":"fatal","confidence":0.95,"rank":null,"file":"stdout","line":34,"time":"2026-11-24T23:01:22.048Z","step":30,"evidence":["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.01 GiB is free.","  train.py:30 in <module>"],"captures":{"free":"1.01 GiB","gpu":"0","total":"79.10 GiB","tried":"2.00 GiB"},"why":"Weights, gradients, optimizer states and activations together do not fit, or something else sits on the same GPU. Compare the numbers: *free* small and *this process* near the total means the job is too large; *this process* far below the total means another process holds the rest; a large *reserved but unallocated* part means fragmentation. Memory grows with the longest sample of a batch, so a run may die after hours. An out-of-memory before any model is built points to a GPU that is shared or faulty.","fixes":["Lower `per_device_train_batch_size` and raise `gradient_accumulation_steps` by the same factor: same result, less memory.","Turn on `gradient_checkpointing`, and shorten or pack the longest samples (`max_length`); attention and the logits of a large vocabulary grow with length.","Shard more: ZeRO-3 in place of ZeRO-2 (`\"stage\": 3`), FSDP full shard, or `\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}`; LoRA in place of full fine-tuning.","Fragmentation (large \"reserved but unallocated\"): `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (newer torch also reads `PYTORCH_ALLOC_CONF`); not in a process with vLLM''s sleep mode, which refuses it.","Another process holds the memory: `nvidia-smi` (or `fuser -v /dev/nvidia*`), end left-over ranks of the last run; check that each local rank uses its own GPU (`torch.cuda.set_device(local_rank)`).","With a rollout engine on the same GPUs: lower vLLM''s `gpu_memory_utilization`, or let it sleep during the training phase.","Dies at a save or an evaluation: gather in 16 bit, lower `per_device_eval_batch_size`, set `eval_accumulation_steps`."],"apart":[],"inferred":"","frames":["train.py:30 in <module>"]},"ending":{"kind":"failed","exit_code":1,"signal":null,"detail":"The command exited with 1.","seconds":1.621774673461914,"left":[],"memory":{"counted":false},"quiet":null},"asking":false,"stacks":null}');
CREATE TABLE messages (
	id INTEGER NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	name VARCHAR(300) NOT NULL, 
	run VARCHAR(200) NOT NULL, 
	created_at FLOAT NOT NULL, 
	notice JSON NOT NULL, 
	state VARCHAR(12) NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at FLOAT NOT NULL, 
	claimed_until FLOAT NOT NULL, 
	sent_at FLOAT, 
	reason VARCHAR(1000) NOT NULL, not_before FLOAT DEFAULT '0' NOT NULL, tried_at FLOAT DEFAULT '0' NOT NULL, claim VARCHAR(32) DEFAULT '' NOT NULL, about VARCHAR(400) DEFAULT '' NOT NULL, escalation INTEGER DEFAULT '0' NOT NULL, "group" JSON, keys JSON, 
	PRIMARY KEY (id)
);
CREATE TABLE sends (
	id INTEGER NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE silences (
	id INTEGER NOT NULL, 
	starts_at FLOAT NOT NULL, 
	ends_at FLOAT NOT NULL, 
	run VARCHAR(200) NOT NULL, 
	rule VARCHAR(200) NOT NULL, 
	severity VARCHAR(20) NOT NULL, 
	who VARCHAR(100) NOT NULL, 
	comment VARCHAR(1000) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE told (
	channel VARCHAR(64) NOT NULL, 
	"key" VARCHAR(500) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (channel, "key")
);
CREATE INDEX incidents_by_run ON incidents (run, opened_at);
CREATE INDEX messages_by_channel ON messages (channel, state, id);
CREATE INDEX messages_by_run ON messages (run, id);
CREATE INDEX messages_by_incident ON messages (about, state);
CREATE INDEX history_by_incident ON history (incident, id);
CREATE INDEX sends_by_channel ON sends (channel, at);
COMMIT;
