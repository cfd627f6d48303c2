"""Read logs from files: find them, unpack them, and read them with several processes.

* Find files: `log_files` (the logs that paths refer to), `file_names` (names of logs, ranks in names), `jobs`
  (files of one job)
* Read bytes: `archives`, `decompress`, `json_files` (notebooks, trainer_state.json), `portions`; `inputs`
  (limits, and problems with inputs)
* Read lines: `line_format` (line prefixes), `file_reading` (one file)
* Read in parallel: `parallel_reading` (all files of a run), `sharing` (distribution of files among
  processes), `workers` (the processes)
"""
