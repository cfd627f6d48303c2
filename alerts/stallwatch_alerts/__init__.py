"""Keep incidents in a database and send notifications about them to chats.

``messages``, ``masking``, and ``settings`` need no optional package. ``sink`` (if URLs are configured) and
``trial`` need Apprise, and ``store`` needs SQLAlchemy. ``pip install 'stallwatch[alerts]'`` installs both.
"""
