"""Find, unpack, and read log files. Large inputs are read in several processes.

* Find files: `log_files` (logs at the paths that a user specifies), `file_names` (names of logs, and ranks in
  names), `jobs` (files of the same job)
* Read bytes: `archives`, `decompress`, `json_files` (notebooks and trainer_state.json), `portions`, `inputs`
  (limits on inputs, and problems with inputs)
* Read lines: `line_format` (prefixes of lines), `file_reading` (a single file)
* Read in parallel: `parallel_reading` (all files of a run), `sharing` (distribution of files among
  processes), `workers` (the processes)
"""
