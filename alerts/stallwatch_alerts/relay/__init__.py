"""``stallwatch relay``: alerts from Alertmanager, joined with their incidents, to the chats."""
