"""Delivery of messages to chats, with records of past notifications in the incident database."""
