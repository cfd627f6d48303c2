"""Extract the numbers in logs as a table: rows, CSV, Parquet, data frames."""
