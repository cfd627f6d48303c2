"""Load and check the configuration, and convert it to the settings of other packages."""
