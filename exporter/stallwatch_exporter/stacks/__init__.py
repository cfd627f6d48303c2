"""The evidence at a stall: where each local rank is, asked of it after the incident was raised."""
