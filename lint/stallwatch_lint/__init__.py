"""`stallwatch check`: what configuration, script and versions say of a run before it starts. Pure functions.

* `check_run`: all checks of one run, put together
* `diagnostic`: what a check reports; `report` prints it for people and programs
* Inputs: `parse` and `dsconfig` (DeepSpeed's configuration), `accelerate_yaml`, `script` (syntax tree, with
  `conditions`, `first_rank`, `kinds`, `names`, `nones`, `partitioned` and `newer_python`),
  `installed` (versions), `signatures` (source of installed classes)
* Checks of the configuration: `batch`, `experts`, `keys` and `top_keys` (facts: `config_keys`), `optimizers`,
  `parameters`, `precision`, `saving`, `value_kinds`, `zero`
* Checks of the script: `bare_saving`, `class_keywords`, `dummy_loss`, `eval_dataset`, `eval_mode`,
  `generations`, `rank_guard`, `strategies`, `trainer_keywords`, `trainers`, `training_arguments`, `unwrapped`
* Checks of versions: `versions` (facts: `version_conflicts`)
"""
