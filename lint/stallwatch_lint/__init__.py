"""`stallwatch check`: what configuration, script and versions say of a run before it starts. Pure functions.

* `check_run`: all checks of one run, put together
* `diagnostic`: what a check reports; `report` prints it for people and programs
* `facts`: what is known of other software, as data files
* Inputs: `parse` and `dsconfig` (DeepSpeed's configuration), `script` (syntax tree, with `conditions`,
  `kinds`, `names`, `partitioned` and `newer_python`), `versions`, `signatures` (source of classes)
* Checks of the configuration: `assertions`, `batch`, `config_keys`, `optimizers`
* Checks of the script: `class_keywords`, `dummy_loss`, `models`, `rank_guard`, `saving`, `trainer_arguments`
* Checks of versions: `versions`
"""
