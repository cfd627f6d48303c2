"""Logs read from files: which, how they are unpacked, and by how many processes.

* Which files: `log_files` (paths into logs), `file_names` (which names are logs), `file_ranks` (which numbers
  are ranks), `jobs`, `job_names`, `job_numbers` (which files belong to one job)
* Their bytes: `archives`, `decompress`, `read_ahead`, `json_files` (notebooks, trainer_state.json), `heads`,
  `portions`; `inputs` (limits, and what could not be read), `progress` (how far reading is)
* Their lines: `line_format` (how lines were broken, and their prefix), `file_reading` (one file), `matches`
  (every place where a rule fires), `baseline` (what a healthy run says)
* In parallel: `parallel_reading` (all files of a run), `sharing` (files among processes), `ranges` (one large
  file among processes), `workers` (those processes)
"""
