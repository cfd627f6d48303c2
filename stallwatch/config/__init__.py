"""The configuration: its keys, the sources of their values, and the settings of other packages."""
