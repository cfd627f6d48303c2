"""Charts of the pages, as data for Plotly."""
