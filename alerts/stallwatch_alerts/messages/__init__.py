"""Incidents and alerts in words, in English or Chinese: plain text, and how chats lay it out."""
