"""Charts as Plotly draws them."""
