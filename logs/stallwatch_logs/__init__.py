"""Read logs from files: find them, unpack them, and read them with several processes.

* Find files: `log_files` (logs behind paths), `file_names` (names of logs, numbers of ranks), `jobs` (files
  of one job)
* Read bytes: `archives`, `decompress`, `json_files` (notebooks, trainer_state.json), `portions`; `inputs`
  (limits, and inputs that could not be read)
* Read lines: `line_format` (line prefixes), `file_reading` (one file)
* Read in parallel: `parallel_reading` (all files of a run), `sharing` (files among processes), `workers` (the
  processes)
"""
