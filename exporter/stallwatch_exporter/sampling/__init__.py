"""The numbers in logs as a table: rows, CSV, Parquet, frames."""
