"""Extract the values in logs as a table: rows, CSV, Parquet, or data frames."""
