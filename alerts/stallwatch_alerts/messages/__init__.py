"""Write messages about incidents and alerts in English or Chinese, and lay the messages out for chats."""
