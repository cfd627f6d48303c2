"""Implement ``stallwatch relay``: join alerts from Alertmanager with their incidents and notify chats."""
