"""``stallwatch relay``: joins alerts from Alertmanager with their incidents and sends them to chats."""
