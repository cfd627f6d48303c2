BEGIN TRANSACTION;
CREATE TABLE acknowledgements (
	incident VARCHAR(400) NOT NULL, 
	opened_at FLOAT NOT NULL, 
	at FLOAT NOT NULL, 
	who VARCHAR(100) NOT NULL, 
	PRIMARY KEY (incident, opened_at)
);
INSERT INTO "acknowledgements" VALUES('stuck-2/stall/silent-hang-no-error/1',1.79576533575497627255e+09,1.79576534338092637065e+09,'root@node-1');
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
INSERT INTO "history" VALUES(1,'sft/ended/cuda-oom/1',1.79576517172741031641e+09,'open','','run-failed');
INSERT INTO "history" VALUES(2,'sft/ended/cuda-oom/1',1.79576517172741031641e+09,'resolved','','run-failed');
INSERT INTO "history" VALUES(3,'night-1/stall/silent-hang-no-error/1',1.79576520381488418578e+09,'open','','');
INSERT INTO "history" VALUES(4,'night-1/stall/silent-hang-no-error/1',1.79576520468890547758e+09,'resolved','','run-stopped');
INSERT INTO "history" VALUES(5,'stuck-2/stall/silent-hang-no-error/1',1.79576533575497627255e+09,'open','','');
INSERT INTO "history" VALUES(6,'stuck-2/stall/silent-hang-no-error/1',1.79576534338092637065e+09,'acknowledged','root@node-1','');
INSERT INTO "history" VALUES(7,'stuck-2/stall/silent-hang-no-error/1',1.79576534491551613806e+09,'note','root@node-1','waits for the storage');
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
INSERT INTO "incidents" VALUES('sft/ended/cuda-oom/1','sft','ended','cuda-oom','critical','resolved',1,1.79576517172741031641e+09,1.79576517172741031641e+09,1.79576517172741031641e+09,'{"id":"sft/ended/cuda-oom/1","run":"sft","kind":"ended","rule":"cuda-oom","severity":"critical","status":"resolved","episode":1,"opened_at":1795765171.7274103,"updated_at":1795765171.7274103,"resolved_at":1795765171.7274103,"resolution":"run-failed","host":"node-1","phase":"train","rank":null,"step":5,"total_steps":null,"last_loss":1.5,"stalled_seconds":null,"threshold_seconds":null,"learning":false,"harm":"fatal","count":1,"evidence":["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free.","  train.py:30 in main"],"exception":"","note":"","primary":{"rule":"cuda-oom","title":"The GPU ran out of memory","role":"cause","harm":"fatal","confidence":0.95,"rank":null,"file":"stderr","line":4,"time":"2026-11-27T07:39:31.710Z","step":5,"evidence":["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free.","  train.py:30 in main"],"captures":{"free":"1.10 GiB","gpu":"0","total":"79.15 GiB","tried":"2.00 GiB"},"why":"Weights, gradients, optimizer states and activations together do not fit, or something else sits on the same GPU. Compare the numbers: *free* small and *this process* near the total means the job is too large; *this process* far below the total means another process holds the rest; a large *reserved but unallocated* part means fragmentation. Memory grows with the longest sample of a batch, so a run may die after hours. An out-of-memory before any model is built points to a GPU that is shared or faulty.","fixes":["Lower `per_device_train_batch_size` and raise `gradient_accumulation_steps` by the same factor: same result, less memory.","Turn on `gradient_checkpointing`, and shorten or pack the longest samples (`max_length`); attention and the logits of a large vocabulary grow with length.","Shard more: ZeRO-3 in place of ZeRO-2 (`\"stage\": 3`), FSDP full shard, or `\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}`; LoRA in place of full fine-tuning.","Fragmentation (large \"reserved but unallocated\"): `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (newer torch also reads `PYTORCH_ALLOC_CONF`); not in a process with vLLM''s sleep mode, which refuses it.","Another process holds the memory: `nvidia-smi` (or `fuser -v /dev/nvidia*`), end left-over ranks of the last run; check that each local rank uses its own GPU (`torch.cuda.set_device(local_rank)`).","With a rollout engine on the same GPUs: lower vLLM''s `gpu_memory_utilization`, or let it sleep during the training phase.","Dies at a save or an evaluation: gather in 16 bit, lower `per_device_eval_batch_size`, set `eval_accumulation_steps`."],"apart":[],"inferred":"","frames":["train.py:30 in main"]},"ending":{"kind":"failed","exit_code":1,"signal":null,"detail":"The command exited with 1.","seconds":0.7292516231536865,"left":[],"memory":{"counted":false},"quiet":null},"asking":false,"stacks":null}');
INSERT INTO "incidents" VALUES('night-1/stall/silent-hang-no-error/1','night-1','stall','silent-hang-no-error','critical','resolved',1,1.79576520381488418578e+09,1.79576520468890547758e+09,1.79576520468890547758e+09,'{"id":"night-1/stall/silent-hang-no-error/1","run":"night-1","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"resolved","episode":1,"opened_at":1795765203.8148842,"updated_at":1795765204.6889055,"resolved_at":1795765204.6889055,"resolution":"run-stopped","host":"node-1","phase":"train","rank":null,"step":40,"total_steps":null,"last_loss":1.2,"stalled_seconds":3.3,"threshold_seconds":2.0,"learning":false,"harm":"fatal","count":1,"evidence":["{''loss'': 1.2000, ''step'': 40}"],"exception":"","note":"No step for 2.5 s; this run''s threshold is 2.0 s. Nothing in the log says why.","primary":{"rule":"silent-hang-no-error","title":"No step for longer than this run needs, and no error","role":"symptom","harm":"fatal","confidence":0.6,"rank":null,"file":"stdout","line":40,"time":"2026-11-27T07:40:01.363Z","step":40,"evidence":["{''loss'': 1.2000, ''step'': 40}"],"captures":{},"why":"The run is a single process here, and nothing tells of others that it could wait for. It still is in a call that waits for something outside (a service, a file system, a queue, a lock), works much longer than a step does, or never ends.","fixes":["See where it stands: `py-spy dump --pid PID`.","Give what this call waits for a time-out, and look at the service or storage behind it; a loop there that cannot end is the other thing to look for."],"apart":[],"inferred":"","frames":[]},"ending":null,"asking":true,"stacks":null}');
INSERT INTO "incidents" VALUES('stuck-2/stall/silent-hang-no-error/1','stuck-2','stall','silent-hang-no-error','critical','open',1,1.79576533575497627255e+09,1.79576533675513243673e+09,NULL,'{"id":"stuck-2/stall/silent-hang-no-error/1","run":"stuck-2","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"open","episode":1,"opened_at":1795765335.7549763,"updated_at":1795765336.7551324,"resolved_at":null,"resolution":"","host":"node-1","phase":"train","rank":null,"step":40,"total_steps":null,"last_loss":1.2,"stalled_seconds":1.2,"threshold_seconds":1.0,"learning":false,"harm":"fatal","count":1,"evidence":["{''loss'': 1.2000, ''step'': 40}"],"exception":"","note":"No step for 1.2 s; this run''s threshold is 1.0 s. Nothing in the log says why.","primary":{"rule":"silent-hang-no-error","title":"No step for longer than this run needs, and no error","role":"symptom","harm":"fatal","confidence":0.6,"rank":0,"file":"stdout","line":40,"time":"2026-11-27T07:42:14.505Z","step":40,"evidence":["Rank 0 is at hang.py:4 in <module>.","{''loss'': 1.2000, ''step'': 40}"],"captures":{},"why":"The one rank here is in no collective, so it does not wait for another rank: it still is in the call that is named above. That call waits for something outside (a service, a file system, a queue, a lock), works much longer than a step does, or never ends.","fixes":["Look there first: Rank 0 is at hang.py:4 in <module>. All stacks are in stacks-20261127-074216.txt in the run''s folder.","Give what this call waits for a time-out, and look at the service or storage behind it; a loop there that cannot end is the other thing to look for."],"apart":[],"inferred":"","frames":[]},"ending":null,"asking":true,"stacks":{"time":1795765336.378917,"seconds":0.559,"groups":[{"ranks":[0],"kind":"code","condition":"alive","what":"","place":"hang.py:4 in <module>","collective":null,"note":"","locked_out":false,"frames":["/home/user/jobs/hang.py:4 in <module>"]}],"odd":[],"why":"","elsewhere":0,"file":"stacks-20261127-074216.txt"}}');
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
INSERT INTO "messages" VALUES(1,'056cc1e64459b91a44243bddb6881e55','json://127.0.0.1:9/****','sft',1.79576517183462548254e+09,'{"message":{"title":"[sft] failed: The GPU ran out of memory","text":"Run: sft on node-1\nAt: step 5, training, last loss 1.5\n\nHow it ended: failed, exit code 1, after 1 s\nThe command exited with 1.\n\nLikely cause: The GPU ran out of memory (cuda-oom), fatal\nWeights, gradients, optimizer states and activations together do not fit, or something else sits on the same GPU.\n\nEvidence:\n    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free.\n    train.py:30 in main\n\nWhat to do:\n1. Lower per_device_train_batch_size and raise gradient_accumulation_steps by the same factor: same result, less memory.\n2. Turn on gradient_checkpointing, and shorten or pack the longest samples (max_length); attention and the logits of a large vocabulary grow with length.\n3. Shard more: ZeRO-3 in place of ZeRO-2 (\"stage\": 3), FSDP full shard, or \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}; LoRA in place of full fine-tuning.\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/memory/cuda-oom.md\nPage: https://stallwatch.example.org/run?run=sft"},"level":"failure","facts":{"id":"sft/ended/cuda-oom/1","run":"sft","kind":"ended","rule":"cuda-oom","severity":"critical","status":"open","resolution":"","episode":1,"rank":null,"step":5,"host":"node-1"},"key":"sft/ended/cuda-oom/1/1795765172/open"}','waiting',8,1.79576537828402853008e+09,0.0,NULL,'connection refused',0.0,1.79576533198108530047e+09,'','sft/ended/cuda-oom/1',0,NULL,'["sft/ended/cuda-oom/1/1795765172/open"]');
INSERT INTO "messages" VALUES(2,'ce6a59d051b3ca9691abc0aa232a04c5','json://127.0.0.1:9/****','sft',1.79576517183462548254e+09,'{"message":{"title":"[sft] failed: The GPU ran out of memory","text":"Run: sft on node-1\nAt: step 5, training, last loss 1.5\n\nHow it ended: failed, exit code 1, after 1 s\nThe command exited with 1.\n\nLikely cause: The GPU ran out of memory (cuda-oom), fatal\nWeights, gradients, optimizer states and activations together do not fit, or something else sits on the same GPU.\n\nEvidence:\n    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free.\n    train.py:30 in main\n\nWhat to do:\n1. Lower per_device_train_batch_size and raise gradient_accumulation_steps by the same factor: same result, less memory.\n2. Turn on gradient_checkpointing, and shorten or pack the longest samples (max_length); attention and the logits of a large vocabulary grow with length.\n3. Shard more: ZeRO-3 in place of ZeRO-2 (\"stage\": 3), FSDP full shard, or \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}; LoRA in place of full fine-tuning.\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/memory/cuda-oom.md\nPage: https://stallwatch.example.org/run?run=sft"},"level":"failure","facts":{"id":"sft/ended/cuda-oom/1","run":"sft","kind":"ended","rule":"cuda-oom","severity":"critical","status":"open","resolution":"","episode":1,"rank":null,"step":5,"host":"node-1"},"key":"sft/ended/cuda-oom/1/1795765172/open"}','waiting',8,1.79576537264021182061e+09,0.0,NULL,'connection refused',0.0,1.7957653320060310364e+09,'','sft/ended/cuda-oom/1',0,NULL,'["sft/ended/cuda-oom/1/1795765172/open"]');
INSERT INTO "messages" VALUES(3,'ce6a59d051b3ca9691abc0aa232a04c5','json://127.0.0.1:9/****','night-1',1.79576520390591144564e+09,'{"message":{"title":"[night-1] stalled: no step for 2 s after step 40","text":"No step has finished for more than 2 s. This run''s own rhythm allows 2 s.\n\nRun: night-1 on node-1\nAt: step 40, training, last loss 1.2\n\nLikely cause: No step for longer than this run needs, and no error (silent-hang-no-error), fatal\nNo step for 2.5 s; this run''s threshold is 2.0 s. Nothing in the log says why.\nThe run is a single process here, and nothing tells of others that it could wait for. It still is in a call that waits for something outside (a service, a file system, a queue, a lock), works much longer than a step does, or never ends.\n\nEvidence:\n    {''loss'': 1.2000, ''step'': 40}\n\nThe training''s processes are being asked where they stand; a second message tells. If none came: py-spy dump --pid PID for each of them.\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/stalls/silent-hang-no-error.md\nPage: https://stallwatch.example.org/run?run=night-1"},"level":"failure","facts":{"id":"night-1/stall/silent-hang-no-error/1","run":"night-1","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"open","resolution":"","episode":1,"rank":null,"step":40,"host":"node-1"},"key":"night-1/stall/silent-hang-no-error/1/1795765204/open"}','waiting',6,1.7957653549312655926e+09,0.0,NULL,'connection refused',0.0,1.79576533201648974417e+09,'','night-1/stall/silent-hang-no-error/1',0,NULL,'["night-1/stall/silent-hang-no-error/1/1795765204/open"]');
INSERT INTO "messages" VALUES(4,'340bc4d94254f4c8cdcb7dfa2ccbc99e','json://127.0.0.1:9/****','night-1',1.79576520390591144564e+09,'{"message":{"title":"[night-1] stalled: no step for 2 s after step 40 (nobody has acknowledged it for 10 min)","text":"Whoever takes care of it: stallwatch alerts ack night-1/stall/silent-hang-no-error/1\n\nNo step has finished for more than 2 s. This run''s own rhythm allows 2 s.\n\nRun: night-1 on node-1\nAt: step 40, training, last loss 1.2\n\nLikely cause: No step for longer than this run needs, and no error (silent-hang-no-error), fatal\nNo step for 2.5 s; this run''s threshold is 2.0 s. Nothing in the log says why.\nThe run is a single process here, and nothing tells of others that it could wait for. It still is in a call that waits for something outside (a service, a file system, a queue, a lock), works much longer than a step does, or never ends.\n\nEvidence:\n    {''loss'': 1.2000, ''step'': 40}\n\nThe training''s processes are being asked where they stand; a second message tells. If none came: py-spy dump --pid PID for each of them.\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/stalls/silent-hang-no-error.md\nPage: https://stallwatch.example.org/run?run=night-1"},"level":"failure","facts":{"id":"night-1/stall/silent-hang-no-error/1","run":"night-1","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"open","resolution":"","episode":1,"rank":null,"step":40,"host":"node-1"},"key":"night-1/stall/silent-hang-no-error/1/1795765204/open"}','withdrawn',0,0.0,0.0,NULL,'over',1.79576580390591144563e+09,0.0,'','night-1/stall/silent-hang-no-error/1',1,NULL,'["night-1/stall/silent-hang-no-error/1/1795765204/open/escalated"]');
INSERT INTO "messages" VALUES(5,'ce6a59d051b3ca9691abc0aa232a04c5','json://127.0.0.1:9/****','night-1',1.79576520471934032436e+09,'{"message":{"title":"[night-1] stopped by hand, after a stall of 3 s","text":"The run was stopped by hand (Ctrl-C). It lasted 3 s.\n\nRun: night-1 on node-1\nAt: step 40, training, last loss 1.2\nIt was: No step for longer than this run needs, and no error\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/stalls/silent-hang-no-error.md\nPage: https://stallwatch.example.org/run?run=night-1"},"level":"info","facts":{"id":"night-1/stall/silent-hang-no-error/1","run":"night-1","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"resolved","resolution":"run-stopped","episode":1,"rank":null,"step":40,"host":"node-1"},"key":"night-1/stall/silent-hang-no-error/1/1795765204/resolved"}','waiting',0,0.0,0.0,NULL,'',0.0,0.0,'','night-1/stall/silent-hang-no-error/1',0,NULL,'["night-1/stall/silent-hang-no-error/1/1795765204/resolved"]');
INSERT INTO "messages" VALUES(6,'ce6a59d051b3ca9691abc0aa232a04c5','json://127.0.0.1:9/****','stuck-2',1.79576533582097697255e+09,'{"message":{"title":"[stuck-2] stalled: no step for 1 s after step 40","text":"No step has finished for more than 1 s. This run''s own rhythm allows 1 s.\n\nRun: stuck-2 on node-1\nAt: step 40, training, last loss 1.2\n\nLikely cause: No step for longer than this run needs, and no error (silent-hang-no-error), fatal\nNo step for 1.2 s; this run''s threshold is 1.0 s. Nothing in the log says why.\nThe run is a single process here, and nothing tells of others that it could wait for. It still is in a call that waits for something outside (a service, a file system, a queue, a lock), works much longer than a step does, or never ends.\n\nEvidence:\n    {''loss'': 1.2000, ''step'': 40}\n\nThe training''s processes are being asked where they stand; a second message tells. If none came: py-spy dump --pid PID for each of them.\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/stalls/silent-hang-no-error.md\nPage: https://stallwatch.example.org/run?run=stuck-2"},"level":"failure","facts":{"id":"stuck-2/stall/silent-hang-no-error/1","run":"stuck-2","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"open","resolution":"","episode":1,"rank":null,"step":40,"host":"node-1"},"key":"stuck-2/stall/silent-hang-no-error/1/1795765336/open"}','waiting',3,1.79576534231991791724e+09,0.0,NULL,'connection refused',0.0,1.79576533884922432899e+09,'','stuck-2/stall/silent-hang-no-error/1',0,NULL,'["stuck-2/stall/silent-hang-no-error/1/1795765336/open"]');
INSERT INTO "messages" VALUES(7,'ce6a59d051b3ca9691abc0aa232a04c5','json://127.0.0.1:9/****','stuck-2',1.7957653367856683731e+09,'{"message":{"title":"[stuck-2] where its ranks stand","text":"Rank 0 is at hang.py:4 in ‹module›.\n\n    /home/user/jobs/hang.py:4 in ‹module›\n\nThat call waits for something, or is in a loop that does not end: a second look at its stack tells which of them (`py-spy dump --pid PID`).\n\nAll stacks: stacks-20261127-074216.txt in the run''s folder\n\nRule: https://github.com/stallwatch/stallwatch/blob/main/rules/stallwatch_rules/catalogue/stalls/silent-hang-no-error.md\nPage: https://stallwatch.example.org/run?run=stuck-2"},"level":"failure","facts":{"id":"stuck-2/stall/silent-hang-no-error/1","run":"stuck-2","kind":"stall","rule":"silent-hang-no-error","severity":"critical","status":"open","resolution":"","episode":1,"rank":null,"step":40,"host":"node-1","odd_ranks":""},"key":""}','waiting',0,0.0,0.0,NULL,'',0.0,0.0,'','stuck-2/stall/silent-hang-no-error/1',0,NULL,'[]');
CREATE TABLE sends (
	id INTEGER NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "sends" VALUES(17,'ce6a59d051b3ca9691abc0aa232a04c5',1.79576521988373851781e+09);
INSERT INTO "sends" VALUES(18,'056cc1e64459b91a44243bddb6881e55',1.79576522190993237491e+09);
INSERT INTO "sends" VALUES(19,'ce6a59d051b3ca9691abc0aa232a04c5',1.79576522697100210185e+09);
INSERT INTO "sends" VALUES(20,'056cc1e64459b91a44243bddb6881e55',1.79576533189414262771e+09);
INSERT INTO "sends" VALUES(21,'ce6a59d051b3ca9691abc0aa232a04c5',1.7957653319928705692e+09);
INSERT INTO "sends" VALUES(22,'ce6a59d051b3ca9691abc0aa232a04c5',1.795765332007242918e+09);
INSERT INTO "sends" VALUES(23,'ce6a59d051b3ca9691abc0aa232a04c5',1.7957653358418581486e+09);
INSERT INTO "sends" VALUES(24,'ce6a59d051b3ca9691abc0aa232a04c5',1.79576533679945421224e+09);
INSERT INTO "sends" VALUES(25,'ce6a59d051b3ca9691abc0aa232a04c5',1.79576533883786940573e+09);
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
INSERT INTO "silences" VALUES(1,1.79576527914788985256e+09,4387765279.14789,'sweep-*','cuda-oom','','root@node-1','known');
INSERT INTO "silences" VALUES(2,1.79576528491369605058e+09,4.3877652849136962892e+09,'','jax-processes-lost','critical','root@node-1','');
CREATE TABLE told (
	channel VARCHAR(64) NOT NULL, 
	"key" VARCHAR(500) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (channel, "key")
);
INSERT INTO "told" VALUES('056cc1e64459b91a44243bddb6881e55','sft/ended/cuda-oom/1/1795765172/open',1.79576517183462548254e+09);
INSERT INTO "told" VALUES('ce6a59d051b3ca9691abc0aa232a04c5','sft/ended/cuda-oom/1/1795765172/open',1.79576517183462548254e+09);
INSERT INTO "told" VALUES('ce6a59d051b3ca9691abc0aa232a04c5','night-1/stall/silent-hang-no-error/1/1795765204/open',1.79576520390591144564e+09);
INSERT INTO "told" VALUES('340bc4d94254f4c8cdcb7dfa2ccbc99e','night-1/stall/silent-hang-no-error/1/1795765204/open/escalated',1.79576520390591144564e+09);
INSERT INTO "told" VALUES('ce6a59d051b3ca9691abc0aa232a04c5','night-1/stall/silent-hang-no-error/1/1795765204/resolved',1.79576520471934032436e+09);
INSERT INTO "told" VALUES('ce6a59d051b3ca9691abc0aa232a04c5','stuck-2/stall/silent-hang-no-error/1/1795765336/open',1.79576533582097697255e+09);
CREATE INDEX incidents_by_run ON incidents (run, opened_at);
CREATE INDEX messages_by_channel ON messages (channel, state, id);
CREATE INDEX messages_by_run ON messages (run, id);
CREATE INDEX messages_by_incident ON messages (about, state);
CREATE INDEX history_by_incident ON history (incident, id);
CREATE INDEX sends_by_channel ON sends (channel, at);
COMMIT;
