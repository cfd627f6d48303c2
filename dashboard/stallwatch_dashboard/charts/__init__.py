"""Draw the pages' charts as data for Plotly."""
