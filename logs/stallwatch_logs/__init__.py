"""Read logs from files: find them, unpack them, and read them with several processes.

* Which files: `log_files` (paths into logs), `file_names` (which names are logs, which numbers are ranks),
  `jobs` (which files belong to one job)
* Their bytes: `archives`, `decompress`, `json_files` (notebooks, trainer_state.json), `portions`; `inputs`
  (limits, and inputs that could not be read)
* Their lines: `line_format` (how lines were broken, and their prefix), `file_reading` (one file)
* In parallel: `parallel_reading` (all files of a run), `sharing` (files among processes), `workers` (those
  processes)
"""
