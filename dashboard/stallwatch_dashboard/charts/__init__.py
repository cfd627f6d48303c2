"""Draw the charts of the pages, as data for Plotly."""
