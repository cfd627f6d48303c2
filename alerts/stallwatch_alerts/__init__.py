"""Alerting: keeps incidents in a database and sends them to chats.

``messages``, ``masking`` and ``settings`` need nothing extra. ``sink`` (as soon as there are URLs) and
``trial`` need Apprise, ``store`` needs SQLAlchemy: ``pip install 'stallwatch[alerts]'``.
"""
