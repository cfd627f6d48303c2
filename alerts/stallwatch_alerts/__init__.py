"""Keep incidents in a database and send notifications about them to chats.

``messages``, ``masking``, and ``settings`` require no optional package. ``sink`` (if URLs are configured) and
``trial`` require Apprise, and ``store`` requires SQLAlchemy. ``pip install 'stallwatch[alerts]'`` installs
both.
"""
