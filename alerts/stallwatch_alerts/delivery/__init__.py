"""Deliver messages to chats and record past notifications in the incident database."""
