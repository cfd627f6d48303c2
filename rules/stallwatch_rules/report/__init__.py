"""Write reports of a diagnosis: for a terminal, as Markdown, HTML, and JSON, and as short summaries."""
