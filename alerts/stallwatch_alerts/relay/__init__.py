"""Implement ``stallwatch relay``: join alerts of Alertmanager with their incidents, and notify chats."""
