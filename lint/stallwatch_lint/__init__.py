"""`stallwatch check`: check the configuration, script, and versions of a run before the run starts.

The package consists of pure functions.

* `check_run`: runs all checks of one run
* `diagnostic`: the result of a check; `report` prints it for people and programs
* `facts`: facts about other software, as data files
* Inputs: `parse` and `dsconfig` (the DeepSpeed configuration), `script` (syntax tree, with `conditions`,
  `kinds`, `names`, `partitioned`, and `newer_python`), `versions`, `signatures` (source of classes)
* Checks of the configuration: `assertions`, `batch`, `config_keys`, `optimizers`
* Checks of the script: `class_keywords`, `dummy_loss`, `models`, `rank_guard`, `saving`, `trainer_arguments`
* Checks of versions: `versions`
"""
