"""Who is notified: incidents kept in a database and sent to chats.

``messages``, ``masking`` and ``settings`` need nothing extra. ``sink`` (as soon as there are URLs) and
``trial`` need Apprise, ``store`` needs SQLAlchemy: ``pip install 'stallwatch[alerts]'``.
"""
