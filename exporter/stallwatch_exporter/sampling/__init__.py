"""Extract the numbers in logs as a table: rows, CSV, Parquet, or data frames."""
