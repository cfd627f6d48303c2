"""Write the texts of incidents and alerts in English or Chinese, and lay them out for chats."""
